"""model.json: what it may hold, how it is read, and how it changes. Members that nobody knows survive every rewrite.

The members are Jan's (id, object, name, version, created, description, format, owned_by, sources, engine, settings,
parameters, metadata, and the older source_url, engine_parameters, model_parameters) and ours (template, system,
messages, license, adapters, projector, prompt_version, digest, remote_model).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from drivetrain import parameters
from drivetrain.errors import BadRequest
from drivetrain.library import files
from drivetrain.types import Message, Text

FILE = "model.json"
MAX_BYTES = 16 * 2**20  # a license and a template take kilobytes
Members = dict[str, Any]

# Jan's names for the engine that is built in.
_LOCAL = frozenset({"nitro", "cortex", "llama-cpp", "cortex.llamacpp"})
_OLD_NAMES = {"engine_parameters": "settings", "model_parameters": "parameters"}
# What a patch may repeat but not change: these say what the model is, and where its bytes lie.
_FIXED = ("id", "object", "format", "sources", "source_url", "adapters", "projector", "digest")
_FIXED_SETTINGS = ("llama_model_path", "mmproj")


class Turn(msgspec.Struct, frozen=True):
    """A message of the conversation that precedes each request."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""


class Origin(msgspec.Struct, frozen=True):
    """Where a file of the model came from."""

    url: str = ""
    filename: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The members of model.json that mean something to us."""

    id: str | None = None
    name: str | None = None
    created: float | None = None
    format: str | None = None
    owned_by: str | None = None
    sources: tuple[Origin | str, ...] | str = ()
    source_url: str | None = None
    engine: str | None = None
    settings: Mapping[str, Any] = {}
    parameters: Mapping[str, Any] = {}
    engine_parameters: Mapping[str, Any] = {}
    model_parameters: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    template: str | None = None
    system: str | None = None
    messages: tuple[Turn, ...] = ()
    license: str | tuple[str, ...] | None = None
    adapters: tuple[str, ...] = ()
    projector: str | None = None
    prompt_version: str | int | None = None
    digest: str | None = None
    remote_model: str | None = None

    @property
    def engine_named(self) -> str:
        """The engine as the file names it."""
        return self.engine or "local"

    @property
    def engine_resolved(self) -> str:
        return "local" if self.engine_named in _LOCAL else self.engine_named

    @property
    def load_time(self) -> Mapping[str, Any]:
        return {**self.engine_parameters, **self.settings}

    @property
    def request_time(self) -> Mapping[str, Any]:
        return {**self.model_parameters, **self.parameters}

    @property
    def conversation(self) -> tuple[Message, ...]:
        return tuple(Message(role=turn.role, content=(Text(text=turn.content),)) for turn in self.messages)

    @property
    def filenames(self) -> tuple[str, ...]:
        """The files that `sources` lists, by name."""
        if isinstance(self.sources, str):
            return (self.sources,)
        return tuple(name for entry in self.sources if (name := entry if isinstance(entry, str) else entry.filename))


def read(folder: Path) -> Members:
    """The members in the folder's model.json; none where it has no such file. Raises `BadRequest` with the reason."""
    try:
        with open(folder / FILE, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadRequest(f"{FILE} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise BadRequest(f"{FILE} has more than {MAX_BYTES} bytes")
    return decode(data)


def decode(data: bytes) -> Members:
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadRequest(f"{FILE} is not a JSON object: {error}") from error


def check(members: Members) -> Record:
    """The members, typed. Raises `BadRequest` naming the member that is wrong."""
    try:
        return msgspec.convert(members, Record)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{FILE}: {error}") from error


def write(folder: Path, members: Members) -> None:
    check(members)
    files.write_whole(folder / FILE, msgspec.json.format(msgspec.json.encode(members), indent=2) + b"\n")


def patched(members: Members, patch: Mapping[str, Any]) -> Members:
    """The members after a JSON merge patch (RFC 7396). Raises `BadRequest` if it changes what is fixed, and for
    parameters that no request could use."""
    patch = {_OLD_NAMES.get(name, name): value for name, value in patch.items()}
    for name in _FIXED:
        if name in patch and patch[name] != members.get(name):
            raise BadRequest(
                f"member {name!r} of a model cannot be changed; import or create another model", param=name
            )
    if isinstance(given := patch.get("parameters"), dict):
        parameters.check(given)
    settings = patch.get("settings")
    for name in _FIXED_SETTINGS:
        if isinstance(settings, dict) and name in settings and settings[name] != members.get("settings", {}).get(name):
            raise BadRequest(f"setting {name!r} cannot be changed; import or create another model", param="settings")
    result: Members = merged(members, patch)
    check(result)
    return result


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396: objects merge member by member, null removes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
