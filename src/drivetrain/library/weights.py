"""Which of a folder's files are the model: weights, projector, adapters. Only GGUF and our containers are accepted."""

import re
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.library.record import Record

SUFFIXES = (".gguf", ".jns")  # of weights: as they come, and packed for streaming (`drivetrain pack`)
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
REFUSED = {
    ".bin": "it may be a pickle, which runs code when it is read",
    ".pt": "it is a pickle, which runs code when it is read",
    ".pth": "it is a pickle, which runs code when it is read",
    ".pkl": "it is a pickle, which runs code when it is read",
    ".ckpt": "it is a pickle, which runs code when it is read",
    ".safetensors": "it has to be converted to GGUF first",
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    weights: Path | None = None
    projector: Path | None = None
    adapters: tuple[Path, ...] = ()


def find(folder: Path, record: Record, listed: tuple[str, ...]) -> Found:
    """The files of a model, `listed` being the files of weights in its folder.

    Raises `BadRequest` with the reason if they cannot be told, or are not there.
    """
    projector = _projector(folder, record, listed)
    adapters = tuple(_existing(folder, name) for name in record.adapters)
    apart = {path.name for path in (projector, *adapters) if path}
    return Found(
        weights=_weights(folder, record, [name for name in listed if name not in apart]),
        projector=projector,
        adapters=adapters,
    )


def is_projector(name: str) -> bool:
    return "mmproj" in name.lower()


def is_weights(name: str) -> bool:
    return name.endswith(SUFFIXES) and not is_projector(name) and not name.startswith("adapter-")


def is_container(name: str) -> bool:
    return name.endswith(".jns")


def container_name(name: str) -> str:
    """What the container of a GGUF is called; all parts of a split model go into one."""
    return f"{_PART.sub('', name).removesuffix('.gguf')}.jns"


def refuse(path: Path) -> None:
    """Raises `BadRequest` unless the name is a GGUF file's, or a container's."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        reason = REFUSED.get(suffix, "only *.gguf and *.jns are accepted")
        raise BadRequest(f"{path.name!r} cannot be imported: {reason}", param="path")


def leading(names: list[str]) -> list[str]:
    """Those that begin a model: later parts of split models and projectors left out."""
    return [name for name in names if not _LATER_PART.search(name) and not is_projector(name)]


def _weights(folder: Path, record: Record, listed: list[str]) -> Path | None:
    named = record.load_time.get("llama_model_path")
    if isinstance(named, str) and named:
        return _existing(folder, named)
    sourced = leading([name for name in record.filenames if name in listed])
    candidates = sourced or _not_packed(leading(listed))
    if len(candidates) > 1 and not sourced:
        raise BadRequest(
            f"its folder holds several models ({', '.join(candidates)}); name one in settings.llama_model_path"
        )
    if candidates:
        return folder / candidates[0]
    if record.engine_resolved == "local":
        wanted = ", ".join(record.filenames) or "a *.gguf or *.jns file"
        raise BadRequest(f"its weights are missing: {wanted} is not in its folder")
    return None


def _not_packed(names: list[str]) -> list[str]:
    """Without those whose container is there, too."""
    return [name for name in names if is_container(name) or container_name(name) not in names]


def _projector(folder: Path, record: Record, listed: tuple[str, ...]) -> Path | None:
    named: Any = record.projector or record.load_time.get("mmproj")
    if isinstance(named, str) and named:
        return _existing(folder, named)
    return next((folder / name for name in listed if is_projector(name)), None)


def _existing(folder: Path, name: str) -> Path:
    path = folder / name  # an absolute name stands for itself
    if not path.is_file():
        raise BadRequest(f"file {name!r}, named in its model.json, does not exist")
    return path
