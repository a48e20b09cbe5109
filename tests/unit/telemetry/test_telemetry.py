"""Telemetry: one value handed in reaches everybody whom it concerns."""

import io
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from drivetrain.governance import Attempt
from drivetrain.telemetry import Logs, Telemetry, prepare
from drivetrain.types import Notice

pytestmark = pytest.mark.anyio

ATTEMPT = Attempt(
    id="01J",
    request_id="req_1",
    position=1,
    started_s=1.0,
    dialect="ollama.chat",
    model="m",
    engine="local",
    engine_model="m",
    stream=True,
    outcome="ok",
    status=200,
)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def rows() -> list[Attempt]:
    return []


@pytest.fixture
def telemetry(tmp_path: Path, stream: io.StringIO, rows: list[Attempt]) -> Iterator[Telemetry]:
    logs = Logs(stream=stream)
    logs.install()
    telemetry = Telemetry(tmp_path, logs, account=rows.append)
    yield telemetry
    telemetry.close()
    logs.close()


def scraped(telemetry: Telemetry) -> str:
    return telemetry.metrics.render()[1].decode()


def test_an_attempt_is_counted_at_once_and_accounted(telemetry: Telemetry, rows: list[Attempt]) -> None:
    telemetry.attempt(ATTEMPT)
    assert rows == [ATTEMPT]
    assert 'drivetrain_requests_total{dialect="ollama.chat",' in scraped(telemetry)


def test_what_the_ledger_took_up_is_logged_and_its_state_shown(telemetry: Telemetry, stream: io.StringIO) -> None:
    telemetry.drained([ATTEMPT], 4, 1)
    assert msgspec.json.decode(stream.getvalue())["event"] == "attempt"
    assert "drivetrain_ledger_backlog_rows 4.0" in scraped(telemetry)
    assert "drivetrain_ledger_lost_rows 1.0" in scraped(telemetry)


async def test_a_notice_reaches_listeners_counters_and_the_log(telemetry: Telemetry, stream: io.StringIO) -> None:
    with telemetry.notices.subscribe() as listener:
        telemetry.notify(Notice(name="model.ready", model="m", engine="local"))
        assert (await listener.next()).notice.name == "model.ready"
    assert 'drivetrain_models_loaded{engine="local"} 1.0' in scraped(telemetry)
    line = msgspec.json.decode(stream.getvalue())
    assert (line["event"], line["level"], line["model"], line["engine"]) == ("model.ready", "info", "m", "local")


def test_trouble_is_a_warning_and_progress_is_not_logged(telemetry: Telemetry, stream: io.StringIO) -> None:
    telemetry.notify(Notice(name="download.progress", model="m", completed=1, total=2))
    telemetry.notify(Notice(name="model.loading", model="m", fraction=0.5))
    telemetry.notify(Notice(name="engine.down", engine="e", error="no answer"))
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["error"]) for line in lines] == [
        ("engine.down", "warning", "no answer")
    ]


def test_requests_in_flight_and_in_the_queue_are_shown(telemetry: Telemetry) -> None:
    telemetry.enter()
    telemetry.enqueue()
    assert "drivetrain_requests_in_flight 1.0" in scraped(telemetry)
    assert "drivetrain_requests_queued 1.0" in scraped(telemetry)
    telemetry.dequeue()
    telemetry.leave()
    assert "drivetrain_requests_in_flight 0.0" in scraped(telemetry)
    assert "drivetrain_requests_queued 0.0" in scraped(telemetry)


def test_a_server_that_starts_counts_from_zero(tmp_path: Path) -> None:
    logs = Logs(stream=io.StringIO())
    earlier = Telemetry(tmp_path, logs, account=lambda _: None)
    earlier.attempt(ATTEMPT)
    earlier.close()
    prepare(tmp_path)
    later = Telemetry(tmp_path, logs, account=lambda _: None)
    assert "drivetrain_requests_total{" not in scraped(later)
    later.close()


def test_what_is_refused_and_what_cannot_be_reached_is_counted(telemetry: Telemetry) -> None:
    telemetry.refused("tokens")
    telemetry.key_refused(403)
    telemetry.store_away(away=True)
    telemetry.shared_state_away(away=True)
    telemetry.shared_state_away(away=False)
    shown = scraped(telemetry)
    assert 'drivetrain_quota_refusals_total{resource="tokens"} 1.0' in shown
    assert 'drivetrain_keys_refused_total{status="403"} 1.0' in shown
    assert "drivetrain_store_away 1.0" in shown
    assert "drivetrain_shared_state_away 0.0" in shown
