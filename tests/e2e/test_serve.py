"""`drivetrain serve` as an operator meets it: health, reload, shutdown, workers, events, metrics."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.e2e.servers import MODEL, Server, add_small_model, serving
from tests.fakes.manners import ANSWER, WORDS, openai_frames
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.replies import Stream
from tests.fakes.upstream import FakeUpstream
from tests.kin import commands, ended, under

pytestmark = pytest.mark.anyio
ASK = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}


def routes(url: str, **more: str) -> str:
    """A configuration with the public model `chat` on the engine at `url`."""
    models = {"chat": FAKE, **more}
    entries = "\n".join(f"  {name}: {{targets: [{{engine: box, model: {model}}}]}}" for name, model in models.items())
    return f'engines: {{box: {{kind: openai, url: "{url}"}}}}\nmodels:\n{entries}\n'


@asynccontextmanager
async def streaming(server: Server, upstream: FakeUpstream) -> AsyncGenerator[httpx2.Response, None]:
    """An answer that takes about a second and a half."""
    frames = openai_frames("chat.completion.chunk", WORDS * 50)
    upstream.script("/v1/chat/completions", Stream(frames=frames, pause_s=0.005))
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer,
    ):
        yield answer


# --- the real model -------------------------------------------------------------------------------------------------


async def test_a_models_worker_does_not_hold_the_servers_port(drivetrain: Server) -> None:
    """Else the port would stay taken for as long as a worker outlives its server."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert (await drivetrain.post("/v1/chat/completions", body)).status_code == 200
    [worker] = under(drivetrain.pid, "llamacpp/worker.py")
    assert {connection.laddr for connection in worker.net_connections("tcp")} == set()


async def test_a_model_that_is_put_into_the_folder_answers(drivetrain: Server) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    answer = (await drivetrain.post("/v1/chat/completions", body)).json()
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["model"] == MODEL


async def test_loading_and_unloading_are_told_in_order(tmp_path: Path) -> None:
    add_small_model(tmp_path)
    async with serving(tmp_path) as server, httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        async with client.stream("GET", "/v1/events") as events:
            names = aiter_names(events)
            await server.post("/api/generate", {"model": MODEL})
            await server.post("/api/generate", {"model": MODEL, "keep_alive": 0})
            seen: list[str] = []
            async with asyncio.timeout(30):
                async for name in names:
                    if name.startswith("model.") and name not in seen:
                        seen.append(name)
                    if name == "model.unloaded":
                        break
    assert seen == ["model.loading", "model.ready", "model.unloading", "model.unloaded"]


async def aiter_names(events: httpx2.Response) -> AsyncGenerator[str, None]:
    async for line in events.aiter_lines():
        if line.startswith("event: "):
            yield line.removeprefix("event: ")


# --- health ---------------------------------------------------------------------------------------------------------


