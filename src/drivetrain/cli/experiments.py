"""`drivetrain experiments`: several versions of a model at once, and which one does better."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.command import Call, Existing, Misused, command, shared_options
from drivetrain.cli.completion import model_names
from drivetrain.cli.office import office, told
from drivetrain.cli.plans import checked, from_file
from drivetrain.cli.rollouts import listed, mover, removed, showed


@command()
@click.argument("model", shell_complete=model_names)
@click.option("--prompt", "prompts", metavar="NAME@VERSION", multiple=True, help="An arm with this prompt.")
@click.option("--shares", help="Of the baseline, then of each arm: 50,50. [default: equal]")
@click.option("--file", "path", type=Existing(), help="All of it as YAML, as the API has it.")
def create(call: Call, model: str, prompts: Sequence[str], shares: str | None, path: Path | None) -> None:
    """Begin an experiment.

    Each caller of MODEL gets one arm, and keeps it. Arms that differ in more than their prompt are written in a file.
    """
    if not prompts and not path:
        raise Misused("an experiment needs an arm beside the baseline: --prompt or --file")
    fields: dict[str, Any] = from_file(path) if path else {}
    if prompts:
        fields["arms"] = [{"name": "baseline"}, *({"name": _arm(prompt), "prompt": prompt} for prompt in prompts)]
    if shares:
        fields["shares"] = _shares(shares)
    arms = fields.get("arms")
    fields.setdefault("shares", [1.0] * len(arms) if isinstance(arms, list) else [])
    with office(call) as at:
        fields = {**checked(call, at, model, fields), "kind": "experiment"}
        made = at.rollouts.create(fields, engines=at.config.engines, actor=at.actor)
        if call.json:
            output.emit(told(made))
        else:
            click.echo(f"experiment {made.id} of {made.model}: begun with {len(made.arms)} arms", err=True)


def _arm(reference: str) -> str:
    return reference.replace("@", "-")


def _shares(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise Misused(f"--shares {text!r}: write numbers such as 50,50") from None


@command(name="list")
@click.option("--model", help="Of this model only.")
@click.option("--all", "every", is_flag=True, help="Those that were called off, too.")
def list_(call: Call, model: str | None, every: bool) -> None:
    """List experiments."""
    listed(call, "experiment", model, every=every)


@command()
@click.argument("which", metavar="EXPERIMENT", shell_complete=model_names)
def report(call: Call, which: str) -> None:
    """Tell how the arms of an experiment do, with 95 % confidence.

    EXPERIMENT is its id, or a model, whose newest one is meant.
    """
    showed(call, which)


@command()
@click.argument("which", metavar="EXPERIMENT...", nargs=-1, required=True, shell_complete=model_names)
def remove(call: Call, which: Sequence[str]) -> None:
    """Remove experiments that are over."""
    removed(call, which)


experiments = click.Group(
    "experiments",
    commands=[
        create,
        list_,
        report,
        mover("finish", "End an experiment: everybody is at the baseline again.", "finished"),
        remove,
    ],
    params=shared_options(),
    help="Compare versions of a model, with callers of their own.",
)
