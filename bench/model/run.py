#!/usr/bin/env python3
"""What Drivetrain costs a model of its embedded engine: the same worker asked directly and through the gateway.

    python bench/model/run.py                                  starts a Drivetrain of its own, fetches the model
    python bench/model/run.py --url http://127.0.0.1:11435     uses one that runs and has the model

Direct and through take turns (ABBA), so that a machine that drifts favours neither. Greedy, streamed, a prompt that
no run shares with another, so that no prompt cache helps the second of a pair.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "gateway"))
from figures import write_figures  # noqa: E402
from processes import Failed, Tree, free_port, printed  # noqa: E402

DECODE_RATIO_AT_LEAST = 0.97
ADDED_MS_AT_MOST = 5.0
TIMEOUT_S = 300.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket at a path."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Answer:
    """One streamed answer, as its caller saw it."""

    first_token_ms: float
    tokens: int
    tokens_per_s: float  # decoding alone: from the first token to the last


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that everything is torn down
    try:
        with server(arguments) as url:
            ask(url, arguments.model, "warm up", 8)  # loads the model
            worker = arguments.worker or worker_address(url, arguments.model)
            answers = compare({"direct": worker, "through": url}, arguments)
    except (Failed, OSError, http.client.HTTPException) as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    summary = summarise(answers)
    print(json.dumps(summary, indent=1))
    if arguments.out:
        each = {name: [asdict(answer) for answer in some] for name, some in answers.items()}
        write_figures(arguments.out, "model", {"model": arguments.model, "summary": summary, "answers": each})
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running Drivetrain; by default one is started")
    parser.add_argument(
        "--worker", help="the worker's address, http://… or unix:/…; by default GET /v1/engines tells it"
    )
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--drivetrain", type=Path, default=HERE.parents[1] / ".venv/bin/drivetrain")
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    return parser.parse_args()


@contextmanager
def server(arguments: argparse.Namespace) -> Iterator[str]:
    """The address of a Drivetrain that has the model."""
    if arguments.url:
        yield arguments.url
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-model-") as folder:
        home, command = Path(folder), str(arguments.drivetrain)
        argv = [command, "serve", "--home", folder, "--port", str(port)]
        with Tree(argv, log=home / "serve.log") as tree:
            tree.wait_ready(port, "/healthz", TIMEOUT_S)
            printed([command, "--home", folder, "pull", arguments.model])
            yield f"http://127.0.0.1:{port}"


def connect(address: str) -> http.client.HTTPConnection:
    if address.startswith("unix:"):
        return UnixConnection("/" + address.removeprefix("unix:").lstrip("/"))
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S)


def worker_address(url: str, model: str) -> str:
    """Where the worker that holds the model answers, as `GET /v1/engines` tells."""
    with closing(connect(url)) as connection:
        connection.request("GET", "/v1/engines")
        engines = json.loads(connection.getresponse().read())["data"]
    loaded = [one for engine in engines for one in engine["loaded"]]
    addresses = [one["address"] for one in loaded if one["model"]["id"] == model and one["address"]]
    if not addresses:
        raise Failed(f"GET /v1/engines tells no worker of {model!r}; loaded: {[one['model']['id'] for one in loaded]}")
    return str(addresses[0])


def compare(ways: dict[str, str], arguments: argparse.Namespace) -> dict[str, list[Answer]]:
    answers: dict[str, list[Answer]] = {name: [] for name in ways}
    for address in ways.values():
        ask(address, arguments.model, "warm up again", arguments.tokens)
    for pair in range(arguments.pairs):
        order = list(ways) if pair % 2 == 0 else list(reversed(ways))
        for name in order:
            prompt = f"{pair}{name[0]}: tell a long story about a train that crosses the sea at night."
            answers[name].append(ask(ways[name], arguments.model, prompt, arguments.tokens))
    return answers


def ask(address: str, model: str, prompt: str, tokens: int) -> Answer:
    """Over a connection of its own: llama.cpp's server closes a connection after each stream."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start_s = time.perf_counter()
    with closing(connect(address)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Failed(f"{address} answered {response.status}: {response.read()[:500]!r}")
        times_s, completion_tokens = arrivals(response)
    if len(times_s) < 2:
        raise Failed(f"{len(times_s)} chunks with content are too few to measure")
    decode_s = times_s[-1] - times_s[0]
    return Answer((times_s[0] - start_s) * 1000, completion_tokens, (completion_tokens - 1) / decode_s)


def arrivals(response: http.client.HTTPResponse) -> tuple[list[float], int]:
    """When each chunk with content came, and how many tokens the usage tells (the chunks, where it tells none)."""
    times_s, tokens = [], 0
    while line := response.readline():
        at_s = time.perf_counter()
        if not line.startswith(b"data: {"):
            continue
        chunk: dict[str, Any] = json.loads(line[6:])
        if chunk.get("usage"):
            tokens = int(chunk["usage"]["completion_tokens"])
        if chunk.get("choices") and chunk["choices"][0]["delta"].get("content"):
            times_s.append(at_s)
    return times_s, tokens or len(times_s)


def summarise(answers: dict[str, list[Answer]]) -> dict[str, Any]:
    """Medians over pairs of neighbours in time, with their quartiles: on a busy machine the noise is larger than us."""
    pairs = list(zip(answers["direct"], answers["through"], strict=True))
    ratios = statistics.quantiles((through.tokens_per_s / direct.tokens_per_s for direct, through in pairs), n=4)
    added_ms = statistics.quantiles((through.first_token_ms - direct.first_token_ms for direct, through in pairs), n=4)
    return {
        "decode_tokens_per_s": {name: median(one.tokens_per_s for one in some) for name, some in answers.items()},
        "decode_ratio": rounded(ratios),
        f"decode ratio at least {DECODE_RATIO_AT_LEAST}": "met" if ratios[1] >= DECODE_RATIO_AT_LEAST else "MISSED",
        "first_token_p50_ms": {name: median(one.first_token_ms for one in some) for name, some in answers.items()},
        "first_token_added_ms": rounded(added_ms),
        f"first token at most {ADDED_MS_AT_MOST:g} ms later": "met" if added_ms[1] <= ADDED_MS_AT_MOST else "MISSED",
    }


def median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def rounded(quartiles: list[float]) -> dict[str, float]:
    return dict(zip(("q1", "median", "q3"), (round(value, 4) for value in quartiles), strict=True))


if __name__ == "__main__":
    sys.exit(main())