async def test_a_fresh_home_is_healthy_and_ready(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert (await server.get("/healthz"))["status"] == "ok"
        assert (await server.get("/readyz"))["status"] == "ready"


async def test_an_engine_that_goes_and_comes_back_is_seen(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        await server.until("/v1/engines", lambda answer: health(answer)["message"] == "")
        upstream.refuse()
        upstream.drop_connections()
        answer = await server.post("/v1/chat/completions", ASK)
        assert answer.status_code == 503
        assert "engine 'box' cannot be reached" in answer.json()["error"]["message"]
        assert not health(await server.get("/v1/engines"))["live"]


def health(engines: Any) -> Any:
    return next(engine["health"] for engine in engines["data"] if engine["name"] == "box")


# --- configuration --------------------------------------------------------------------------------------------------


async def test_sighup_puts_a_new_configuration_in_force_without_a_restart(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        (tmp_path / "drivetrain.yaml").write_text(routes(upstream.url, fresh=FAKE))
        server.signal(signal.SIGHUP)
        await server.until("/v1/models", lambda models: "fresh" in [model["id"] for model in models["data"]])
        assert (await server.post("/v1/chat/completions", {**ASK, "model": "fresh"})).status_code == 200


async def test_a_bad_file_is_refused_with_its_line_and_the_old_one_stays(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        (tmp_path / "drivetrain.yaml").write_text(routes(upstream.url) + "serverr: {port: 1}\n")
        server.signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while "the old one stays" not in server.log:
                await asyncio.sleep(0.02)
        assert "drivetrain.yaml:4:1" in server.log
        assert (await server.post("/v1/chat/completions", ASK)).status_code == 200


async def test_so_is_one_with_an_option_that_an_engines_kind_does_not_take(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        (tmp_path / "drivetrain.yaml").write_text(
            f"engines:\n  box: {{kind: openai, url: '{upstream.url}', idle_s: soon}}\n"
        )
        server.signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while "the old one stays" not in server.log:
                await asyncio.sleep(0.02)
        assert "engines.box.options.idle_s: Expected `float`, got `str`: 'soon'" in server.log
        assert "drivetrain.yaml:2:" in server.log
        assert (await server.post("/v1/chat/completions", ASK)).status_code == 200


async def test_what_a_flag_of_the_command_line_hides_is_refused_as_well(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:  # with --port
        (tmp_path / "drivetrain.yaml").write_text("server:\n  port: abc\n")
        server.signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while "the old one stays" not in server.log:
                await asyncio.sleep(0.02)
        assert "drivetrain.yaml:2:9: server.port: expected an integer" in server.log
        assert "a new configuration is in force" not in server.log
        assert (await server.post("/v1/chat/completions", ASK)).status_code == 200


async def test_a_request_under_way_outlives_the_engine_that_a_new_configuration_drops(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        async with streaming(server, upstream) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            (tmp_path / "drivetrain.yaml").write_text("{}")
            server.signal(signal.SIGHUP)
            await server.until("/v1/engines", lambda engines: len(engines["data"]) == 1)
            assert [line async for line in lines if line][-1] == "data: [DONE]"


# --- shutdown -------------------------------------------------------------------------------------------------------


async def test_sigterm_lets_running_streams_finish_and_ends_cleanly(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        async with streaming(server, upstream) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            server.signal(signal.SIGTERM)
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await server.stopped() == 0
        assert not (tmp_path / "state" / "server.json").exists()


async def test_listeners_of_events_do_not_hold_up_a_shutdown(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
        async with client.stream("GET", "/v1/events") as events:
            chunks = events.aiter_raw()
            await anext(chunks)
            server.signal(signal.SIGTERM)
            assert await server.stopped(10) == 0


async def test_every_answer_is_in_the_ledger_after_a_shutdown(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url)) as server:
        await asyncio.gather(*(server.post("/v1/chat/completions", ASK) for _ in range(20)))
        server.signal(signal.SIGTERM)
        await server.stopped()
    assert rows(tmp_path) == [("chat", "box", "ok", 7, 5)] * 20


def rows(home: Path) -> list[tuple[Any, ...]]:
    import sqlite3
    from contextlib import closing

    query = "SELECT model, engine, outcome, prompt_tokens, completion_tokens FROM attempts ORDER BY id"
    with closing(sqlite3.connect(home / "state" / "drivetrain.db")) as connection:
        return connection.execute(query).fetchall()


async def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path, drivetrain: Server) -> None:
    port = drivetrain.url.rpartition(":")[2]
    with pytest.raises(AssertionError, match=rf"ended with 1: .*cannot listen on 127\.0\.0\.1:{port}: Address already"):
        async with serving(tmp_path, "", "--port", port):
            pass


# --- metrics --------------------------------------------------------------------------------------------------------


async def counted(server: Server) -> float:
    async with httpx2.AsyncClient(base_url=server.url) as client:
        text = (await client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("drivetrain_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_counter_equals_what_callers_counted_whichever_worker_answers(tmp_path: Path, workers: str) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url), "--workers", workers) as server:
        for sent in (10, 20, 30):
            await asyncio.gather(*(server.post("/v1/chat/completions", ASK) for _ in range(10)))
            assert await counted(server) == sent


# --- several workers ------------------------------------------------------------------------------------------------


def descendants(server: Server) -> dict[str, list[psutil.Process]]:
    """The processes under a server: its workers, and the workers of the embedded engine."""
    found: dict[str, list[psutil.Process]] = {"gateway": [], "model": []}
    for process, command in commands(server.pid, recursive=True).items():
        found["gateway" if "drivetrain.cli.worker" in command else "model"].append(process)
    return found


async def test_workers_share_one_copy_of_a_local_model(tmp_path: Path) -> None:
    add_small_model(tmp_path)
    async with serving(tmp_path, "", "--workers", "2") as server:
        body = {"model": MODEL, "messages": ASK["messages"], "max_tokens": 2}
        answers = await asyncio.gather(*(server.post("/v1/chat/completions", body) for _ in range(6)))
        assert [answer.status_code for answer in answers] == [200] * 6
        assert len(descendants(server)["gateway"]) == 2
        assert len(descendants(server)["model"]) == 1


async def test_a_worker_that_dies_is_started_again(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url), "--workers", "2") as server:
        await server.post("/v1/chat/completions", ASK)
        victim = descendants(server)["gateway"][0]
        victim.kill()
        async with asyncio.timeout(15):
            while victim in descendants(server)["gateway"] or len(descendants(server)["gateway"]) < 2:
                await asyncio.sleep(0.05)
        answer = await server.post("/v1/chat/completions", ASK)
        assert answer.json()["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_nothing_outlives_a_server_that_is_killed(tmp_path: Path, workers: str) -> None:
    add_small_model(tmp_path)
    async with serving(tmp_path, "", "--workers", workers) as server:
        await server.post("/api/generate", {"model": MODEL})
        processes = [process for group in descendants(server).values() for process in group]
        assert processes
        os.kill(server.pid, signal.SIGKILL)
        await server.stopped()
        async with asyncio.timeout(10):
            while not all(ended(process) for process in processes):
                await asyncio.sleep(0.05)


async def test_errands_of_workers_go_through_the_owner(tmp_path: Path) -> None:
    add_small_model(tmp_path)
    async with serving(tmp_path, "", "--workers", "2") as server:
        copied = await server.post("/api/copy", {"source": MODEL, "destination": "mine"})
        assert copied.status_code == 200
        tags = await server.get("/api/tags")
        assert sorted(model["name"] for model in tags["models"]) == ["mine:latest", MODEL]
        missing = await server.post("/v1/chat/completions", {**ASK, "model": "nobody"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_sigterm_stops_workers_without_breaking_a_stream(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, routes(upstream.url), "--workers", "2") as server:
        async with streaming(server, upstream) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            server.signal(signal.SIGTERM)
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await server.stopped() == 0
