#!/usr/bin/env python3
"""What it brings to keep prompts where they were seen: three real llama.cpp workers, with affinity and without.

    python bench/affinity.py
    python bench/affinity.py --out bench/results

Many assistants, each with a long system prompt of its own, have conversations of several turns with a fixed number of
callers at once. Each way to choose gets a server of its own whose workers have seen nothing, and the same conversations
in the same order. Greedy, streamed; cached tokens are what the workers report.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "gateway"))
from figures import write_figures  # noqa: E402
from processes import Failed, Tree, free_port, printed  # noqa: E402

WAYS = ("none", "prefix", "session")
BETTER_AT_LEAST = 1.5  # cached share and mean time to the first token, of affinity by prefix against none
IMBALANCE_AT_MOST = 1.25  # the busiest worker's part of what is going on, in means, over time
TIMEOUT_S = 600.0
TEXT = (
    "the sea was calm and the old ship lay in the harbour while the captain looked for a map of some island where gold "
    "might be found under a tree that nobody but one parrot had ever seen and the crew sang of storms rum and home"
)
WORDS = TEXT.split()


@dataclass(frozen=True)
class Answer:
    """One turn, as its caller saw it."""

    engine: str
    began_s: float
    first_token_s: float
    ended_s: float
    prompt_tokens: int
    cached_tokens: int


class Talk:
    """A conversation: what is said next, and to which assistant."""

    def __init__(self, assistant: int, number: int, arguments: argparse.Namespace) -> None:
        chance = random.Random(assistant)
        self.name = f"{assistant}-{number}"
        said = " ".join(chance.choices(WORDS, k=arguments.words))
        self.messages = [{"role": "system", "content": f"You are assistant {assistant}. {said}"}]
        self._chance = random.Random(1000 * assistant + number)

    def next(self) -> None:
        self.messages.append({"role": "user", "content": " ".join(self._chance.choices(WORDS, k=12))})

    def heard(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text or "…"})


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    results: dict[str, dict[str, float]] = {}
    answers: dict[str, list[Answer]] = {}
    try:
        for way in arguments.ways:
            with server(way, arguments) as port:
                answers[way] = converse(port, arguments)
            results[way] = summary(answers[way], arguments)
            print(way, json.dumps(results[way]))
    except (Failed, OSError, http.client.HTTPException) as error:
        print(f"affinity: {error}", file=sys.stderr)
        return 1
    verdicts = judged(results)
    print(json.dumps(verdicts, indent=1))
    if arguments.out:
        each = {way: [asdict(answer) for answer in some] for way, some in answers.items()}
        workload = {
            name: getattr(arguments, name) for name in ("engines", "assistants", "talks", "turns", "words", "callers")
        }
        values = {"workload": workload, "summary": results, "verdicts": verdicts, "answers": each}
        write_figures(arguments.out, "affinity", values)
    return 0 if all(verdict.startswith("met") for verdict in verdicts.values()) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["none", "prefix"])
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--assistants", type=int, default=24)
    parser.add_argument("--talks", type=int, default=1, help="conversations with each")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--words", type=int, default=300, help="of each system prompt")
    parser.add_argument("--callers", type=int, default=9, help="at once")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--drivetrain", type=Path, default=HERE.parent / ".venv/bin/drivetrain")
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    return parser.parse_args()


@contextmanager
def server(way: str, arguments: argparse.Namespace) -> Iterator[int]:
    """The port of a Drivetrain whose model `chat` is in so many workers, all of them loaded."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-affinity-") as folder:
        home, command = Path(folder), str(arguments.drivetrain)
        names = [f"worker-{number}" for number in range(arguments.engines)]
        config = {
            "engines": {name: {"kind": "llamacpp"} for name in names},
            "models": {
                "chat": {
                    "targets": [{"engine": name, "model": arguments.model} for name in names],
                    "policy": "kept",
                },
                **{name: {"targets": [{"engine": name, "model": arguments.model}]} for name in names},
            },
            "policies": {"kept": {"routing": {"affinity": way}}},
        }
        (home / "drivetrain.yaml").write_text(json.dumps(config))  # JSON is YAML
        with Tree([command, "serve", "--home", folder, "--port", str(port)], log=home / "serve.log") as tree:
            tree.wait_ready(port, "/healthz", TIMEOUT_S)
            printed([command, "--home", folder, "pull", arguments.model])
            for name in names:
                ask(port, name, [{"role": "user", "content": "Hi"}], "warm-up", tokens=1)
            yield port


