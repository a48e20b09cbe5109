"""How rollouts and experiments are written on the command line, and how what was seen of them is shown."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from drivetrain.cli.command import Call, Missing, Misused
from drivetrain.cli.migrating import sides
from drivetrain.cli.office import Office
from drivetrain.config import document
from drivetrain.config.problems import suggestion
from drivetrain.policies.access import plain
from drivetrain.rollouts.plan import Arm, Guards


class Pair(click.ParamType[tuple[str, Any]]):
    """An option's value: `name=value`, the value as YAML has it."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write {self.name}", param, ctx)
        return name, document.scalar(text)


class Guard(Pair):
    """As `Pair`, of a guard; `none` lifts it."""

    name = "guard=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        name, limit = super().convert(value, param, ctx)
        if name not in Guards.__struct_fields__:
            self.fail(f"there is no guard {name!r}; there are {', '.join(Guards.__struct_fields__)}", param, ctx)
        if limit not in ("none", None) and (isinstance(limit, bool) or not isinstance(limit, int | float)):
            self.fail(f"{name}={limit!r}: a number, or none", param, ctx)
        return name, None if limit == "none" else limit


PAIRS = Pair()
GUARDS = Guard()


def from_file(path: Path) -> dict[str, Any]:
    """What a file says of a rollout. Raises `Misused` for what is no mapping."""
    found = document.parse(path.read_text("utf-8"), str(path)).data
    if not isinstance(found, dict):
        raise Misused(f"{path} holds no mapping with arms, stages, guards, …")
    return found


def known_model(call: Call, at: Office, model: str) -> str:
    """As the configuration spells it; else it is one of the library, or of an engine. Raises `Missing` if it is of
    none."""
    wanted = plain(model)
    if (name := next((name for name in at.config.models if plain(name) == wanted), None)) is not None:
        return name
    if any(plain(spec.id) == wanted for spec in sides.stored(call)):
        return model
    listed = asyncio.run(sides.listed(call, at.config, ()))
    known = {plain(one.id): one.id for models in listed.values() for one in models}
    if wanted not in known and all(listed.values()):
        names = sorted({*at.config.models, *known.values()})
        raise Missing(f"there is no model {model!r}{suggestion(model, names)}")
    if wanted not in known:
        click.echo(f"model {model!r} is not known here, and an engine that may have it could not be asked", err=True)
    return model


def check_targets(call: Call, at: Office, targets: Sequence[Mapping[str, str]]) -> None:
    """Raises `Missing` for a model that its engine does not list. What cannot be asked is told."""
    for target in targets:
        engine, model = target["engine"], target["model"]
        entry = at.config.engines.get(engine)
        if entry is None or entry.kind == sides.EMBEDDED:
            continue  # told when it is made, or known by the library alone
        names = [one.id for one in asyncio.run(sides.models_of(call, engine, entry))]
        if not names:
            click.echo(f"engine {engine!r} does not tell now whether it has {model!r}", err=True)
        elif plain(model) not in map(plain, names):
            raise Missing(f"engine {engine!r} has no model {model!r}; it has {', '.join(sorted(names))}")


def described(arm: Arm) -> str:
    """What is different in an arm, in short: `gpu-a/org/name, prompt brief@2`."""
    parts = [f"{target.engine}/{target.model}" for target in arm.targets or ()]
    parts += [f"prompt {arm.prompt}"] if arm.prompt else []
    parts += [f"{name}={value}" for name, value in {**arm.settings, **arm.parameters}.items()]
    return ", ".join(parts) or "nothing"
