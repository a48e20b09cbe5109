"""The header of a GGUF file: metadata and tensor table, never the weights. Trusts nothing that the file says.

Every count, length and offset is checked against a limit and against the size of the file before it is used, the file
is read through a small window, and numeric arrays are stepped over by seeking. So a hostile file costs little time and
little memory, and is a `BadRequest` that tells what is wrong with it. Reading blocks: call it from a thread.

A `.jns` container (docs/reference/jns.md) holds the header of the GGUF that it was made of; it is read like that one.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import io
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from drivetrain.errors import BadRequest

MAX_KEYS = 16_384
MAX_KEY_BYTES = 65_535  # the specification's own limit
MAX_TENSORS = 65_536
MAX_NAME_BYTES = 255
MAX_STRING_BYTES = 8 * 2**20  # a chat template has at most tens of kilobytes
MAX_KEPT_BYTES = 32 * 2**20  # of all that stays in memory; the largest vocabularies with merges take half of that
MAX_STRINGS = 2_000_000  # elements of all string arrays; the largest vocabularies with merges have 800,000
SMALL_ARRAY = 1024  # longer arrays are summarised: vocabularies, scores, merges

_WINDOW = 2**20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_ARRAY, _STRING, _BOOL = 9, 8, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_CONTAINER = b"DRVTRAIN"
_CONTAINER_VERSION = 1
_CONTAINER_HEAD = struct.Struct("<8sIIQQQQIIII")  # … version, …, the GGUF's bytes, where the tables are, …, extents, …
_EXTENT = struct.Struct("<QQQ")  # where in the GGUF, how long, where in the container
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class TensorType(NamedTuple):
    name: str
    block: int  # elements in a block
    bytes: int  # of a block


# ggml_type: ids that were withdrawn (4, 5, 31–33, 36–38) are left out.
TENSOR_TYPES: Mapping[int, TensorType] = {
    id: TensorType(*values)
    for id, values in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    }.items()
}  # fmt: skip

# `general.file_type`: what most of the tensors are quantised to.
FILE_TYPES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0",
}  # fmt: skip


class Array(msgspec.Struct, frozen=True):
    """An array that was too long to keep."""

    type: int  # of its elements, as numbered by GGUF
    length: int


Metadata = str | int | float | bool | tuple[str | int | float | bool, ...] | Array


class Tensor(msgspec.Struct, frozen=True, gc=False):
    name: str
    dims: tuple[int, ...]  # innermost first, as in the file
    type: int  # see TENSOR_TYPES
    offset: int  # from `Gguf.data_offset`

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def size_bytes(self) -> int | None:
        """None for a type that this module does not know."""
        kind = TENSOR_TYPES.get(self.type)
        return None if kind is None else self.elements // kind.block * kind.bytes


class Gguf(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    metadata: Mapping[str, Metadata]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int  # of the first tensor's data in the file
    file_bytes: int  # of a container: those of the GGUF that it was made of

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def parameters(self) -> int:
        """How many weights this file holds; a split model's parts add up."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def quantization(self) -> str:
        """What the file says of itself ("Q4_K_M"), else the type of most of its weights."""
        named = FILE_TYPES.get(self.whole("general.file_type", -1))
        return named or self._most_common_type()

    @property
    def split_count(self) -> int:
        """Of how many files the model consists."""
        return max(self.whole("split.count", 1), 1)

    def text(self, key: str) -> str:
        """A string of the metadata; "" where it is missing or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else ""

    def whole(self, key: str, default: int = 0) -> int:
        """A whole number of the metadata; `default` where it is missing or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def layered(self, key: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """A number that holds for every layer, or one per layer: some models give an array."""
        value = self.metadata.get(key)
        if isinstance(value, tuple) and len(value) >= layers:
            return tuple(number if isinstance(number, int) else default for number in value[:layers])
        return (self.whole(key, default),) * layers

    def _most_common_type(self) -> str:
        weights: Counter[int] = Counter()
        for tensor in self.tensors:
            weights[tensor.type] += tensor.elements
        kind = TENSOR_TYPES.get(weights.most_common(1)[0][0]) if weights else None
        return kind.name if kind else ""


def read(path: str | os.PathLike[str], *, keep: Collection[str] = ()) -> Gguf:
    """The header of the file or container at `path`. Arrays longer than `SMALL_ARRAY` are summarised, but for the keys
    in `keep`.

    Raises `BadRequest` for whatever is not a readable, complete, little-endian GGUF file of version 2 or 3. It tells
    the file's name alone: callers from elsewhere see it.
    """
    try:
        # O_NONBLOCK: a FIFO under the name of a model must not stop us.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _Bad("it is not a regular file")
            return _header(_cursor(file, status.st_size), frozenset(keep))
    except OSError as error:
        raise BadRequest(f"cannot read {Path(path).name!r}: {error.strerror}") from error
    except _Bad as error:
        raise BadRequest(f"{Path(path).name!r} is not a usable GGUF file: {error}") from error


def head(data: bytes, whole: int) -> Gguf:
    """Like `read`, of a file with `whole` bytes of which only the first are here.

    Raises `BadRequest` also if the header goes on behind them.
    """
    try:
        return _header(_Cursor(io.BytesIO(data), len(data), whole), frozenset())
    except _Bad as error:
        raise BadRequest(f"this is not the beginning of a usable GGUF file: {error}") from error


def parts(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """All files of the model whose first file is `path`: siblings named `…-00001-of-00003.gguf`, or only itself.

    Raises `BadRequest` naming a part that is missing.
    """
    first = Path(path)
    match = _SPLIT_NAME.fullmatch(first.name)
    if match is None:
        return (first,)
    count = int(match["count"])
    found = tuple(first.with_name(f"{match['stem']}-{no:05}-of-{count:05}.gguf") for no in range(1, count + 1))
    for file in found:
        if not file.is_file():
            raise BadRequest(
                f"{first.name!r} is one of {count} files of a model, but {file.name!r} is missing beside it"
            )
    return found


class _Bad(Exception):
    """What is wrong with the file."""


class _Cursor:
    """A position in the file, behind a window of it."""

    def __init__(self, file: BinaryIO, size: int, whole: int, base: int = 0) -> None:
        """`size` bytes from `base` on can be read, of a GGUF with `whole` bytes."""
        self.file, self.size, self.whole, self.base = file, size, whole, base
        self.window, self.at, self.start = b"", 0, 0  # the window, the position in it, where it starts in the file
        self.strings = self.kept = 0

    @property
    def offset(self) -> int:
        return self.start + self.at

    def need(self, count: int) -> None:
        """Have the next `count` bytes in the window."""
        if self.at + count <= len(self.window):
            return
        if count > self.size - self.offset:
            raise _Bad(f"it ends at byte {self.size}, inside its header")
        rest = self.window[self.at :]
        self.start, self.at = self.offset, 0
        self.file.seek(self.base + self.start + len(rest))
        while len(rest) < count:
            more = self.file.read(max(_WINDOW, count - len(rest)))
            if not more:
                raise _Bad("it shrank while it was being read")
            rest += more
        self.window = rest

    def take(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        return self.window[self.at - count : self.at]

    def skip(self, count: int) -> None:
        if count > self.size - self.offset:
            raise _Bad(f"it ends at byte {self.size}, inside its header")
        self.at += count
        if self.at > len(self.window):
            self.window, self.start, self.at = b"", self.offset, 0

    def u32(self) -> int:
        self.need(4)
        self.at += 4
        return int(_U32.unpack_from(self.window, self.at - 4)[0])

    def u64(self) -> int:
        self.need(8)
        self.at += 8
        return int(_U64.unpack_from(self.window, self.at - 8)[0])

    def text(self, limit: int = MAX_STRING_BYTES) -> str:
        length = self.u64()
        self.kept += length
        if length > limit or self.kept > MAX_KEPT_BYTES:
            raise _Bad(f"a string before byte {self.offset} claims {length} bytes")
        # Vocabularies hold broken UTF-8 on purpose.
        return self.take(length).decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        for _ in range(count):
            length = self.u64()
            if length > MAX_STRING_BYTES:
                raise _Bad(f"a string before byte {self.offset} claims {length} bytes")
            self.skip(length)


def _cursor(file: BinaryIO, size: int) -> _Cursor:
    """On the header of a GGUF: at the beginning of the file, or inside a container."""
    head = file.read(_CONTAINER_HEAD.size)
    if not head.startswith(_CONTAINER):
        return _Cursor(file, size, size)
    if len(head) < _CONTAINER_HEAD.size:
        raise _Bad(f"it has only {size} bytes")
    _, version, _, total, whole, tables, _, extents, *_ = _CONTAINER_HEAD.unpack(head)
    if version != _CONTAINER_VERSION:
        raise _Bad(f"it is a container of version {version}; version {_CONTAINER_VERSION} is known")
    if total != size:
        raise _Bad(f"it is a container of {total} bytes, and only {size} of them are there: is it complete?")
    if not extents or tables + _EXTENT.size > size:
        raise _Bad("it is a container without a header")
    file.seek(tables)
    extent = file.read(_EXTENT.size)
    begin, length, at = _EXTENT.unpack(extent.ljust(_EXTENT.size, b"\xff"))
    if begin or at + length > size or length > whole:
        raise _Bad("it is a container whose header lies where none can be")
    return _Cursor(file, length, whole, at)


def _header(cursor: _Cursor, keep: frozenset[str]) -> Gguf:
    version = _version(cursor)
    tensor_count, key_count = cursor.u64(), cursor.u64()
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise _Bad(f"it claims {tensor_count} tensors and {key_count} keys")
    metadata = _metadata(cursor, key_count, keep)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise _Bad(f"its alignment is {alignment!r}, not a power of two")
    tensors = _tensors(cursor, tensor_count)
    data_offset = -(-cursor.offset // alignment) * alignment
    for tensor in tensors:
        _check_bounds(tensor, data_offset, alignment, cursor.whole)
    return Gguf(
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=cursor.whole,
    )


def _version(cursor: _Cursor) -> int:
    if cursor.size < 24:
        raise _Bad(f"it has only {cursor.size} bytes")
    if cursor.take(4) != b"GGUF":
        raise _Bad("it does not begin with the letters GGUF")
    version = cursor.u32()
    if version & 0xFFFF == 0:
        raise _Bad("it is big-endian, for another kind of machine")
    if version not in (2, 3):
        raise _Bad(f"it is of version {version}; versions 2 and 3 are known")
    return version


def _metadata(cursor: _Cursor, count: int, keep: frozenset[str]) -> dict[str, Metadata]:
    found: dict[str, Metadata] = {}
    for _ in range(count):
        key = cursor.text(MAX_KEY_BYTES)
        if key in found:
            raise _Bad(f"key {key[:80]!r} appears twice")
        kind = cursor.u32()
        found[key] = _array(cursor, key in keep) if kind == _ARRAY else _value(cursor, kind)
    return found


def _value(cursor: _Cursor, kind: int) -> str | int | float | bool:
    if kind == _STRING:
        return cursor.text()
    (value,) = _numbers(cursor, kind, 1)
    return value


def _numbers(cursor: _Cursor, kind: int, count: int) -> tuple[int | float | bool, ...]:
    layout = struct.Struct(f"<{count}{_format(kind)}")
    values = layout.unpack(cursor.take(layout.size))
    return tuple(map(bool, values)) if kind == _BOOL else values


def _array(cursor: _Cursor, keep: bool) -> Metadata:
    kind, length = cursor.u32(), cursor.u64()
    keep = keep or length <= SMALL_ARRAY
    if kind == _STRING:
        return _strings(cursor, length, keep)
    width = struct.calcsize(f"<{_format(kind)}")
    if length > (cursor.size - cursor.offset) // width:
        raise _Bad(f"an array before byte {cursor.offset} claims {length} elements")
    if keep and length <= MAX_STRINGS:
        cursor.kept += 8 * length
        if cursor.kept > MAX_KEPT_BYTES:
            raise _Bad("its metadata is too large")
        return _numbers(cursor, kind, length)
    cursor.skip(length * width)
    return Array(kind, length)


def _strings(cursor: _Cursor, length: int, keep: bool) -> Metadata:
    cursor.strings += length
    if cursor.strings > MAX_STRINGS or length > (cursor.size - cursor.offset) // 8:
        raise _Bad(f"an array before byte {cursor.offset} claims {length} strings")
    if keep:
        return tuple(cursor.text() for _ in range(length))
    cursor.skip_strings(length)
    return Array(_STRING, length)


def _format(kind: int) -> str:
    try:
        return _SCALARS[kind]
    except KeyError:
        raise _Bad(f"a value has the type {kind}, which GGUF does not know") from None


def _tensors(cursor: _Cursor, count: int) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}
    for _ in range(count):
        tensor = _tensor(cursor)
        if found.setdefault(tensor.name, tensor) is not tensor:
            raise _Bad(f"two of its tensors have the name {tensor.name!r}")
    return tuple(found.values())


def _tensor(cursor: _Cursor) -> Tensor:
    name, rank = cursor.text(MAX_NAME_BYTES), cursor.u32()
    if rank > 4:
        raise _Bad(f"tensor {name!r} claims {rank} dimensions")
    dims = struct.unpack(f"<{rank}Q", cursor.take(8 * rank))
    if prod(dims) >= 2**63:
        raise _Bad(f"tensor {name!r} claims {prod(dims)} elements")
    return Tensor(name, dims, cursor.u32(), cursor.u64())


def _check_bounds(tensor: Tensor, data_offset: int, alignment: int, size: int) -> None:
    if tensor.offset % alignment:
        raise _Bad(f"tensor {tensor.name!r} is not aligned")
    if data_offset + tensor.offset + (tensor.size_bytes or 0) > size:
        raise _Bad(f"it ends at byte {size}, before the data of tensor {tensor.name!r}: is the download complete?")
