"""The page of counters: read as it is, and nothing where there is none."""

import struct
from pathlib import Path

import pytest

from drivetrain.engines.expertstream import page


def bytes_of_page(*, error: bytes = b"", error_seq: int = 0, magic: bytes = b"DRTPXE01") -> bytes:
    """With 1, 2, 3, … for the numbers from `pid` on, and a few layers."""
    numbers = [*range(1, 23), error_seq]
    texts = struct.pack("512s64s64s", error, b"threads direct", b"avx2")
    layers = struct.pack("<1024Q", 5, 6, *[0] * 510, 7, 0, 8, *[0] * 509)
    return magic + struct.pack("<23Q", *numbers) + texts + layers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "page"
    path.write_bytes(bytes_of_page())
    return path


def test_the_layout_is_that_of_stats_hpp() -> None:
    assert page.PAGE_BYTES == 9024
    assert page.ABORT_BELOW_AT == 176


def test_reads_numbers_texts_and_layers(file: Path) -> None:
    now = page.read(file)
    assert now is not None
    assert (now.pid, now.started_ns, now.experts, now.expert_bytes) == (1, 2, 3, 4)
    assert (now.budget, now.resident, now.least, now.most) == (5, 6, 7, 8)
    assert (now.hits, now.misses, now.reads, now.read_bytes, now.read_ns) == (9, 10, 11, 12, 13)
    assert (now.wait_ns, now.compute_ns, now.tokens, now.passes) == (14, 15, 16, 17)
    assert (now.evictions, now.failures, now.retries, now.crc_errors, now.abort_below) == (18, 19, 20, 21, 22)
    assert (now.error, now.reader, now.kernel) == ("", "threads direct", "avx2")
    assert (now.layer_hits, now.layer_misses) == ((5, 6, 0), (7, 0, 8))


def test_rates_are_of_what_was_asked_and_of_the_time_for_it(file: Path) -> None:
    now = page.read(file)
    assert now is not None
    assert now.hit_rate == 9 / 19
    assert now.wait_share == 14 / 29


def test_before_anything_was_asked_nothing_was_missed() -> None:
    now = page.decode(b"DRTPXE01" + bytes(9016))
    assert now is not None
    assert (now.hit_rate, now.wait_share, now.layer_hits, now.error) == (1.0, 0.0, (), "")


def test_a_text_ends_at_its_zero_and_odd_bytes_do_no_harm(file: Path) -> None:
    file.write_bytes(bytes_of_page(error=b"stopped at \xff\0left from before"))
    now = page.read(file)
    assert now is not None
    assert now.error == "stopped at \ufffd"


def test_an_error_that_is_being_written_holds_up_nobody(file: Path) -> None:
    file.write_bytes(bytes_of_page(error=b"half an err", error_seq=3))
    now = page.read(file)
    assert now is not None
    assert now.error == "half an err"


def test_no_file_no_page(tmp_path: Path) -> None:
    assert page.read(tmp_path / "none") is None
    assert page.read(tmp_path) is None
    assert not page.abort_below(tmp_path / "none", 1)


@pytest.mark.parametrize(
    "data", [b"", b"DRTPXE01", bytes_of_page()[:-1], bytes_of_page(magic=b"DRTPXE02"), bytes(9024)]
)
def test_another_file_is_no_page(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert page.read(file) is None


def test_stops_passes_by_writing_one_number(file: Path) -> None:
    before = file.read_bytes()
    assert page.abort_below(file, 2**33)
    assert file.read_bytes() == before[:176] + struct.pack("<Q", 2**33) + before[184:]


def test_never_writes_into_another_file(file: Path) -> None:
    file.write_bytes(b"somebody else's" * 20)
    assert not page.abort_below(file, 1)
    assert file.read_bytes() == b"somebody else's" * 20
