"""Requests that change what models there are, and the status lines that tell how they go.

Requests that older clients send with `name` are read as if they said `model`, wherever Ollama does so.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from drivetrain.dialects.ollama import modelfile, names, options, wire
from drivetrain.dialects.ollama.durations import keep_alive
from drivetrain.dialects.ollama.errors import by_text, model_required
from drivetrain.dialects.ollama.messages import read_messages
from drivetrain.dialects.ollama.wire import Wire, WireMessage
from drivetrain.errors import BadRequest, EngineFailed
from drivetrain.types import Message, Value

SUCCESS = b'{"status":"success"}'


# --- requests ---------------------------------------------------------------------------------------------------------


class ShowRequest(Value, frozen=True, kw_only=True):
    """`system` and `options` are shown as if they were the model's."""

    model: str
    system: str = ""
    options: Mapping[str, Any] = {}
    verbose: bool = False


class TransferRequest(Value, frozen=True, kw_only=True):
    """A pull or a push."""

    model: str
    insecure: bool = False
    stream: bool = True


class CopyRequest(Value, frozen=True, kw_only=True):
    source: str
    destination: str


class CreateRequest(Value, frozen=True, kw_only=True):
    """A model to make from another (`from_`), or from blobs: file name → digest, 64 hex digits."""

    model: str
    from_: str = ""
    files: Mapping[str, str] = {}
    adapters: Mapping[str, str] = {}
    draft_files: Mapping[str, str] = {}
    template: str | None = None
    system: str | None = None
    licenses: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = {}  # under Ollama's names
    messages: tuple[Message, ...] = ()
    quantize: str = ""
    draft_quantize: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    remote_host: str = ""
    info: Mapping[str, Any] = {}
    stream: bool = True


class _Named(Wire, frozen=True, kw_only=True):
    model: str | None = None
    name: str | None = None  # the older word

    @property
    def named(self) -> str:
        return self.model or self.name or ""


class _Show(_Named, frozen=True, kw_only=True):
    system: str | None = None
    template: str | None = None  # a text, for which Ollama has no use either
    options: dict[str, Any] | None = None
    verbose: bool | None = None


class _Transfer(_Named, frozen=True, kw_only=True):
    insecure: bool | None = None
    stream: bool | None = None


class _Copy(Wire, frozen=True, kw_only=True):
    source: str = ""
    destination: str = ""


