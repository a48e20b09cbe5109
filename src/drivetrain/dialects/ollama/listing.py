"""What models there are: the answers of `/api/tags`, `/api/ps`, `/api/show` and `/api/version`, and their readings."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from drivetrain.dialects.ollama import options
from drivetrain.dialects.ollama.durations import NEVER_EXPIRES, stamp
from drivetrain.dialects.ollama.messages import write_messages
from drivetrain.dialects.ollama.names import shown
from drivetrain.dialects.ollama.wire import Wire
from drivetrain.errors import EngineFailed
from drivetrain.types import Capability, Experts, Loaded, Model, ModelSpec

Shape = TypeVar("Shape")

API_VERSION = "0.23.0"  # of the Ollama API that this package speaks; clients compare it as dotted integers
_NAME_WIDTH = 30  # of a parameter's name in the text of `show`


def encode_version(version: str = API_VERSION) -> bytes:
    return msgspec.json.encode({"version": version})


def encode_tags(models: Iterable[Model]) -> bytes:
    """Newest first."""
    newest = sorted(models, key=lambda model: -model.created_s)
    return msgspec.json.encode({"models": [_tag(model) for model in newest]})


def encode_ps(loaded: Iterable[Loaded]) -> bytes:
    """The one that stays longest first."""
    longest = sorted(loaded, key=lambda one: -(one.expires_s if one.expires_s is not None else float("inf")))
    return msgspec.json.encode({"models": [_running(one) for one in longest]})


def _tag(model: Model) -> dict[str, Any]:
    return {
        "name": shown(model.id),
        "model": shown(model.id),
        "modified_at": stamp(model.created_s),
        "size": model.size_bytes,
        "digest": digest(model),
        "details": details(model),
        "capabilities": sorted(model.capabilities),
    }


def _running(loaded: Loaded) -> dict[str, Any]:
    model = loaded.model
    return {
        "name": shown(model.id),
        "model": shown(model.id),
        "size": loaded.size_bytes,
        "digest": digest(model),
        "details": details(model),
        "expires_at": NEVER_EXPIRES if loaded.expires_s is None else stamp(loaded.expires_s),
        "size_vram": loaded.vram_bytes,
        "context_length": loaded.context_length or model.context_length or 0,
        **({"experts": _streamed(loaded.experts)} if loaded.experts else {}),
    }


def _streamed(experts: Experts) -> dict[str, Any]:
    """Of a model whose experts are streamed: a member that only Drivetrain has."""
    rates = {"hit_rate": round(experts.hit_rate, 4), "wait_share": round(experts.wait_share, 4)}
    return msgspec.structs.asdict(experts) | rates


def digest(model: Model) -> str:
    """64 hex digits: those of its files, or, of a model without files, stable ones of its engine and name."""
    return model.digest.removeprefix("sha256:") or hashlib.sha256(f"{model.engine}/{model.id}".encode()).hexdigest()


def details(model: Model) -> dict[str, Any]:
    lengths = {"context_length": model.context_length, "embedding_length": model.embedding_length}
    return {
        "parent_model": "",
        "format": model.format,
        "family": model.family,
        "families": [model.family] if model.family else [],
        "parameter_size": model.parameter_size,
        "quantization_level": model.quantization,
        **{name: length for name, length in lengths.items() if length},
    }


# --- show -------------------------------------------------------------------------------------------------------------


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What only the library knows of a model, for `show`."""

    license: str = ""
    modelfile: str = ""
    template: str = ""  # of the weights, where the model has none of its own
    model_info: Mapping[str, Any] = {}  # GGUF keys
    projector_info: Mapping[str, Any] = {}
    tensors: Sequence[Mapping[str, Any]] = ()  # for a verbose answer
    requires: str = ""
    renderer: str = ""
    parser: str = ""
    remote_model: str = ""
    remote_host: str = ""


def encode_show(spec: ModelSpec, known: Shown, *, basename: str | None = None) -> bytes:
    """The answer of `show`. `basename` goes where some editors look for the name they asked for."""
    model = spec.model
    info = _model_info(model, known.model_info)
    if basename is not None:
        info["general.basename"] = basename
    texts = {
        "parameters": parameters_text(spec.parameters, spec.settings),
        "template": spec.template or known.template,
        "system": spec.system or "",
        "messages": write_messages(spec.messages),
    }
    answer = {
        **msgspec.to_builtins(known),
        **{name: value for name, value in texts.items() if value},
        "details": details(model),
        "model_info": info,
        "capabilities": sorted(model.capabilities),
        "modified_at": stamp(model.created_s),
    }
    return msgspec.json.encode(answer)


