"""Several watch one piece of work; it runs once, and stops when the last of them leaves."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest

from drivetrain.errors import NotFound
from drivetrain.library.flight import Flight, Report
from drivetrain.library.status import Status

pytestmark = pytest.mark.anyio


class Work:
    """Reports a step, waits to be let on, reports the end."""

    def __init__(self) -> None:
        self.started = 0
        self.stopped = False
        self.go = anyio.Event()

    async def __call__(self, report: Report) -> None:
        self.started += 1
        report(Status(status="begun"))
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.stopped = True
            raise
        for completed in range(100):
            report(Status(status="moving", digest="sha256:x", total=99, completed=completed))
        report(Status(status="success"))


async def words(statuses: AsyncGenerator[Status, None]) -> list[str]:
    async with aclosing(statuses):
        return [status.status async for status in statuses]


async def test_two_watchers_share_one_run() -> None:
    work = Work()
    flight = Flight(work)
    told: list[list[str]] = []

    async def watch() -> None:
        told.append(await words(flight.watch()))

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        group.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        work.go.set()
    assert work.started == 1
    assert told == [["begun", "moving", "success"]] * 2  # the newest number of each step, and every step


async def test_a_late_watcher_sees_what_has_been() -> None:
    work = Work()
    flight = Flight(work)
    early = flight.watch()
    assert (await anext(early)).status == "begun"
    work.go.set()
    assert await words(flight.watch()) == ["begun", "moving", "success"]
    await early.aclose()


async def test_goes_on_while_one_watches_and_stops_with_the_last() -> None:
    work = Work()
    flight = Flight(work)
    first, second = flight.watch(), flight.watch()
    await anext(first)
    await anext(second)
    await first.aclose()
    assert not work.stopped
    await second.aclose()
    assert work.stopped
    assert flight.over


async def test_a_watcher_that_is_cancelled_has_left() -> None:
    work = Work()
    flight = Flight(work)
    async with anyio.create_task_group() as group:
        group.start_soon(words, flight.watch())
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert work.stopped


async def test_every_watcher_is_told_of_the_failure() -> None:
    async def work(report: Report) -> None:
        report(Status(status="begun"))
        raise NotFound("there is no such thing")

    flight = Flight(work)
    first, second = flight.watch(), flight.watch()
    for statuses in (first, second):
        assert (await anext(statuses)).status == "begun"
    for statuses in (first, second):
        with pytest.raises(NotFound, match="no such thing"):
            await anext(statuses)


async def test_a_bug_in_the_work_is_not_swallowed() -> None:
    async def work(report: Report) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await words(Flight(work).watch())
