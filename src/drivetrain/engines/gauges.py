"""What an engine's metrics tell of its work: how many requests run, wait and are done, and whether it sleeps. Pure.

Prometheus' text format, of vLLM, SGLang, llama-server, TGI and TensorRT-LLM. With several ranks in one engine there is
a series for each; they are added up.
"""

import re
from collections import defaultdict

from drivetrain.types import Value

RUNNING = frozenset(
    {
        b"vllm:num_requests_running",
        b"sglang:num_running_reqs",
        b"llamacpp:requests_processing",
        b"tgi_batch_current_size",
        b"trtllm_num_requests_running",
    }
)
WAITING = frozenset(
    {
        b"vllm:num_requests_waiting",
        b"sglang:num_queue_reqs",
        b"llamacpp:requests_deferred",
        b"tgi_queue_size",
        b"trtllm_num_requests_waiting",
    }
)
DONE = frozenset({b"vllm:request_success_total", b"vllm:request_success"})
SLEEP = b"vllm:engine_sleep_state"
AWAKE = b'sleep_state="awake"'
MOST = 1_000_000  # requests; more is no number to believe

_PLACES = {
    **dict.fromkeys(RUNNING, "running"),
    **dict.fromkeys(WAITING, "waiting"),
    **dict.fromkeys(DONE, "done"),
    SLEEP: "awake",
}
_NAMES = b"|".join(sorted(_PLACES))
_SERIES = re.compile(rb'^(%b)(\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+([0-9.eE+-]{1,32})' % _NAMES, re.MULTILINE)


class Gauges(Value, frozen=True, kw_only=True):
    """None: it does not tell."""

    running: int | None = None
    waiting: int | None = None
    done: float | None = None  # since it was started
    awake: bool | None = None


def read(page: bytes) -> Gauges:
    found: dict[str, float] = defaultdict(float)
    for name, labels, number in _SERIES.findall(page):
        if name == SLEEP and AWAKE not in labels:
            continue
        found[_PLACES[name]] += _value(number)
    return Gauges(
        running=_count(found.get("running")),
        waiting=_count(found.get("waiting")),
        done=found.get("done"),
        awake=found["awake"] > 0 if "awake" in found else None,
    )


def _value(number: bytes) -> float:
    try:
        return float(number)
    except ValueError:
        return 0.0


def _count(value: float | None) -> int | None:
    return None if value is None else int(min(max(value, 0.0), MOST))