def _model_info(model: Model, info: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata; of a model without, what is known under the keys where clients look for it."""
    family = model.family or "unknown"
    lengths = {f"{family}.context_length": model.context_length, f"{family}.embedding_length": model.embedding_length}
    return {"general.architecture": family, **{name: value for name, value in lengths.items() if value}, **info}


_OLLAMA_NAMES: Mapping[str, str] = {ours: theirs for theirs, ours in options.SAMPLING.items()}
_CONTEXT_SETTINGS = ("num_ctx", "ctx_len", "n_ctx", "context_length")


def parameters_text(parameters: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """One line per parameter under Ollama's name for it; strings are quoted. Ours that Ollama lacks are left out."""
    named = {_OLLAMA_NAMES.get(name, name): value for name, value in parameters.items()}
    context = next((settings[name] for name in _CONTEXT_SETTINGS if settings.get(name)), None)
    if context is not None:
        named.setdefault("num_ctx", context)
    lines = [
        f"{name:<{_NAME_WIDTH}} {_value_text(item)}"
        for name, value in named.items()
        if name in options.KINDS and value is not None
        for item in (value if isinstance(value, list | tuple) else (value,))
    ]
    return "\n".join(lines)


def _value_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # Ollama writes 1, not 1.0
    return msgspec.json.encode(value).decode()


# --- readings, of an Ollama engine's answers --------------------------------------------------------------------------


class _Details(Wire, frozen=True, kw_only=True):
    format: str | None = None
    family: str | None = None
    parameter_size: str | None = None
    quantization_level: str | None = None
    context_length: int | None = None
    embedding_length: int | None = None


class _Tag(Wire, frozen=True, kw_only=True):
    name: str = ""
    model: str = ""
    modified_at: str | None = None
    expires_at: str | None = None
    size: int = 0
    size_vram: int = 0
    digest: str = ""
    details: _Details | None = None
    capabilities: list[str] | None = None
    context_length: int | None = None


class _Tags(Wire, frozen=True, kw_only=True):
    models: list[_Tag] | None = None


_CAPABILITIES: Mapping[str, Capability] = {
    "completion": "completion",
    "tools": "tools",
    "insert": "insert",
    "vision": "vision",
    "audio": "audio",
    "embedding": "embedding",
    "thinking": "thinking",
}


def decode_tags(body: bytes) -> tuple[Model, ...]:
    """The models that an Ollama server has."""
    return tuple(map(_model, _tags(body)))


def decode_ps(body: bytes) -> tuple[Loaded, ...]:
    """The models that an Ollama server has in memory."""
    return tuple(
        Loaded(
            model=_model(tag),
            size_bytes=tag.size,
            vram_bytes=tag.size_vram,
            context_length=tag.context_length,
            expires_s=_unix_s(tag.expires_at) if tag.expires_at else None,
        )
        for tag in _tags(body)
    )


class _Show(Wire, frozen=True, kw_only=True):
    capabilities: list[str] | None = None
    model_info: dict[str, Any] | None = None
    details: _Details | None = None


def decode_show(body: bytes, model: Model) -> Model:
    """`model` with what an Ollama server's `show` adds: capabilities and lengths."""
    said = _engine_answer(body, _Show)
    info = said.model_info or {}
    family = info.get("general.architecture", model.family)
    return msgspec.structs.replace(
        model,
        capabilities=_known(said.capabilities) or model.capabilities,
        context_length=info.get(f"{family}.context_length", model.context_length),
        embedding_length=info.get(f"{family}.embedding_length", model.embedding_length),
    )


def _tags(body: bytes) -> list[_Tag]:
    return _engine_answer(body, _Tags).models or []


def _engine_answer(body: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the engine sent what is no list of models: {error}") from error


def _model(tag: _Tag) -> Model:
    known = tag.details or _Details()
    return Model(
        id=tag.model or tag.name,
        capabilities=_known(tag.capabilities),
        context_length=known.context_length or tag.context_length,
        embedding_length=known.embedding_length,
        created_s=int(_unix_s(tag.modified_at)) if tag.modified_at else 0,
        size_bytes=tag.size,
        digest=tag.digest,
        format=known.format or "",
        family=known.family or "",
        parameter_size=known.parameter_size or "",
        quantization=known.quantization_level or "",
    )


def _known(capabilities: list[str] | None) -> frozenset[Capability]:
    return frozenset(_CAPABILITIES[name] for name in capabilities or () if name in _CAPABILITIES)


def _unix_s(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0
