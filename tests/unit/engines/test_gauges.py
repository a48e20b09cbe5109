"""Metrics pages of engines: how many requests run and wait there, and whether the engine sleeps."""

import pytest

from drivetrain.engines import EngineSettings
from drivetrain.engines.gauges import MOST, Gauges, read
from drivetrain.engines.openai import OpenAI
from drivetrain.types import Health
from tests.fakes import FakeUpstream, Raw, Whole
from tests.fakes.host import NoHost

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/name"} 3.0
vllm:num_requests_running{engine="1",model_name="org/name"} 2.0
vllm:num_requests_waiting{engine="0",model_name="org/name"} 1.0
vllm:num_requests_waiting{engine="1",model_name="a }\\" {b"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:num_requests_running_total 99
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0
"""
ASLEEP = b"""\
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
"""


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (VLLM, Gauges(running=5, waiting=5, awake=True)),
        (ASLEEP, Gauges(awake=False)),
        (b'sglang:num_running_reqs{tp_rank="0"} 7\nsglang:num_queue_reqs 2\n', Gauges(running=7, waiting=2)),
        (b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n", Gauges(running=1, waiting=0)),
        (b"tgi_batch_current_size 4\ntgi_queue_size 1", Gauges(running=4, waiting=1)),
        (b"trtllm_num_requests_running 4\n", Gauges(running=4)),
        (b'vllm:request_success_total{finished_reason="stop"} 7.0\nvllm:request_success_total 1e-\n', Gauges(done=7)),
        (b'vllm:request_success{finished_reason="stop"} 2\nvllm:request_success_created 9\n', Gauges(done=2)),
        (b"", Gauges()),
        (b"up 1\n", Gauges()),
        (b"llamacpp:requests_processing NaN\n", Gauges()),
        (b"llamacpp:requests_processing 1e-\n", Gauges(running=0)),
        (b"llamacpp:requests_processing -3\nllamacpp:requests_deferred 1e300\n", Gauges(running=0, waiting=MOST)),
        (b"llamacpp:requests_processing{" + b'"' * 100_000, Gauges()),
    ],
)
def test_what_a_page_tells(page: bytes, found: Gauges) -> None:
    assert read(page) == found


def engine_at(upstream: FakeUpstream, kind: str = "openai") -> OpenAI:
    return OpenAI("gpu-a", EngineSettings(kind=kind, url=upstream.url), NoHost())


async def test_a_healthy_engine_tells_how_much_it_has_to_do() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/metrics", Whole(body=VLLM))
        engine = engine_at(upstream)
        assert await engine.health() == Health(live=True, ready=True, running=5, waiting=5)
        await engine.aclose()


async def test_a_page_that_is_not_there_is_asked_for_once_while_the_engine_is_up() -> None:
    async with FakeUpstream() as upstream:
        engine = engine_at(upstream, "vllm")
        for _ in range(3):
            assert await engine.health() == Health(live=True, ready=True)
        assert [one.path for one in upstream.requests].count("/metrics") == 1
        assert [one.path for one in upstream.requests].count("/is_sleeping") == 1
        upstream.script("/health", Whole(status=503))
        await engine.health()
        upstream.forget()
        upstream.script("/metrics", Whole(body=VLLM))
        assert (await engine.health()).running == 5
        await engine.aclose()


@pytest.mark.parametrize(
    ("path", "page"), [("/metrics", Whole(body=ASLEEP)), ("/is_sleeping", Whole(body={"is_sleeping": True}))]
)
async def test_a_server_that_sleeps_is_live_and_not_awake(path: str, page: Whole) -> None:
    async with FakeUpstream() as upstream:
        upstream.script(path, page)
        engine = engine_at(upstream, "vllm")
        health = await engine.health()
        assert (health.live, health.ready, health.awake) == (True, False, False)
        upstream.script(path, Whole(body={"is_sleeping": False}))
        assert (await engine.health()).awake
        await engine.aclose()


async def test_metrics_that_do_not_come_hide_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines._remote.PROBE_S", 0.05)
    async with FakeUpstream() as upstream:
        upstream.script("/metrics", Raw(then="stall"))
        engine = engine_at(upstream)
        assert await engine.health() == Health(live=True, ready=True)
        await engine.aclose()
