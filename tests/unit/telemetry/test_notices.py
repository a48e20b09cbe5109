"""Lifecycle events: telling never waits, listeners see everything in order or are told that they did not."""

import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import msgspec
import pytest

from drivetrain.telemetry.notices import EVENTS, KEEP_ALIVE, Entry, Listener, Notices, alias, encode, last_event_id
from drivetrain.types import Notice

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def notices() -> Notices:
    return Notices(Clock(), kept=4, buffer=3)


def ready(model: str) -> Notice:
    return Notice(name="model.ready", model=model)


async def take(listener: Listener, number: int) -> list[str]:
    with anyio.fail_after(5):
        seen = [(await listener.next()).notice for _ in range(number)]
    return [notice.model or notice.name for notice in seen]


async def test_a_listener_hears_what_is_told_after_it_came(notices: Notices) -> None:
    notices.publish(ready("before"))
    with notices.subscribe() as listener:
        notices.publish(ready("a"))
        notices.publish(ready("b"))
        assert await take(listener, 2) == ["a", "b"]


async def test_a_notice_without_a_time_gets_one(notices: Notices) -> None:
    assert notices.publish(ready("a")).notice.at_s == 1000.0
    assert notices.publish(Notice(name="model.ready", at_s=7.0)).notice.at_s == 7.0


async def test_ids_grow_though_the_clock_stands_still_or_goes_back() -> None:
    clock = Clock()
    notices = Notices(clock)
    ids = [notices.publish(ready("a")).id for _ in range(3)]
    clock.now_s = 900.0
    ids.append(notices.publish(ready("a")).id)
    assert ids == [1_000_000_000, 1_000_000_001, 1_000_000_002, 1_000_000_003]


async def test_a_slow_listener_loses_the_oldest_and_is_told(notices: Notices) -> None:
    with notices.subscribe() as slow:
        for name in "abcde":
            notices.publish(ready(name))
        assert await take(slow, 4) == ["lagged", "c", "d", "e"]
        notices.publish(ready("f"))
        assert await take(slow, 1) == ["f"]


async def test_a_slow_listener_does_not_hold_up_the_others(notices: Notices) -> None:
    with notices.subscribe(), notices.subscribe() as quick:
        for name in "abcde":
            notices.publish(ready(name))
            assert await take(quick, 1) == [name]


async def test_who_comes_back_hears_what_it_missed(notices: Notices) -> None:
    first, *_ = [notices.publish(ready(name)) for name in "abc"]
    with notices.subscribe(last_id=first.id) as listener:
        notices.publish(ready("d"))
        assert await take(listener, 3) == ["b", "c", "d"]


async def test_who_was_away_too_long_is_told_that_something_is_missing() -> None:
    notices = Notices(Clock(), kept=3)
    first, *_ = [notices.publish(ready(name)) for name in "abcde"]
    with notices.subscribe(last_id=first.id) as listener:
        assert await take(listener, 4) == ["lagged", "c", "d", "e"]


async def test_ids_of_an_earlier_run_of_the_server_are_older_than_ours(notices: Notices) -> None:
    notices.publish(ready("a"))
    with notices.subscribe(last_id=999_999_999) as listener:
        assert await take(listener, 1) == ["a"]


async def test_a_notice_can_come_from_any_thread(notices: Notices) -> None:
    with notices.subscribe() as listener:
        thread = threading.Thread(target=notices.publish, args=(ready("a"),))
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, thread.start)
            assert await take(listener, 1) == ["a"]
        thread.join()


async def test_a_listener_that_leaves_is_forgotten(notices: Notices) -> None:
    with notices.subscribe():
        assert notices.listeners == 1
    assert notices.listeners == 0
    async with aclosing(notices.stream(keep_alive_s=0.001)) as frames:
        assert await anext(frames) == KEEP_ALIVE
        assert notices.listeners == 1
    assert notices.listeners == 0


async def first_frame(frames: AsyncGenerator[bytes, None]) -> bytes:
    """After the comment that opens the stream."""
    async with aclosing(frames):
        with anyio.fail_after(5):
            assert await anext(frames) == KEEP_ALIVE
            return await anext(frames)


async def test_the_stream_is_frames_with_ids_and_comments_in_silence(notices: Notices) -> None:
    entry = notices.publish(ready("a"))
    frame = await first_frame(notices.stream(entry.id - 1))
    assert frame == (
        b"id: 1000000000\nevent: model.ready\n"
        b'data: {"name":"model.ready","model":"a","at_s":1000.0,"alias":"OnModelReady"}\n\n'
    )
    assert await first_frame(notices.stream(entry.id, keep_alive_s=0.001)) == b": keep-alive\n\n"


async def test_a_client_of_jan_hears_jans_names_and_only_events_that_have_one(notices: Notices) -> None:
    before = notices.publish(Notice(name="config.refused", error="no")).id - 1
    notices.publish(Notice(name="model.loading", model="a", fraction=0.5))
    notices.publish(ready("a"))
    frame = await first_frame(notices.stream(before, naming="jan"))
    assert frame.split(b"\n")[1] == b"event: OnModelReady"


@pytest.mark.parametrize(
    ("notice", "name"),
    [
        (Notice(name="model.loading", model="a"), "OnModelInit"),
        (Notice(name="model.loading", model="a", fraction=0.0), None),
        (Notice(name="model.loading", model="a", fraction=0.5), None),
        (Notice(name="model.ready", model="a"), "OnModelReady"),
        (Notice(name="model.failed", model="a", error="out of memory"), "OnModelFail"),
        (Notice(name="model.unloading", model="a"), "OnModelStop"),
        (Notice(name="model.unloaded", model="a"), "OnModelStopped"),
        (Notice(name="models.updated"), "OnModelsUpdate"),
        (Notice(name="engine.up", engine="e"), "OnEngineUpdate"),
        (Notice(name="engine.down", engine="e"), "OnEngineUpdate"),
        (Notice(name="config.updated"), "OnConfigurationUpdate"),
        (Notice(name="download.started"), "DownloadStarted"),
        (Notice(name="download.progress"), "DownloadUpdated"),
        (Notice(name="download.done"), "DownloadSuccess"),
        (Notice(name="download.failed"), "DownloadError"),
        (Notice(name="download.stopped"), "DownloadStopped"),
        (Notice(name="something.else"), None),
    ],
)
def test_jans_names(notice: Notice, name: str | None) -> None:
    assert alias(notice) == name


def test_a_text_cannot_break_the_framing() -> None:
    frame = encode(Entry(1, Notice(name="model.failed", model="a", error="one\n\ndata: two\r\nthree")))
    lines = frame.decode().split("\n")
    assert [line.split(":")[0] for line in lines] == ["id", "event", "data", "", ""]
    assert msgspec.json.decode(lines[2].removeprefix("data: "))["error"] == "one\n\ndata: two\r\nthree"


@pytest.mark.parametrize(
    ("header", "id"), [("12", 12), (None, None), ("", None), ("abc", None), ("-1", None), ("１２", None)]
)
def test_an_id_that_is_not_ours_counts_as_none(header: str | None, id: int | None) -> None:
    assert last_event_id(header) == id


def test_every_event_has_a_meaning() -> None:
    assert all(kind.meaning.endswith(".") for kind in EVENTS.values())
