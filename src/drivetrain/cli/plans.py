"""How rollouts and experiments are written on the command line, and how what was seen of them is shown."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from drivetrain.cli.command import Call, Missing, Misused
from drivetrain.cli.migrating import sides
from drivetrain.cli.migrating.today import publics
from drivetrain.cli.office import Office
from drivetrain.config import document
from drivetrain.config.problems import suggestion
from drivetrain.dialects.ollama import names
from drivetrain.policies.access import plain
from drivetrain.rollouts.plan import Arm, Guards, Plan
from drivetrain.types import Model, ModelSpec


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


class _Known(NamedTuple):
    """What is known of models, as far as it was asked for."""

    library: Sequence[ModelSpec] = ()
    listed: Mapping[str, Sequence[Model]] = {}  # by engine; nothing of one that is away


def checked(call: Call, at: Office, model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the model's public name, which is what rollouts are found by, however it was spelled.

    Raises `Missing` for a model that nobody has, and for one of an arm that its engine does not list. What cannot be
    asked is told. Each engine is asked once, and only one that may know what nobody else does.
    """
    engines, targets = at.config.engines, _targets(fields)
    name = _public(at, _Known(), model)
    ours = [engine for engine, _ in targets if engine in engines and engines[engine].kind == sides.EMBEDDED]
    known = _Known(sides.stored(call) if ours or name is None else ())
    name = name or _public(at, known, model)
    asked = {engine: entry for engine, entry in engines.items() if name is None or engine in dict(targets)}
    known = known._replace(listed=asyncio.run(sides.listed(call, asked, ())))
    _check_targets(at, known, targets)
    return {**fields, "model": name or _public(at, known, model) or _unknown(at, known, model)}


def _public(at: Office, known: _Known, model: str) -> str | None:
    found = publics(at.config, known.library, known.listed, Plan())
    return next((one.name for one in found if plain(one.name) == plain(model)), None)


def _unknown(at: Office, known: _Known, model: str) -> str:
    if all(known.listed.values()):
        names = [one.name for one in publics(at.config, known.library, known.listed, Plan())]
        raise Missing(f"there is no model {model!r}{suggestion(model, names)}")
    click.echo(f"model {model!r} is not known here, and an engine that may have it could not be asked", err=True)
    return model


def _targets(fields: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Engines and their models, as far as they are written as they should be: the rest is told when it is made."""
    targets = [target for arm in _mappings(fields.get("arms")) for target in _mappings(arm.get("targets"))]
    pairs = [(target.get("engine"), target.get("model")) for target in targets]
    found = [(engine, model) for engine, model in pairs if isinstance(engine, str) and isinstance(model, str)]
    return tuple(dict.fromkeys(found))


def _mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else ()


def _check_targets(at: Office, known: _Known, targets: Sequence[tuple[str, str]]) -> None:
    for engine, model in targets:
        if (entry := at.config.engines.get(engine)) is None:
            continue  # told when it is made
        ours = entry.kind == sides.EMBEDDED
        names = [one.id for one in (known.library if ours else known.listed[engine])]
        if not names and not ours:
            click.echo(f"engine {engine!r} does not tell now whether it has {model!r}", err=True)
        elif not any(_same(ours, name, model) for name in names):
            raise Missing(f"engine {engine!r} has no model {model!r}; it has {', '.join(sorted(names)) or 'none'}")


def _same(ours: bool, name: str, model: str) -> bool:
    """The library takes every spelling that Ollama takes."""
    return names.same(name, model) if ours else plain(name) == plain(model)


def described(arm: Arm) -> str:
    """What is different in an arm, in short: `gpu-a/org/name, prompt brief@2`."""
    parts = [f"{target.engine}/{target.model}" for target in arm.targets or ()]
    parts += [f"prompt {arm.prompt}"] if arm.prompt else []
    parts += [f"{name}={value}" for name, value in {**arm.settings, **arm.parameters}.items()]
    return ", ".join(parts) or "nothing"