class _Create(_Named, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: str | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    draft_files: dict[str, str] | None = None
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[WireMessage] | None = None
    quantize: str | None = None
    quantization: str | None = None  # the older word
    draft_quantize: str | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    remote_host: str | None = None
    info: dict[str, Any] | None = None
    modelfile: str | None = None  # the older way to say all of the above
    stream: bool | None = None


def decode_show_request(body: bytes) -> ShowRequest:
    asked = wire.read(body, _Show)
    if not asked.named:
        raise model_required()
    return ShowRequest(
        model=asked.named,
        system=asked.system or "",
        options=_parameters(asked.options or {}),
        verbose=asked.verbose is True,
    )


def decode_pull_request(body: bytes) -> TransferRequest:
    """What to pull is for the library to understand: it knows more sources than Ollama's names."""
    return _transfer(body, BadRequest("invalid model name", param="model"))


def decode_push_request(body: bytes) -> TransferRequest:
    return _transfer(body, model_required())


def _transfer(body: bytes, unnamed: BadRequest) -> TransferRequest:
    asked = wire.read(body, _Transfer)
    if not asked.named:
        raise unnamed
    return TransferRequest(model=asked.named, insecure=asked.insecure is True, stream=asked.stream is not False)


def decode_delete_request(body: bytes) -> str:
    """The model to delete."""
    asked = wire.read(body, _Named)
    if not asked.named:
        raise model_required()
    return asked.named


def decode_copy_request(body: bytes) -> CopyRequest:
    asked = wire.read(body, _Copy)
    for member, name in (("source", asked.source), ("destination", asked.destination)):
        if not names.is_valid(name):
            raise BadRequest(f'{member} "{name}" is invalid', param=member)
    return CopyRequest(source=asked.source, destination=asked.destination)


def decode_create_request(body: bytes) -> CreateRequest:
    asked = wire.read(body, _Create)
    names.parse(asked.named)
    said = _create(asked)
    if asked.modelfile:
        said = {**_described(modelfile.parse(asked.modelfile)), **said}
    request = CreateRequest(model=asked.named, stream=asked.stream is not False, **said)
    if not (request.from_ or request.files):
        raise BadRequest("neither 'from' or 'files' was specified", param="from")
    return request


def _create(asked: _Create) -> dict[str, Any]:
    """The members that the caller said."""
    licenses = [asked.license] if isinstance(asked.license, str) else asked.license or []
    said = {
        **{name: getattr(asked, name) for name in ("from_", "template", "system", "renderer", "parser", "requires")},
        **{name: getattr(asked, name) for name in ("draft_quantize", "remote_host", "info")},
        **{name: _blobs(getattr(asked, name) or {}, name) for name in ("files", "adapters", "draft_files")},
        "licenses": tuple(text for text in licenses if text),
        "parameters": _parameters(asked.parameters or {}),
        "messages": read_messages(asked.messages or ()),
        "quantize": asked.quantize or asked.quantization,
    }
    return {name: value for name, value in said.items() if value}


def _described(file: modelfile.Modelfile) -> dict[str, Any]:
    return {
        "from_": file.from_,
        "template": file.template,
        "system": file.system,
        "licenses": file.licenses,
        "parameters": file.parameters,
        "messages": file.messages,
        "renderer": file.renderer,
        "parser": file.parser,
        "requires": file.requires,
    }


def _blobs(files: Mapping[str, str], member: str) -> dict[str, str]:
    for name in files:
        path = PurePosixPath(name)
        windows = PureWindowsPath(name)
        if not name or "\0" in name or ".." in windows.parts or path.is_absolute() or windows.anchor:
            raise BadRequest(f'the path "{name}" in {member} must be relative and stay inside the model', param=member)
    return {name: names.digest(said) for name, said in files.items()}


def _parameters(said: Mapping[str, Any]) -> dict[str, Any]:
    """Checked as `options` are; what Ollama does not know is left out, as it does."""
    options.read(said)
    return {name: value for name, value in said.items() if name in options.KINDS and value is not None}


# --- status lines -----------------------------------------------------------------------------------------------------


class StatusLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a pull, push or create, as it stands on the wire."""

    status: str
    digest: str = ""  # `sha256:…`
    total: int = 0  # bytes
    completed: int = 0  # bytes


def encode_status(status: str, *, digest: str = "", total: int = 0, completed: int = 0) -> bytes:
    """One line of a stream. The last one says `success`; an answer that is not streamed is `SUCCESS`."""
    line = StatusLine(status=status, digest=digest, total=total or 0, completed=completed or 0)
    return msgspec.json.encode(line) + b"\n"


class _StatusOrError(Wire, frozen=True, kw_only=True):
    status: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0
    error: str | None = None


def decode_status(line: bytes) -> StatusLine:
    """A line of another server's stream. Raises what its `error` tells."""
    try:
        said = msgspec.json.decode(line, type=_StatusOrError)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the server sent what is no status: {error}") from error
    if said.error:
        raise by_text(said.error) or EngineFailed(said.error)
    return StatusLine(status=said.status, digest=said.digest, total=said.total, completed=said.completed)


# --- for engines ------------------------------------------------------------------------------------------------------


def encode_load_request(
    model: str, *, keep_alive_s: float | None = None, said: Mapping[str, Any] | None = None
) -> bytes:
    """A body for `/api/generate` of an Ollama server that loads a model with the options `said`, or unloads it (0)."""
    members: dict[str, Any] = {"model": model, "stream": False}
    if keep_alive_s is not None:
        members["keep_alive"] = keep_alive(keep_alive_s)
    if said:
        members["options"] = said
    return msgspec.json.encode(members)
