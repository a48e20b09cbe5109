"""The streaming library's functions (`native/src/api.h`), typed; and whether it is there.

The worker process loads the library by itself, into llama.cpp; here it works on files and measures. Every function
blocks: call it from a thread. A library that is missing raises `Unsupported` with what to do, a file that cannot be
used `BadRequest`.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from drivetrain.errors import BadRequest, DrivetrainError, NotFound, StorageFull, Unsupported

LIBRARY: Final = Path(__file__).with_name("libexpertstream.so")
EXCUSE: Final = Path(__file__).with_name("not-built.txt")  # why the installation built none
ERROR_BYTES: Final = 4096
JSON_BYTES: Final = 2**20
_NO_COMPILER: Final = "no C++ compiler was found at installation"

Progress = Callable[[int, int], None]  # bytes done, bytes in all; an exception from it stops the work and is raised
Io = Literal["auto", "threads", "uring"]

_PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
_TEXT, _SIZE, _U64 = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64
_ERROR = (_TEXT, _SIZE)
_SIGNATURES: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "es_version": (_TEXT, ()),
    "es_configure": (ctypes.c_int, (_TEXT, *_ERROR)),
    "es_shell": (ctypes.c_int, (_TEXT, _TEXT, *_ERROR)),
    "es_pack": (ctypes.c_int, (_TEXT, _TEXT, _PROGRESS, ctypes.c_void_p, *_ERROR)),
    "es_unpack": (ctypes.c_int, (_TEXT, _TEXT, _PROGRESS, ctypes.c_void_p, *_ERROR)),
    "es_verify": (ctypes.c_int, (_TEXT, _PROGRESS, ctypes.c_void_p, *_ERROR)),
    "es_describe": (ctypes.c_int, (_TEXT, _TEXT, _SIZE, *_ERROR)),
    "es_probe_drive": (
        ctypes.c_int,
        (_TEXT, _TEXT, ctypes.c_int, ctypes.c_uint, _U64, ctypes.c_uint, ctypes.POINTER(ctypes.c_double), *_ERROR),
    ),
    "es_probe_memory": (ctypes.c_double, (ctypes.c_uint, ctypes.c_uint)),
}


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is made of, as far as streaming is concerned."""

    experts: int  # of one layer
    layers: int  # that have experts
    used: int  # experts of a layer that one token is given to
    expert_bytes: int  # of all experts, on disk
    slot_bytes: int  # of the largest expert in memory: gate, up and down
    dense_bytes: int  # of everything else


def library_path() -> Path | None:
    """The library; None if it was not built."""
    return LIBRARY if LIBRARY.is_file() else None


def missing() -> str | None:
    """Why there is no library, in one sentence with what to do; None if there is one."""
    if library_path():
        return None
    reason = EXCUSE.read_text().strip() if EXCUSE.is_file() else _NO_COMPILER
    return f"the streaming library was not built: {reason}; install a C++ compiler and reinstall drivetrain"


def version() -> str:
    text: bytes = _library().es_version()
    return text.decode()


def configure(options: Mapping[str, str | int | Path]) -> None:
    """Tells this process's library which model it is to stream, and how; before llama.cpp loads it as a backend."""
    _call("es_configure", options_text(options).encode())


def options_text(options: Mapping[str, str | int | Path]) -> str:
    """Options as `es_configure` reads them: a line each."""
    for name, value in options.items():
        if "\n" in str(value):
            raise BadRequest(f"{name}: a line break in {str(value)!r} is not possible", param=name)
    return "".join(f"{name}={value}\n" for name, value in options.items())


def shell(model: Path, target: Path) -> None:
    """Writes a GGUF of the model's metadata and dense tensors, with holes in place of the experts."""
    _call("es_shell", _there(model), os.fsencode(target))


def pack(gguf: Path, jns: Path, progress: Progress | None = None) -> None:
    """Makes a container of a GGUF (the first of its files); resumes what was interrupted. `jns` is there when whole."""
    _long("es_pack", _there(gguf), os.fsencode(jns), progress=progress)


def unpack(jns: Path, gguf: Path, progress: Progress | None = None) -> None:
    """Makes the GGUF of a container again; every tensor has the bytes it had."""
    _long("es_unpack", _there(jns), os.fsencode(gguf), progress=progress)


def verify(jns: Path, progress: Progress | None = None) -> None:
    """Reads a container whole and compares its checksums; raises `BadRequest` that names what differs."""
    _long("es_verify", _there(jns), progress=progress)


def describe(model: Path) -> Description:
    """Of a GGUF or a container, from its header."""
    text = ctypes.create_string_buffer(JSON_BYTES)
    _call("es_describe", _there(model), text, JSON_BYTES)
    return msgspec.json.decode(text.value, type=Description)


def probe_drive(path: Path, *, io: Io, direct: bool, depth: int, piece: int, ms: int) -> float:
    """Bytes per second of random reads of `piece` bytes from the file `path`, with `depth` of them in flight."""
    rate = ctypes.c_double()
    _call("es_probe_drive", _there(path), io.encode(), int(direct), depth, piece, ms, ctypes.byref(rate))
    return rate.value


def probe_memory(threads: int, ms: int) -> float:
    """Bytes per second that so many threads read from memory."""
    rate: float = _library().es_probe_memory(threads, ms)
    return rate


@cache
def _library() -> ctypes.CDLL:
    if (why := missing()) is not None:
        raise Unsupported(why)
    try:
        library = ctypes.CDLL(str(LIBRARY))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise Unsupported(f"the streaming library cannot be used: {error}; reinstall drivetrain") from error
    return library


def _call(name: str, *arguments: Any) -> None:
    if (error := _said(name, *arguments)) is not None:
        raise _failure(error)


def _said(name: str, *arguments: Any) -> str | None:
    """What a function says that it could not do."""
    reason = ctypes.create_string_buffer(ERROR_BYTES)
    if getattr(_library(), name)(*arguments, reason, ERROR_BYTES) == 0:
        return None
    return reason.value.decode("utf-8", "replace") or f"{name} failed and gave no reason"


def _long(name: str, *paths: bytes, progress: Progress | None) -> None:
    """Like `_call`, with progress. What `progress` raises ends the work and is raised here: C cannot carry it."""
    held = _Held()

    def tell(done: int, total: int, _context: int | None) -> int:
        with held:
            if progress is not None:
                progress(done, total)
        return held.error is not None

    error = _said(name, *paths, _PROGRESS(tell), None)
    if held.error is not None:
        raise held.error
    if error is not None:
        raise _failure(error)


class _Held:
    """Keeps what its block raises."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self.error = error
        return True


def _there(path: Path) -> bytes:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    return os.fsencode(path)


# What the reason says of the fault, where it is not the file's.
_FAULTS: Final[Mapping[str, type[DrivetrainError]]] = {
    os.strerror(errno.ENOSPC): StorageFull,
    os.strerror(errno.EDQUOT): StorageFull,
}


def _failure(reason: str) -> DrivetrainError:
    return next((fault(reason) for words, fault in _FAULTS.items() if words in reason), BadRequest(reason))
