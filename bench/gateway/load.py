"""Puts load on one running gateway and reads what it costs: wrk for rates, ttft for the arrival of each chunk."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway import BIN, HERE, Running
from processes import Failed, printed

PATH = "/v1/chat/completions"
STREAM_EVENTS = 34
PACE_MS = 10
SETTLE_S = 30.0
Kind = Literal["plain", "stream"]
KINDS: tuple[Kind, ...] = ("plain", "stream")


@dataclass(frozen=True)
class Effort:
    """How long and how often to measure. In each round every gateway is started and measured once, so that a slow
    stretch of the machine falls on one round of several of them, not on all that is measured of one."""

    rounds: int
    run_s: int
    warm_s: int
    pairs: int  # of runs by which two gateways are compared in turns
    first_tokens: int  # zero-delay streams, one after another
    paced: int  # paced streams (0.33 s each), one after another; ten times as many by ten callers


WHOLE = Effort(rounds=2, run_s=4, warm_s=2, pairs=6, first_tokens=100, paced=10)
QUICK = Effort(rounds=1, run_s=2, warm_s=1, pairs=2, first_tokens=50, paced=4)


@dataclass(frozen=True)
class Load:
    kind: Kind
    connections: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_request: float
    failed: int
    upstream_connections: int  # opened during the runs: many means the gateway does not reuse them


@dataclass(frozen=True)
class Spread:
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Delays:
    first_token: Spread  # zero-delay mock, one caller
    paced_first_token: Spread  # one caller; the pace itself is in it
    paced_chunk: Spread  # mock's send → caller's receive, one caller
    paced_chunk_10: Spread  # the same with ten callers
    cpu_us_per_chunk: float  # paced, ten callers
    cpu_us_per_whole: float  # an answer that is not streamed, of an engine that is paced, ten callers


def body(model: str, kind: Kind) -> str:
    """A request of about 250 bytes."""
    return json.dumps(
        {
            "model": model,
            "stream": kind == "stream",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "Tell a short story about a train that crosses the sea at night."},
            ],
            "max_tokens": 64,
            "temperature": 0.7,
        },
        separators=(",", ":"),
    )


def wire_request(model: str, kind: Kind, headers: Sequence[str]) -> bytes:
    """The whole of it as HTTP/1.1, for a caller who works on a socket."""
    text = body(model, kind).encode()
    lines = (f"Content-Length: {len(text)}", "Content-Type: application/json", "Host: 127.0.0.1", *headers)
    return "\r\n".join((f"POST {PATH} HTTP/1.1", *lines, "", "")).encode() + text


def settle(running: Running) -> None:
    """Waits until both kinds of request are answered in full; raises `Failed` with the gateway's last words."""
    deadline = time.monotonic() + SETTLE_S
    last_words: dict[Kind, str] = {"plain": "token-30", "stream": "[DONE]"}
    for kind, last_word in last_words.items():
        while last_word not in (answer := ask(running, kind)):
            if time.monotonic() > deadline:
                raise Failed(f"{kind} request was answered {answer[:500]!r}; log:\n{running.tree.log_tail()}")
            time.sleep(0.1)


def ask(running: Running, kind: Kind) -> str:
    """The whole answer to one request, or what went wrong."""
    headers = dict(header.split(": ", 1) for header in running.headers)
    request = urllib.request.Request(
        f"http://127.0.0.1:{running.port}{PATH}",
        data=body(running.subject.model, kind).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=SETTLE_S) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        return f"{error.code} {str(error.read(), 'utf-8', 'replace')}"
    except OSError as error:
        return str(error)


def measure_load(running: Running, kind: Kind, connections: int, effort: Effort) -> Load:
    """CPU per request counts what reached the mock: wrk gives up what is under way."""
    before, cpu_before = running.mock_stats(), running.tree.cpu_s()
    run = wrk(running, kind, connections, effort.run_s)
    running.tree.wait_idle()
    cpu_s = running.tree.cpu_s() - cpu_before
    after = running.mock_stats()
    requests = after["requests"] - before["requests"]
    return Load(
        kind=kind,
        connections=connections,
        requests_per_s=(run["requests"] - run["failed"]) / run["seconds"],
        p50_ms=run["p50_us"] / 1000,
        p99_ms=run["p99_us"] / 1000,
        cpu_us_per_request=cpu_s * 1e6 / max(requests, 1),
        failed=int(run["failed"]),
        upstream_connections=after["connections"] - before["connections"] - 1,  # less our own question
    )


def measure_delays(running: Running, effort: Effort) -> Delays:
    at_once = ttft(running, 1, effort.first_tokens)
    running.pace(PACE_MS)
    one = ttft(running, 1, effort.paced)
    cpu_before = running.tree.cpu_s()
    ten = ttft(running, 10, effort.paced * 10)
    cpu_s = running.tree.cpu_s() - cpu_before
    whole = measure_load(running, "plain", 10, effort)
    running.pace(0)
    return Delays(
        first_token=spread(at_once["first_token_us"]),
        paced_first_token=spread(one["first_token_us"]),
        paced_chunk=spread(one["transit_us"]),
        paced_chunk_10=spread(ten["transit_us"]),
        cpu_us_per_chunk=cpu_s * 1e6 / (ten["requests"] * STREAM_EVENTS),
        cpu_us_per_whole=whole.cpu_us_per_request,
    )


def spread(samples: Any) -> Spread:
    if samples is None:
        raise Failed("the stream had no content, or its content was not the mock's")
    return Spread(samples["p50"] / 1000, samples["p99"] / 1000)


def wrk(running: Running, kind: Kind, connections: int, seconds: int) -> dict[str, Any]:
    headers = [part for header in running.headers for part in ("-H", header)]
    load = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s", str(HERE / "post.lua")]
    url = f"http://127.0.0.1:{running.port}{PATH}"
    return run_tool([*load, *headers, url], {"BENCH_BODY": body(running.subject.model, kind)})


def ttft(running: Running, connections: int, requests: int) -> dict[str, Any]:
    text = body(running.subject.model, "stream")
    return run_tool(
        [str(BIN / "ttft"), str(running.port), PATH, text, str(connections), str(requests), *running.headers], {}
    )


def run_tool(argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    """The JSON object that a tool prints last."""
    values: dict[str, Any] = json.loads(printed(argv, env=env).splitlines()[-1])
    return values
