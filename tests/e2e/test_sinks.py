"""The process of the sinks: kept at work by its owner, one of several exporting; and no sink holds up another."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from drivetrain.cli.exports import exporting
from drivetrain.config.schema import Config, Sink
from drivetrain.config.schema import Store as StoreSection
from drivetrain.errors import BadRequest
from drivetrain.store import Store
from drivetrain.telemetry import Metrics, metrics_folder
from tests.fakes.exports import attempt
from tests.fakes.receiver import Receiver, receiving
from tests.kin import ended, under
from tests.listening import free_port

SOON_S = 60.0


class Home:
    """A home with rows in its store."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url
        self._store = Store.open(url, path)
        self._rows = 0

    def came(self, rows: int) -> None:
        """They are in the store, as the ledger's thread puts them there."""
        way_in = self._store.rows()
        way_in.insert([attempt(number) for number in range(self._rows + 1, self._rows + rows + 1)])
        way_in.close()
        self._rows += rows

    def config(self, **sinks: Sink) -> Config:
        return Config(store=StoreSection(url=self.url), sinks=sinks)

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.path / "usage").rglob("*.parquet"))

    def numbers(self) -> set[int]:
        """Of the rows that are in files, as these are named."""
        ranges = [name.removesuffix(".parquet").split("-") for name in self.files()]
        return {number for first, last in ranges for number in range(int(first), int(last) + 1)}

    def metrics(self) -> str:
        reader = Metrics(metrics_folder(self.path))
        try:
            return reader.render()[1].decode()
        finally:
            reader.close()

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def home(tmp_path: Path, store_url: str) -> Iterator[Home]:
    one = Home(tmp_path, store_url)
    yield one
    one.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(0.05)


def hook(url: str, **more: Any) -> Sink:
    return Sink(kind="webhook", url=url, **{"every_s": 0.1} | more)


FILES = Sink(kind="parquet", path="usage", every_s=0.1)


def ids(receiver: Receiver) -> list[str]:
    return [msgspec.json.decode(line)["id"] for posted in receiver.taken for line in posted.body.splitlines()]


def expected(first: int, last: int) -> list[str]:
    return [attempt(number).id for number in range(first, last + 1)]


def children() -> list[psutil.Process]:
    return under(word="drivetrain.cli.sinks")


async def test_a_sink_that_is_down_loses_nothing_and_holds_up_no_other(home: Home) -> None:
    port = free_port()
    config = home.config(hook=hook(f"http://127.0.0.1:{port}/"), files=FILES)
    home.came(1)
    async with exporting(home.path, config):
        await until(lambda: home.files() == ["000000000001-000000000001.parquet"])
        await until(lambda: 'sink_rows_total{sink="files"} 1.0' in home.metrics())
        home.came(500)
        await until(lambda: 'sink_rows_total{sink="files"} 501.0' in home.metrics())
        await until(lambda: 'sink_lag_rows{sink="hook"} 500.0' in home.metrics())
        assert 'sink_lag_rows{sink="files"} 0.0' in home.metrics()
        with receiving(port) as receiver:
            await until(lambda: len(ids(receiver)) == 500)
            assert ids(receiver) == expected(2, 501)  # those that came after the sink was first seen
            await until(lambda: 'sink_lag_rows{sink="hook"} 0.0' in home.metrics())


async def test_a_process_that_was_killed_is_started_again_and_goes_on(home: Home) -> None:
    with receiving() as receiver:
        async with exporting(home.path, home.config(hook=hook(receiver.url), files=FILES)):
            await until(lambda: 'sink_lag_rows{sink="hook"}' in home.metrics())
            home.came(3)
            await until(lambda: ids(receiver) == expected(1, 3))
            (child,) = children()
            child.kill()
            home.came(2)
            await until(lambda: ids(receiver)[-2:] == expected(4, 5))
            await until(lambda: home.numbers() == {1, 2, 3, 4, 5})  # in one file, if it was killed before the first
    assert sorted(set(ids(receiver))) == expected(1, 5)
    assert children() == []


async def test_of_two_servers_one_exports_and_the_other_takes_over(home: Home) -> None:
    with receiving() as receiver:
        config = home.config(hook=hook(receiver.url))
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(exporting(home.path, config))
            await until(lambda: 'sink_lag_rows{sink="hook"}' in home.metrics())
            second = await stack.enter_async_context(exporting(home.path, config))
            home.came(4)
            await until(lambda: ids(receiver) == expected(1, 4))
            first.stop()
            home.came(4)
            await until(lambda: len(ids(receiver)) == 8)
            home.came(4)
            await until(lambda: len(ids(receiver)) == 12)
            second.stop()
    assert ids(receiver) == expected(1, 12)


async def test_rows_of_the_last_moment_go_out_before_the_end(home: Home) -> None:
    with receiving() as receiver:
        async with exporting(home.path, home.config(hook=hook(receiver.url, every_s=3600.0))):
            await until(lambda: 'sink_lag_rows{sink="hook"}' in home.metrics())
            home.came(3)
        assert ids(receiver) == expected(1, 3)


async def test_a_new_configuration_is_a_new_process_and_the_same_one_is_not(home: Home) -> None:
    with receiving() as old, receiving() as new:
        config = home.config(hook=hook(old.url, headers={"authorization": "Bearer t0p-secret"}))
        async with exporting(home.path, config) as exporter:
            await until(lambda: 'sink_lag_rows{sink="hook"}' in home.metrics())
            (child,) = children()
            assert "t0p-secret" not in " ".join(child.cmdline())
            exporter.configure(config)
            home.came(1)
            await until(lambda: ids(old) == expected(1, 1))
            assert children() == [child]
            exporter.configure(home.config(hook=hook(new.url)))
            await until(lambda: ended(child))  # what comes before, it sends to the old place at its end
            home.came(1)
            await until(lambda: ids(new) == expected(2, 2))
            exporter.configure(home.config())
            await until(lambda: children() == [])


async def test_what_is_not_installed_is_told_at_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.sinks.kinds._installed", lambda module: module != "pyarrow")
    with pytest.raises(BadRequest, match=r"sinks\.files.*needs pyarrow.*drivetrain\[parquet\]"):
        async with exporting(home.path, home.config(files=FILES)):
            raise AssertionError("it started")


async def test_what_goes_wrong_beside_the_sinks_is_told_as_it_is(home: Home) -> None:
    with pytest.raises(BadRequest, match=r"^as it was$"):
        async with exporting(home.path, home.config(files=FILES)):
            raise BadRequest("as it was")
    assert children() == []
