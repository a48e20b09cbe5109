"""The header reader: right about every file that is right, quick and calm about every file that is not."""

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain import gguf
from drivetrain.errors import BadRequest
from tests.e2e.servers import small_model
from tests.fakes.weights import tiny_gguf, tiny_jns

WEIGHTS = small_model()


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, length: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + data


def tensor(name: str, *dims: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(
    *pairs: bytes, tensors: tuple[bytes, ...] = (), version: int = 3, counts: tuple[int, int] | None = None
) -> bytes:
    of_tensors, of_pairs = counts or (len(tensors), len(pairs))
    return b"GGUF" + struct.pack("<IQQ", version, of_tensors, of_pairs) + b"".join(pairs) + b"".join(tensors)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to_file(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return to_file


Write = Callable[[bytes], Path]


# --- right files ------------------------------------------------------------------------------------------------------


def test_a_real_model_reads_as_the_reference_reader_reads_it() -> None:
    read, reference = gguf.read(WEIGHTS), oracle.GGUFReader(WEIGHTS)
    assert read.data_offset == reference.data_offset
    assert read.alignment == reference.alignment
    assert [(t.name, list(t.dims), t.type, t.size_bytes) for t in read.tensors] == [
        (t.name, list(t.shape), t.tensor_type, t.n_bytes) for t in reference.tensors
    ]
    assert [read.data_offset + t.offset for t in read.tensors] == [t.data_offset for t in reference.tensors]
    for key, value in read.metadata.items():
        field = reference.fields[key]
        if isinstance(value, gguf.Array):
            assert value.length == len(field.data)
        else:
            assert (list(value) if isinstance(value, tuple) else value) == field.contents()


def test_it_tells_what_a_listing_shows() -> None:
    read = gguf.read(WEIGHTS)
    assert (read.architecture, read.quantization, read.parameters) == ("llama", "Q4_1", 134_515_008)
    assert read.whole("llama.context_length") == 8192
    assert read.split_count == 1


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = oracle.GGUFWriter(path, "test")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "日本 🙂")
    writer.add_array("list", ["a", "ß"])
    writer.add_custom_alignment(64)
    writer.add_tensor("w", numpy.zeros((4, 32), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = gguf.read(path)
    expected = {
        "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31), "u64": 2**64 - 1,
        "i64": -(2**63), "f32": 0.5, "f64": 0.1, "yes": True, "text": "日本 🙂", "list": ("a", "ß"),
    }  # fmt: skip
    assert {key: read.metadata[key] for key in expected} == expected
    assert read.alignment == 64
    assert [(t.name, t.dims, t.type, t.size_bytes) for t in read.tensors] == [("w", (32, 4), 1, 256)]


def test_long_arrays_are_summarised_unless_asked_for() -> None:
    summary = gguf.read(WEIGHTS).metadata["tokenizer.ggml.tokens"]
    assert summary == gguf.Array(8, 49152)
    tokens = gguf.read(WEIGHTS, keep={"tokenizer.ggml.tokens"}).metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, tuple)
    assert (len(tokens), tokens[1]) == (49152, "<|im_start|>")


def test_a_number_may_hold_for_all_layers_or_for_each(write: Write) -> None:
    one = pair("heads", 4, struct.pack("<I", 8))
    each = pair("kv", 9, array(4, 3, struct.pack("<3I", 1, 2, 3)))
    read = gguf.read(write(header(one, each)))
    assert read.layered("heads", 3) == (8, 8, 8)
    assert read.layered("kv", 3) == (1, 2, 3)
    assert read.layered("absent", 2, 5) == (5, 5)


def test_without_a_file_type_most_weights_decide(write: Write) -> None:
    tensors = (tensor("a", 32, kind=0), tensor("b", 256, kind=8, offset=128))
    data = header(tensors=tensors)
    assert gguf.read(write(data + b"\0" * 1024)).quantization == "Q8_0"


def test_the_tables_agree_with_the_reference() -> None:
    for kind in oracle.GGMLQuantizationType:
        if kind is not oracle.GGMLQuantizationType.Q8_1:  # never in a file, and the reference counts it differently
            assert gguf.TENSOR_TYPES[kind] == (kind.name, *oracle.GGML_QUANT_SIZES[kind])
    for file_type in oracle.LlamaFileType:
        if file_type is not oracle.LlamaFileType.GUESSED:
            assert gguf.FILE_TYPES[file_type] == file_type.name.removeprefix("MOSTLY_").removeprefix("ALL_")


def test_the_parts_of_a_split_model_are_found(tmp_path: Path) -> None:
    names = [f"m-{no:05}-of-00003.gguf" for no in (1, 2, 3)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in gguf.parts(tmp_path / names[0])] == names
    (tmp_path / names[1]).unlink()
    with pytest.raises(BadRequest, match=r"'m-00002-of-00003\.gguf' is missing"):
        gguf.parts(tmp_path / names[0])


def test_a_whole_model_is_its_only_part(tmp_path: Path) -> None:
    assert gguf.parts(tmp_path / "m.gguf") == (tmp_path / "m.gguf",)


# --- hostile files ----------------------------------------------------------------------------------------------------

U64 = 2**64 - 1
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "only 0 bytes"),
    "other format": (b"PK\x03\x04" + b"\0" * 60, "does not begin with the letters GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version": (header(version=4), "version 4"),
    "first version": (header(version=1), "version 1"),
    "tensor count": (header(counts=(U64, 0)), "claims 18446744073709551615 tensors"),
    "key count": (header(counts=(0, U64)), "18446744073709551615 keys"),
    "no room for the keys": (header(counts=(0, 16_000)), "ends at byte 24"),
    "key length": (header(struct.pack("<Q", U64) + b"x" * 32), "claims 18446744073709551615 bytes"),
    "text length": (header(pair("k", 8, struct.pack("<Q", 2**40))), "claims 1099511627776 bytes"),
    "type": (header(pair("k", 13, b"\0" * 8)), "type 13"),
    "key twice": (header(pair("k", 7, b"\1"), pair("k", 7, b"\1")), "'k' appears twice"),
    "numbers": (header(pair("k", 9, array(4, 2**62))), "claims 4611686018427387904 elements"),
    "strings": (header(pair("k", 9, array(8, 2**62))), "strings"),
    "array of arrays": (header(pair("k", 9, array(9, 1, array(9, 1)))), "type 9"),
    "array of unknowns": (header(pair("k", 9, array(99, 1, b"\0" * 8))), "type 99"),
    "alignment 0": (header(pair("general.alignment", 4, b"\0" * 4)), "alignment is 0"),
    "alignment 48": (header(pair("general.alignment", 4, struct.pack("<I", 48))), "alignment is 48"),
    "alignment text": (header(pair("general.alignment", 8, text("a"))), "alignment is 'a'"),
    "name length": (header(tensors=(tensor("n" * 256, 1),)), "256 bytes"),
    "rank": (header(tensors=(tensor("w", 1, 1, 1, 1, 1),)), "5 dimensions"),
    "elements": (header(tensors=(tensor("w", 2**40, 2**40),)), "elements"),
    "offset": (header(tensors=(tensor("w", 1, offset=2**63),)), "before the data of tensor 'w'"),
    "unaligned": (header(tensors=(tensor("w", 1, offset=1),)), "not aligned"),
    "cut data": (header(tensors=(tensor("w", 2**20),)) + b"\0" * 64, "is the download complete"),
    "name twice": (header(tensors=(tensor("w", 1), tensor("w", 1))) + b"\0" * 64, "have the name 'w'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_a_reason(name: str, write: Write) -> None:
    data, reason = HOSTILE[name]
    path = write(data)
    with pytest.raises(BadRequest, match=f"^{path.name!r} is not a usable GGUF file: ") as error:
        gguf.read(path)
    assert reason in error.value.message


def refused_cheaply(path: Path) -> None:
    """In less than a second and 50 MB."""
    start_s = time.process_time()
    with pytest.raises(BadRequest):
        gguf.read(path)
    assert time.process_time() - start_s < 1.0
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest):
            gguf.read(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def sparse(path: Path, head: bytes, size: int) -> Path:
    """A file that claims to be large, and holds zeroes after its head."""
    path.write_bytes(head)
    os.truncate(path, size)
    return path


@pytest.mark.parametrize(
    "head",
    [
        header(counts=(0, 16_384)),  # keys of no length: the second one is the first again
        header(pair("k", 9, array(8, 2_000_001))),
        header(counts=(65_536, 0)),
    ],
    ids=["keys", "strings", "tensors"],
)
def test_a_file_of_ten_gigabytes_of_nothing_costs_nothing(head: bytes, tmp_path: Path) -> None:
    refused_cheaply(sparse(tmp_path / "huge.gguf", head, 10 * 2**30))


def test_texts_that_add_up_are_refused_before_they_fill_memory(write: Write) -> None:
    pairs = [pair(f"k{i}", 8, text(b"x" * 2**20)) for i in range(40)]
    refused_cheaply(write(header(*pairs)))


def test_the_most_strings_that_are_allowed_are_skipped(tmp_path: Path) -> None:
    path = sparse(tmp_path / "many.gguf", header(pair("k", 9, array(8, 2_000_000))), 2**26)
    assert gguf.read(path).metadata["k"] == gguf.Array(8, 2_000_000)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    with pytest.raises(BadRequest, match="not a regular file"):
        gguf.read(fifo)
    with pytest.raises(BadRequest, match="No such file"):
        gguf.read(tmp_path / "absent.gguf")
    with pytest.raises(BadRequest, match="Is a directory"):
        gguf.read(tmp_path)


def test_a_file_cut_anywhere_in_its_header_is_refused(write: Write) -> None:
    pairs = (pair("a", 8, text("value")), pair("b", 9, array(8, 2, text("x") + text("y"))), pair("c", 7, b"\1"))
    whole = header(*pairs, tensors=(tensor("w", 32),))
    for cut in range(len(whole)):
        with pytest.raises(BadRequest):
            gguf.read(write(whole[:cut]))


@given(data=st.data())
def test_no_damage_to_a_header_raises_anything_else(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    pairs = (pair("general.alignment", 4, struct.pack("<I", 32)), pair("b", 9, array(8, 2, text("x") + text("y"))))
    whole = bytearray(header(*pairs, tensors=(tensor("w", 32),)) + b"\0" * 256)
    for at, value in data.draw(st.lists(st.tuples(st.integers(4, 200), st.integers(0, 255)), max_size=6)):
        whole[min(at, len(whole) - 1)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(whole)
    with suppress(BadRequest):
        gguf.read(path)


# --- containers -------------------------------------------------------------------------------------------------------


def test_a_container_is_read_like_the_gguf_inside(write: Write) -> None:
    inside = tiny_gguf(9000, general__name="packed")
    plain = gguf.read(write(inside))
    assert gguf.read(write(tiny_jns(inside))) == plain
    assert plain.file_bytes == len(inside)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tiny_jns(tiny_gguf())[:40], "it has only 40 bytes"),
        (tiny_jns(tiny_gguf())[:9000], "and only 9000 of them are there: is it complete"),
        (tiny_jns(tiny_gguf(), version=2), "it is a container of version 2; version 1 is known"),
        (tiny_jns(tiny_gguf(), extents=0), "a container without a header"),
        (tiny_jns(tiny_gguf(), begin=32), "whose header lies where none can be"),
        (tiny_jns(b"JUST TEXT, NOT A HEADER"), "only 23 bytes"),
        (tiny_jns(b"JUST TEXT, NOT A HEADER OF ANY KIND"), "does not begin with the letters GGUF"),
    ],
)
def test_a_container_that_cannot_be_read_says_why(write: Write, data: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        gguf.read(write(data))


@given(st.binary(min_size=1, max_size=64), st.integers(0, 8300))
def test_no_damage_to_a_container_makes_more_than_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, damage: bytes, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.jns"
    whole = tiny_jns(tiny_gguf())
    path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
    with suppress(BadRequest):
        gguf.read(path)
