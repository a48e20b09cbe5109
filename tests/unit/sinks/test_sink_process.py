"""All sinks in one process: what breaks one of them breaks no other."""

import asyncio
from pathlib import Path

import pytest

from drivetrain.config.schema import Sink
from drivetrain.sinks import process
from drivetrain.sinks.export import Standing
from drivetrain.sinks.process import Exports, Orders
from drivetrain.store import Store
from drivetrain.store.exporting import Rows
from tests.fakes.exports import attempt


async def test_a_checkpoint_that_cannot_be_read_stops_its_own_sink_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "sqlite:///state/drivetrain.db"
    store = Store.open(url, tmp_path)
    way_in = store.rows()
    way_in.insert([attempt(number) for number in range(1, 8)])
    way_in.close()
    Rows(store).check("broken", 0, "no JSON", was=None)
    told, taken = list[Standing](), asyncio.Event()

    def tell(standing: Standing) -> None:
        told.append(standing)
        if standing.taken:
            taken.set()

    sinks = {name: Sink(kind="parquet", path=name, every_s=0.1) for name in ("broken", "whole")}
    exports = Exports(Orders(home=str(tmp_path), store=url, sinks=sinks), tell)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(exports.run())
        await taken.wait()
        exports.stop()
    assert {standing.name for standing in told if standing.taken} == {"whole"}
    assert sum(standing.taken for standing in told) == 7
    assert Rows(store).checkpoint("broken") == "no JSON"
    assert "sink broken: an error that nobody foresaw; the rest goes on" in caplog.messages
    store.close()


class Watched(Exports):
    """Tells when something pauses that broke."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders, lambda standing: None)
        self.pausing = asyncio.Event()

    async def _pause(self, seconds: float) -> None:
        if seconds == process.AGAIN_S:
            self.pausing.set()
        await super()._pause(seconds)


async def test_a_broken_sink_that_pauses_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LAST_S", 3600.0)
    monkeypatch.setattr(process, "AGAIN_S", 1800.0)
    url = "sqlite:///state/drivetrain.db"
    store = Store.open(url, tmp_path)
    Rows(store).check("broken", 0, "no JSON", was=None)
    store.close()
    orders = Orders(home=str(tmp_path), store=url, sinks={"broken": Sink(kind="parquet", path="broken", every_s=0.1)})
    exports = Watched(orders)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(exports.run())
        await exports.pausing.wait()
        exports.stop()
