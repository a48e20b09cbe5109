"""`drivetrain rollouts`: a new version, engine, prompt or setting behind a model, a few callers at a time.

They are kept in the store: each command works whether a server runs or not, and holds on every replica within a second.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.command import Call, Existing, Misused, command, shared_options
from drivetrain.cli.completion import model_names
from drivetrain.cli.moments import LENGTH, shown
from drivetrain.cli.office import office, told
from drivetrain.cli.plans import GUARDS, PAIRS, checked, described, from_file
from drivetrain.governance import Move
from drivetrain.rollouts import report as reports
from drivetrain.rollouts.plan import Rollout

SHADOW = "shadow"


@command()
@click.argument("model", shell_complete=model_names)
@click.option("--to", "targets", metavar="ENGINE/MODEL", multiple=True, help="What is new: this engine and its model.")
@click.option("--prompt", metavar="NAME@VERSION", help="What is new: this version of a prompt.")
@click.option("--parameter", "parameters", type=PAIRS, multiple=True, help="What is new: a default, temperature=0.2.")
@click.option("--setting", "settings", type=PAIRS, multiple=True, help="What is new: a setting of loading, n_ctx=8192.")
@click.option("--stages", help="Percents of callers, `shadow` for copies alone. [default: 1,5,25,100]")
@click.option("--least", "least_s", type=LENGTH, help="How long a stage lasts at least. [default: 5m]")
@click.option(
    "--requests", "least_requests", type=click.IntRange(1), help="So many in a stage at least. [default: 100]"
)
@click.option("--guard", "guards", type=GUARDS, multiple=True, help="errors=0.02, first_token=1.5, cost=none, …")
@click.option("--shadow-usd", type=click.FloatRange(0, min_open=True), help="What copies may cost. [default: 10]")
@click.option("--compare", type=click.Choice(["exact", "similarity", "json"]), help="How answers of copies compare.")
@click.option("--file", "path", type=Existing(), help="All of it as YAML, as the API has it.")
def create(call: Call, model: str, path: Path | None, **given: Any) -> None:
    """Begin a rollout.

    Callers of MODEL go over to what is new stage by stage; each stays where it is. What is worse than what was there,
    by a statistical test, is rolled back by itself.
    """
    if path and any(given.values()):
        raise Misused("--file says all of it; leave the other options out")
    with office(call) as at:
        fields = checked(call, at, model, from_file(path) if path else _fields(given))
        made = at.rollouts.create(fields, engines=at.config.engines, actor=at.actor)
        _tell(call, made, "begun")


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    arm = {
        "name": "new",
        "targets": [_target(text) for text in given["targets"]] or None,
        "prompt": given["prompt"],
        "parameters": dict(given["parameters"]),
        "settings": dict(given["settings"]),
    }
    if not any(value for name, value in arm.items() if name != "name"):
        raise Misused("nothing is new: name it with --to, --prompt, --parameter, --setting or --file")
    stages = _stages(given)
    shadow = {name: given[option] for name, option in (("usd", "shadow_usd"), ("compare", "compare")) if given[option]}
    fields = {"arms": [{"name": "baseline"}, arm], "guards": dict(given["guards"]), "stages": stages}
    if shadow or any(stage.get(SHADOW) for stage in stages):
        fields[SHADOW] = shadow
    return fields


def _target(text: str) -> dict[str, str]:
    engine, slash, model = text.partition("/")
    if not slash or not engine or not model:
        raise Misused(f"--to {text!r}: write ENGINE/MODEL, such as gpu-a/org/name")
    return {"engine": engine, "model": model}


def _stages(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    lasting = {name: given[name] for name in ("least_s", "least_requests") if given[name] is not None}
    return [{**_stage(word.strip()), **lasting} for word in (given["stages"] or "1,5,25,100").split(",")]


def _stage(word: str) -> dict[str, Any]:
    if word == SHADOW:
        return {"percent": 0.0, "shadow": True}
    try:
        return {"percent": float(word.removesuffix("%"))}
    except ValueError:
        raise Misused(f"--stages: {word!r} is neither a percent nor `shadow`; write 1,5,25,100") from None


@command(name="list")
@click.option("--model", help="Of this model only.")
@click.option("--all", "every", is_flag=True, help="Those that were rolled back, too.")
def list_(call: Call, model: str | None, every: bool) -> None:
    """List rollouts."""
    listed(call, "rollout", model, every=every)


def listed(call: Call, kind: str, model: str | None, *, every: bool) -> None:
    with office(call) as at:
        narrowed = {"kind": kind} | ({"model": model} if model else {})
        found = [one for one in at.all_rollouts(**narrowed) if every or one.state != "rolled_back"]
        if call.json:
            output.emit({f"{kind}s": [told(one) for one in found]})
            return
        output.table(("MODEL", "STATE", "STAGE", "SINCE", "NEW", "WHY", "ID"), map(_row, found))


def _row(one: Rollout) -> tuple[str, ...]:
    news = "; ".join(described(arm) for arm in one.arms[1:])
    return (one.model, one.state.replace("_", " "), stage_of(one), shown(one.since_s), news, one.why or "-", one.id)


def stage_of(one: Rollout) -> str:
    """`2 of 4, 5 %`"""
    if not one.stages:
        return "-"
    stage = one.stages[one.stage]
    part = SHADOW if stage.shadow and not stage.percent else f"{stage.percent:g} %"
    return f"{one.stage + 1} of {len(one.stages)}, {part}"


@command()
@click.argument("which", metavar="ROLLOUT", shell_complete=model_names)
def show(call: Call, which: str) -> None:
    """Show a rollout: what was seen of it, and how it came to where it is.

    ROLLOUT is its id, or a model, whose newest one is meant.
    """
    showed(call, which)


def showed(call: Call, which: str) -> None:
    with office(call) as at:
        one = at.rollouts.get(which)
        report, history = at.rollouts.report(one), at.rollouts.history(one.id)
    if call.json:
        output.emit({**told(report), "history": told(history)})
        return
    click.echo(reports.text(report.arms))
    if one.kind == "rollout":
        click.echo(f"stage {stage_of(one)}: {report.next}, {report.why}")
        for line in report.guards:
            click.echo(f"  {line}")
        click.echo()
    if not report.whole:
        click.echo("more rows than can be read at once: the oldest are told of", err=True)
    output.table(
        ("AT", "WHO", "DID", "STATE", "STAGE", "WHY"),
        [
            (shown(turn.at_s), turn.actor, turn.move, turn.state.replace("_", " "), str(turn.stage + 1), turn.why)
            for turn in history
        ],
    )


def mover(move: Move, help: str, done: str) -> click.Command:
    """A command that moves one rollout or experiment."""

    @command(name=move, help=help)
    @click.argument("which", metavar="ROLLOUT", shell_complete=model_names)
    @click.option("--why", default="", help="For its history.")
    def act(call: Call, which: str, why: str) -> None:
        with office(call) as at:
            one = at.rollouts.get(which)
            reason = why or f"{move} by {at.actor}"
            version = one.version if move == "advance" else None  # going on twice is not meant; the rest does no harm
            _tell(call, at.rollouts.move(one.id, version, move, why=reason, actor=at.actor), done)

    return act


@command()
@click.argument("which", metavar="ROLLOUT...", nargs=-1, required=True, shell_complete=model_names)
def remove(call: Call, which: Sequence[str]) -> None:
    """Remove what is over.

    After a rollout that is done, write what is new into drivetrain.yaml first: from now on that says what the model is.
    """
    removed(call, which)


def removed(call: Call, which: Sequence[str]) -> None:
    with office(call) as at:
        for one in [at.rollouts.get(word) for word in which]:
            at.rollouts.remove(one.id, one.version, actor=at.actor)
            if call.json:
                output.emit_line({"removed": one.id})


def _tell(call: Call, one: Rollout, done: str) -> None:
    if call.json:
        output.emit(told(one))
        return
    if one.state in ("running", "paused"):
        where = f"stage {stage_of(one)}" if one.stages else "each caller at an arm"
    else:
        new = one.state == "done" and one.kind == "rollout"
        where = "everybody is at the new arm" if new else "everybody is at the baseline"
    click.echo(f"{one.kind} {one.id} of {one.model}: {done}, {where}", err=True)


rollouts = click.Group(
    "rollouts",
    commands=[
        create,
        list_,
        show,
        mover("advance", "Go to the next stage now, whatever the guards say.", "gone on"),
        mover("pause", "Stay at this stage until it is resumed.", "paused"),
        mover("resume", "Go on after a pause.", "running again"),
        mover("rollback", "Send everybody back to the baseline, everywhere within a second, for good.", "rolled back"),
        remove,
    ],
    params=shared_options(),
    help="Bring what is new to callers, stage by stage.",
)
