"""Effective settings and where each comes from: engine.json < model.json < whatever layers lie above.

Defaults of an engine are read from `engines/<name>/engine.json`, or, as Jan wrote it, from `engines/<name>.json`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.library import record
from drivetrain.library.ids import folder as folder_name

# Members of Jan's flat files that describe the engine itself, not how it runs a model.
_ABOUT_THE_ENGINE = frozenset(
    {"id", "name", "object", "version", "description", "base_url", "full_url", "api_key", "settings", "parameters"}
)


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from one origin: a file's path, or the name of a policy."""

    origin: str
    settings: Mapping[str, Any] = {}
    parameters: Mapping[str, Any] = {}


class Setting(msgspec.Struct, frozen=True):
    """An effective value and where it was said."""

    value: Any
    origin: str


def engine_file(home: Path, engine: str) -> Path | None:
    """The file with an engine's defaults, if it has one."""
    try:
        name = folder_name(engine)
    except BadRequest:
        return None
    candidates = (home / "engines" / name / "engine.json", home / "engines" / f"{name}.json")
    return next((path for path in candidates if path.is_file()), None)


def engine_layer(path: Path) -> Layer:
    """The defaults in an engine's file. Raises `BadRequest` with the reason if it is broken."""
    try:
        members = record.decode(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"{path.name} cannot be read: {error.strerror}") from error
    except BadRequest as error:
        raise BadRequest(f"{path.parent.name}/{path.name}: {error.message}") from error
    flat = {name: value for name, value in members.items() if name not in _ABOUT_THE_ENGINE}
    settings, parameters = members.get("settings", {}), members.get("parameters", {})
    if not isinstance(settings, dict) or not isinstance(parameters, dict):
        raise BadRequest(f"{path.parent.name}/{path.name}: 'settings' and 'parameters' must be objects")
    return Layer(origin=str(path), settings={**flat, **settings}, parameters=parameters)


def merged(layers: Sequence[Layer]) -> Layer:
    """The layers as one, the last to speak wins."""
    settings: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for layer in layers:
        settings |= layer.settings
        parameters |= layer.parameters
    return Layer(origin="effective", settings=settings, parameters=parameters)


def effective(layers: Sequence[Layer]) -> dict[str, Setting]:
    """Each value by its dotted name, `settings.n_ctx` or `parameters.temperature`, with its origin."""
    found: dict[str, Setting] = {}
    for layer in layers:
        for group, values in (("settings", layer.settings), ("parameters", layer.parameters)):
            found |= {f"{group}.{name}": Setting(value, layer.origin) for name, value in values.items()}
    return dict(sorted(found.items()))
