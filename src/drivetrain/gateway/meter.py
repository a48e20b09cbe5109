"""What one upstream attempt did: counts its events, times them, and turns them into a row of the ledger."""

import itertools
import random
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from msgspec.structs import replace

from drivetrain.router import Candidate
from drivetrain.types import (
    Attempt,
    EmbedRequest,
    Event,
    Finished,
    Opaque,
    Progress,
    ReasoningDelta,
    Request,
    TextDelta,
    Timings,
    ToolCallDelta,
    Usage,
    Value,
)

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_PROCESS = "".join(random.SystemRandom().choices(_ALPHABET, k=8))
_count = itertools.count()
Outcome = Literal["ok", "error", "cancelled", "absorbed", "rejected"]
CHARACTERS_PER_TOKEN = 4  # of a prompt whose engine reported nothing; the usual rule of thumb for English


def ulid() -> str:
    """A new sortable id of 26 characters (github.com/ulid/spec): 48 bits of milliseconds, 40 of chance that stay the
    same in one process, and a count of 40 bits. It tells apart and sorts; it keeps no secret.
    """
    count = next(_count)
    high, low = count >> 20, count & 0xFFFFF
    digits = _PAIRS[high >> 10 & 1023] + _PAIRS[high & 1023] + _PAIRS[low >> 10] + _PAIRS[low & 1023]
    return _time_part(int(time.time() * 1000)) + _PROCESS + digits


@lru_cache(maxsize=8)
def _time_part(milliseconds: int) -> str:
    return "".join([_PAIRS[(milliseconds >> shift) & 1023] for shift in (40, 30, 20, 10, 0)])


class Call(Value, frozen=True, kw_only=True):
    """One request of a caller, as the gateway knows it."""

    id: str
    dialect: str
    received_s: float  # Unix time


class Meter:
    """Counts one attempt. `see` each batch of events, then `row`."""

    __slots__ = (
        "began",
        "candidate",
        "deltas",
        "first_token_s",
        "last",
        "position",
        "reported",
        "started_s",
        "waited_s",
    )

    def __init__(self, candidate: Candidate, position: int, *, last: bool) -> None:
        self.candidate = candidate
        self.position = position
        self.last = last  # there is nobody left to fail over to
        self.started_s = time.time()
        self.began = time.perf_counter()
        self.first_token_s: float | None = None
        self.deltas = 0  # content events: about one token each
        self.reported: Usage | None = None
        self.waited_s = 0.0  # until the model was loaded

    def see(self, events: Sequence[Event]) -> bool:
        """Whether any of the events is content, which commits the answer to this engine."""
        content = False
        for event in events:
            kind = type(event)
            if kind is TextDelta or kind is ReasoningDelta or kind is ToolCallDelta:
                self.deltas += 1
                content = True
            elif isinstance(event, Finished):
                self.reported = event.usage
                content = True
            elif isinstance(event, Progress):
                if event.stage != "prompt":
                    self.waited_s = time.perf_counter() - self.began
            elif kind is not Opaque:
                content = True
        if content and self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.began
        return content

    def timed(self, finished: Finished) -> Finished:
        """The end of an answer with durations: the engine's own, or, where it tells none, those seen from here.

        Waiting for a model to load is never part of what an engine tells: it did not exist yet.
        """
        told, first_s = finished.timings, self.first_token_s or 0.0
        if told is None:
            total_s = time.perf_counter() - self.began
            timings = Timings(load_s=self.waited_s, prompt_s=first_s - self.waited_s, completion_s=total_s - first_s)
        elif self.waited_s and not told.load_s:
            timings = replace(told, load_s=self.waited_s)
        else:
            return finished
        return replace(finished, timings=timings)

    def usage(self, request: Request | EmbedRequest) -> Usage:
        """What the engine reported; else, for an answer that broke off, what we saw of it, marked as estimated."""
        if self.reported is not None:
            return self.reported
        return Usage(prompt=prompt_estimate(request), completion=self.deltas, estimated=True)

    def row(self, request: Request | EmbedRequest, call: Call, *, outcome: Outcome, status: int, why: str) -> Attempt:
        usage = self.usage(request)
        return Attempt(
            id=ulid(),
            request_id=call.id,
            position=self.position,
            started_s=self.started_s,
            dialect=call.dialect,
            model=request.model,
            engine=self.candidate.engine,
            engine_model=self.candidate.model,
            stream=isinstance(request, Request) and request.stream,
            outcome=outcome,
            status=status,
            why=why,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            completion_tokens=usage.completion,
            reasoning_tokens=usage.reasoning,
            usage_estimated=usage.estimated,
            first_token_s=self.first_token_s,
            total_s=time.perf_counter() - self.began,
        )


def prompt_estimate(request: Request | EmbedRequest) -> int:
    """About how many tokens a prompt has."""
    if isinstance(request, EmbedRequest):
        return sum(_tokens(prompt) for prompt in request.inputs)
    prompts = request.completion.prompts if request.completion else ()
    spoken = sum(len(message.text) for message in request.messages) // CHARACTERS_PER_TOKEN
    return spoken + sum(_tokens(prompt) for prompt in prompts)


def _tokens(prompt: str | tuple[int, ...]) -> int:
    return len(prompt) // CHARACTERS_PER_TOKEN if isinstance(prompt, str) else len(prompt)