def converse(port: int, arguments: argparse.Namespace) -> list[Answer]:
    """Every caller takes the next conversation when his last one is over."""
    talks = [Talk(a, n, arguments) for a in range(arguments.assistants) for n in range(arguments.talks)]
    random.Random(1).shuffle(talks)
    answers: list[Answer] = []
    failures: list[Exception] = []
    lock = threading.Lock()

    def caller() -> None:
        while True:
            with lock:
                if not talks or failures:
                    return
                talk = talks.pop()
            for _ in range(arguments.turns):
                talk.next()
                try:
                    answer, text = ask(port, "chat", talk.messages, talk.name, tokens=16)
                except (Failed, OSError, http.client.HTTPException) as error:
                    with lock:
                        failures.append(error)
                    return
                talk.heard(text)
                with lock:
                    answers.append(answer)

    threads = [threading.Thread(target=caller) for _ in range(arguments.callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return answers


def ask(port: int, model: str, messages: Sequence[dict[str, str]], session: str, *, tokens: int) -> tuple[Answer, str]:
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json", "x-drivetrain-session": session}
    began_s = time.monotonic()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Failed(f"answer {response.status}: {response.read()[:500]!r}")
        engine = response.getheader("x-drivetrain-engine") or ""
        first_s, text, usage = read(response)
    details = usage.get("prompt_tokens_details") or {}
    answer = Answer(
        engine=engine,
        began_s=began_s,
        first_token_s=(first_s or time.monotonic()) - began_s,
        ended_s=time.monotonic(),
        prompt_tokens=int(usage["prompt_tokens"]),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )
    return answer, text


def read(response: http.client.HTTPResponse) -> tuple[float | None, str, dict[str, Any]]:
    """When the first piece came, what was said, and the usage."""
    first_s: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        chunk: dict[str, Any] = json.loads(line[6:])
        if "error" in chunk:
            raise Failed(f"error in a stream: {chunk['error']}")
        usage = chunk.get("usage") or usage
        if chunk.get("choices") and (said := chunk["choices"][0]["delta"].get("content")):
            first_s = first_s or time.monotonic()
            pieces.append(said)
    return first_s, "".join(pieces), usage


def summary(answers: Sequence[Answer], arguments: argparse.Namespace) -> dict[str, float]:
    times_s = [answer.first_token_s for answer in answers]
    counts = Counter(answer.engine for answer in answers)
    lasted_s = max(answer.ended_s for answer in answers) - min(answer.began_s for answer in answers)
    return {
        "requests": len(answers),
        "cached_share": round(
            sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers), 4
        ),
        "first_token_mean_s": round(statistics.fmean(times_s), 4),
        "first_token_p50_s": round(statistics.median(times_s), 4),
        "first_token_p95_s": round(statistics.quantiles(times_s, n=20)[-1], 4),
        "requests_per_s": round(len(answers) / lasted_s, 3),
        "imbalance_of_requests": round(max(counts.values()) * arguments.engines / len(answers), 4),
        "imbalance_of_work": round(imbalance(answers, arguments.engines), 4),
    }


def imbalance(answers: Sequence[Answer], engines: int) -> float:
    """What the busiest worker had in hand against the mean, over the time in which the callers kept all busy."""
    steps = sorted([(a.began_s, 1, a.engine) for a in answers] + [(a.ended_s, -1, a.engine) for a in answers])
    work: Counter[str] = Counter()
    most = max_at_once(steps)
    area = lasted_s = 0.0
    for (at_s, change, engine), (until_s, _, _) in itertools.pairwise(steps):
        work[engine] += change
        total = sum(work.values())
        if total >= most - 1:  # the rest is the beginning and the end
            area += (until_s - at_s) * max(work.values()) * engines / total
            lasted_s += until_s - at_s
    return area / lasted_s if lasted_s else 0.0


def max_at_once(steps: Sequence[tuple[float, int, str]]) -> int:
    total = most = 0
    for _, change, _ in steps:
        total += change
        most = max(most, total)
    return most


def judged(results: dict[str, dict[str, float]]) -> dict[str, str]:
    if not {"none", "prefix"} <= set(results):
        return {}
    none, prefix = results["none"], results["prefix"]
    cached = prefix["cached_share"] / max(none["cached_share"], 1e-9)
    first = none["first_token_mean_s"] / prefix["first_token_mean_s"]
    work = prefix["imbalance_of_work"]
    return {
        f"cached share at least {BETTER_AT_LEAST} times": verdict(cached, least=BETTER_AT_LEAST),
        f"first token at least {BETTER_AT_LEAST} times sooner": verdict(first, least=BETTER_AT_LEAST),
        f"imbalance of work at most {IMBALANCE_AT_MOST}": verdict(work, most=IMBALANCE_AT_MOST),
    }


def verdict(figure: float, *, least: float = 0.0, most: float = float("inf")) -> str:
    return f"{'met' if least <= figure <= most else 'MISSED'}: {figure:.2f}"


if __name__ == "__main__":
    sys.exit(main())
