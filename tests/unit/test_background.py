"""What goes on beside the requests outlasts errors that nobody foresaw, and tells of them."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from drivetrain.background import each, lasting, survived
from drivetrain.cli.compose import Runtime, assemble
from drivetrain.cli.steering import Steering
from drivetrain.config import Config
from drivetrain.errors import StoreAway
from drivetrain.gateway.pool import Pool
from drivetrain.gateway.residence import Residence
from drivetrain.gateway.shadow import Shadows
from drivetrain.quota.memory import MemoryQuota
from drivetrain.server.answer import Heartbeat
from drivetrain.store.directory import Directory
from drivetrain.telemetry import Logs

pytestmark = pytest.mark.anyio


class Work:
    """Breaks so many times, then ends."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.paused_s: list[float] = []

    async def run(self) -> None:
        if self.left:
            self.left -= 1
            raise LookupError(f"{self.left} left")

    async def pause(self, seconds: float) -> None:
        self.paused_s.append(seconds)


async def test_what_breaks_begins_anew_after_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(5)
    await lasting("the clock", work.run, pauses_s=(1.0, 6.0), sleep=work.pause)
    assert work.paused_s == [1.0, 2.0, 4.0, 6.0, 6.0]
    assert caplog.messages == ["the clock: an error that nobody foresaw; the rest goes on"] * 5
    assert "LookupError: 4 left" in caplog.text


async def test_after_a_good_while_pauses_are_short_again() -> None:
    work, hours = Work(3), count(0.0, 3600.0)
    await lasting("the clock", work.run, pauses_s=(1.0, 60.0), sleep=work.pause, clock=lambda: next(hours))
    assert work.paused_s == [1.0] * 3


async def test_what_pauses_when_the_end_comes_has_one_last_try() -> None:
    work = Work(5)
    await lasting("the clock", work.run, sleep=work.pause, ended=lambda: len(work.paused_s) == 2)
    assert (work.left, work.paused_s) == (2, [1.0, 2.0])
    await lasting("the clock", work.run, sleep=work.pause, ended=lambda: True)
    assert (work.left, work.paused_s) == (1, [1.0, 2.0])


async def test_who_is_cancelled_ends() -> None:
    running = asyncio.ensure_future(lasting("the clock", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_is_done_once_tells_whether_it_went_well() -> None:
    work = Work(1)
    assert [await survived("the clock", work.run) for _ in range(2)] == [False, True]


def test_the_work_is_done_for_each_whatever_becomes_of_another() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number % 2:
            raise ValueError(number)
        done.append(number)

    with pytest.raises(ExceptionGroup) as caught:
        each(range(5), work)
    assert [str(error) for error in caught.value.exceptions] == ["1", "3"]
    assert done == [0, 2, 4]


def test_what_was_foreseen_ends_it_for_all() -> None:
    def work(number: int) -> None:
        raise StoreAway(f"{number}")

    with pytest.raises(StoreAway, match="0"):
        each(range(5), work)


# --- all that a server does beside the requests -----------------------------------------------------------------------

BESIDE: Sequence[tuple[type, str]] = (
    (Pool, "run"),
    (Residence, "run"),
    (Shadows, "run"),
    (Heartbeat, "run"),
    (Runtime, "keep_up"),
    (Directory, "run"),
    (MemoryQuota, "run"),
    (Runtime, "watch"),
    (Steering, "run"),
)


async def test_an_error_in_anything_a_server_does_beside_the_requests_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    back: dict[str, asyncio.Event] = {}
    for owner, method in BESIDE:
        name = f"{owner.__name__}.{method}"
        back[name] = asyncio.Event()
        monkeypatch.setattr(owner, method, breaking_once(getattr(owner, method), name, back[name]))
    async with assemble(tmp_path, Config(), Logs()), asyncio.timeout(30):
        for event in back.values():
            await event.wait()
    assert {name for name in back if f"broke: {name}\n" in caplog.text} == back.keys()


def breaking_once(work: Callable[[Any], Any], name: str, again: asyncio.Event) -> Callable[[Any], Any]:
    broken = False

    async def run(self: Any) -> None:
        nonlocal broken
        if not broken:
            broken = True
            raise LookupError(f"broke: {name}")
        again.set()
        await work(self)

    return run
