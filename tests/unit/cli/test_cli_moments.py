"""Times on the command line: in ISO form with or without a zone, or as far from now as they say."""

import pytest

from drivetrain.cli.moments import brief, instant_s, iso, length_s, shown

NOW_S = 1_796_040_000.0  # 2026-11-30 12:00 UTC


@pytest.mark.parametrize(
    ("typed", "instant"),
    [
        ("2026-11-30T12:00", NOW_S),
        ("2026-11-30 12:00:00", NOW_S),
        ("2026-11-30T13:00+01:00", NOW_S),
        ("2026-11-30T12:00:00Z", NOW_S),
        ("2026-11-30", NOW_S - 12 * 3600),
        ("today", NOW_S - 12 * 3600),
        ("now", NOW_S),
        ("7d", NOW_S - 7 * 86400),
        ("90 m", NOW_S - 5400),
        ("2w", NOW_S - 14 * 86400),
    ],
)
def test_a_time_in_the_past(typed: str, instant: float) -> None:
    assert instant_s(typed, now_s=NOW_S) == instant


def test_a_time_ahead() -> None:
    assert instant_s("90d", now_s=NOW_S, ahead=True) == NOW_S + 90 * 86400


@pytest.mark.parametrize("typed", ["", "soon", "2026-13-01", "7 days", "-7d", "7"])
def test_what_is_no_time_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match="is no time; write 2026-12-01, 2026-12-01T08:00"):
        instant_s(typed, now_s=NOW_S)


def test_a_length_of_time() -> None:
    assert [length_s(text) for text in ("90d", "12h", "0s", "x", "1.5h")] == [7_776_000.0, 43_200.0, 0.0, None, None]


def test_a_day_is_shown_without_its_midnight() -> None:
    assert [shown(NOW_S), shown(NOW_S - 12 * 3600), shown(None), shown(None, none="never")] == [
        "2026-11-30 12:00:00Z",
        "2026-11-30",
        "-",
        "never",
    ]
    assert [shown(1e30), iso(NOW_S), iso(None)] == ["-", "2026-11-30T12:00:00Z", None]


def test_spans_inside_a_request_have_three_digits() -> None:
    assert [brief(s) for s in (0.0, 0.000_25, 0.012_44, 0.9994, 2.31, 61.5)] == [
        "0 ms",
        "0.25 ms",
        "12.4 ms",
        "999 ms",
        "2,310 ms",
        "61,500 ms",
    ]
