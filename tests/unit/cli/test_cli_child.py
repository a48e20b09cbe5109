"""A process that is kept at work: by workers of a server and by the process of its sinks."""

import asyncio
import errno
import signal
from asyncio.subprocess import Process
from collections.abc import Callable

import pytest

from drivetrain.cli.child import Child

pytestmark = pytest.mark.anyio
LASTING = ("cat",)  # as long as its standard input is open


class Nursery:
    """Starts one command after the other, the last of them again and again."""

    def __init__(self, *commands: tuple[str, ...] | OSError | None) -> None:
        self.begun: list[Process] = []
        self.asked = 0
        self.after: Callable[[], None] = lambda: None  # called between the start of a process and its being known
        self.changed = asyncio.Event()
        self._commands = list(commands)

    async def start(self) -> Process | None:
        command = self._commands[min(self.asked, len(self._commands) - 1)]
        self.asked += 1
        self.changed.set()
        if isinstance(command, OSError):
            raise command
        if command is None:
            return None
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        self.begun.append(process)
        self.after()
        return process

    async def until(self, asked: int) -> None:
        while self.asked < asked:
            self.changed.clear()
            await self.changed.wait()


async def test_what_ends_is_started_again_and_what_is_told_to_stop_is_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.cli.child.LEAST_S", 0.001)
    nursery = Nursery(("sh", "-c", "exit 3"), LASTING)
    child = Child("worker 0", nursery.start, most_s=10)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(child.run())
        await nursery.until(2)
        child.stop()
    assert [process.returncode for process in nursery.begun] == [3, -signal.SIGTERM]
    assert caplog.messages == ["worker 0 ended with status 3 and is started again"]


async def test_a_pause_ends_when_it_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.cli.child.LEAST_S", 1e6)
    nursery = Nursery(("true",))
    child = Child("worker 0", nursery.start, most_s=1e9)
    running = asyncio.ensure_future(child.run())
    await nursery.until(1)
    while not nursery.begun:
        await asyncio.sleep(0)
    await nursery.begun[0].wait()
    child.stop()
    await asyncio.wait_for(running, 20)
    assert nursery.asked == 1


async def test_a_process_that_was_being_started_when_all_stopped_ends_too() -> None:
    nursery = Nursery(LASTING)
    child = Child("worker 0", nursery.start, most_s=10)
    nursery.after = child.stop
    await asyncio.wait_for(child.run(), 20)
    assert [process.returncode for process in nursery.begun] == [-signal.SIGTERM]


async def test_one_that_cannot_be_started_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.cli.child.LEAST_S", 0.001)
    nursery = Nursery(OSError(errno.EAGAIN, "no more processes"), LASTING)
    child = Child("worker 0", nursery.start, most_s=10)
    nursery.after = child.stop
    await asyncio.wait_for(child.run(), 20)
    assert len(nursery.begun) == 1
    assert caplog.messages == ["worker 0 could not be started (no more processes) and is started again"]


async def test_where_none_is_wanted_it_waits_for_news() -> None:
    nursery = Nursery(None, LASTING)
    child = Child("the process of the sinks", nursery.start, most_s=10)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(child.run())
        await nursery.until(1)
        child.renew()
        await nursery.until(2)
        child.stop()
    assert [process.returncode for process in nursery.begun] == [-signal.SIGTERM]
