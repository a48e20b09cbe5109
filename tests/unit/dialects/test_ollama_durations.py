"""Go durations, keep_alive and time stamps as Ollama reads and writes them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects.ollama import durations
from drivetrain.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("10m", 600.0), ("1h30m", 5400.0), ("250ms", 0.25), ("0", 0.0), ("0s", 0.0), ("-1m", -60.0), ("+2s", 2.0)),
        *(
            ("1.5h", 5400.0),
            (".5s", 0.5),
            ("1h1m1s", 3661.0),
            ("1us", 1e-6),
            ("1µs", 1e-6),
            ("1μs", 1e-6),
            ("3ns", 3e-9),
        ),
    ],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert durations.seconds(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", 'time: invalid duration ""'),
        ("abc", 'time: invalid duration "abc"'),
        ("-", 'time: invalid duration "-"'),
        ("1h ", 'time: unknown unit "h " in duration "1h "'),
        ("5", 'time: missing unit in duration "5"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("m5", 'time: invalid duration "m5"'),
    ],
)
def test_a_bad_duration_is_refused_in_gos_words(text: str, error: str) -> None:
    with pytest.raises(BadRequest) as refused:
        durations.seconds(text)
    assert refused.value.message == error


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        *((None, None), (0, 0.0), ("0", 0.0), ("0s", 0.0), (300, 300.0), (1.5, 1.5), ("10m", 600.0), ("90", 90.0)),
        *((-1, -1.0), ("-1", -1.0), ("-5m", -1.0), (-0.5, -1.0), (1e300, -1.0), ("999999999h", -1.0)),
    ],
)
def test_keep_alive(said: float | str | None, seconds: float | None) -> None:
    assert durations.keep_alive_s(said) == seconds


@given(st.one_of(st.floats(0, 1e9), st.just(-1.0)))
def test_keep_alive_is_written_as_it_is_read(seconds: float) -> None:
    assert durations.keep_alive_s(durations.keep_alive(seconds)) == seconds


def test_for_ever_is_written_as_minus_one() -> None:
    assert durations.keep_alive(-7.5) == -1
    assert isinstance(durations.keep_alive(300.0), int)


def test_stamps_are_utc_with_nanoseconds_and_read_by_python() -> None:
    assert durations.stamp(0) == "1970-01-01T00:00:00.000000000Z"
    assert durations.stamp(1767323045.5) == "2026-01-02T03:04:05.500000000Z"
    assert datetime.fromisoformat(durations.stamp(1767323045.5)) == datetime(2026, 1, 2, 3, 4, 5, 500000, UTC)
    assert datetime.fromisoformat(durations.NEVER_EXPIRES).year == 2318
