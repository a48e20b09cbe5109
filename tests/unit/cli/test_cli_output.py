"""How sizes, times and progress look."""

import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from drivetrain.cli import output
from tests.unit.cli.kit import Play, Terminal
from tests.unit.cli.screen import Screen
from tests.unit.cli.standin import Answer

RUN = "import sys; from drivetrain.cli import main; sys.exit(main())"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1500, "1.5 kB"),
        (99_940, "99.9 kB"),
        (144_811_456, "145 MB"),
        (999_600_000, "1 GB"),
        (4_700_000_000, "4.7 GB"),
        (2_500_000_000_000, "2.5 TB"),
    ],
)
def test_sizes_have_three_digits(count: int, shown: str) -> None:
    assert output.size(count) == shown


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2026-01-01T00:00:00Z", "0 seconds ago"),
        ("2025-12-31T23:59:59Z", "1 second ago"),
        ("2025-12-31T22:00:00Z", "2 hours ago"),
        ("2025-12-30T00:00:00.123456789Z", "1 day ago"),
        ("2026-01-01T00:04:59Z", "4 minutes from now"),
        ("2026-01-01T02:05:00+02:00", "5 minutes from now"),
        ("2318-01-01T00:00:00Z", "forever"),
        ("soon", "-"),
    ],
)
def test_times_are_told_from_now(moment: str, shown: str) -> None:
    assert output.when(moment, now=NOW) == shown


def test_a_terminal_shows_bars(drivetrain: Terminal, play: Play) -> None:
    transfer = {"status": "pulling abc", "digest": "sha256:abc", "total": 2_000_000}
    frames = [transfer | {"completed": 1_000_000}, transfer | {"completed": 2_000_000}, {"status": "success"}]
    play({"POST /v1/models": (200, [{"status": "pulling manifest"}, *frames])})
    with Screen([sys.executable, "-c", RUN, "pull", "m", "--home", str(drivetrain.home)], os.environ) as screen:
        screen.wait_for("pulling manifest")
        screen.wait_for("success")
        assert "2.0/2.0 MB" in screen.wait_for("2.0/2.0 MB")
        assert screen.exit_code() == 0


def test_a_terminal_shows_that_a_model_is_loading(drivetrain: Terminal, play: Play) -> None:
    loaded = threading.Event()

    def frames() -> Iterator[Any]:
        loaded.wait(30)
        yield {"message": {"role": "assistant", "content": "hi"}, "done": False}
        yield {"message": {"role": "assistant", "content": ""}, "done": True}

    def answer(body: Any) -> Answer:
        return 200, frames()

    play({"POST /api/chat": answer})
    words = [sys.executable, "-c", RUN, "run", "m", "hello", "--home", str(drivetrain.home)]
    with Screen(words, os.environ) as screen:
        screen.wait_for("⠋ loading m")
        loaded.set()
        assert screen.wait_for("hi\n").endswith("\r\x1b[Khi\n")  # it vanishes when the answer comes
        assert screen.exit_code() == 0
