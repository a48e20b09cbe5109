"""Answers that are given again to the same request, where a policy says so: kept in memory, for a time, by tenant.

A request is the same only with the same words, parameters, prompt version, engines and versions of the model, from the
same organisation, team and project. What one tenant was told is never told to another.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from drivetrain.config.schema import Cache, Target
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.discovery import family
from drivetrain.gateway.meter import Call
from drivetrain.gateway.prepare import under
from drivetrain.parameters import sampling_of
from drivetrain.types import ChoiceFinished, Event, Finished, Opaque, Progress, Request, Usage

Version = Callable[[Target], str]

# Members of a body that change nothing of its answer.
IDLE = frozenset(
    {
        "keep_alive",
        "metadata",
        "model",
        "priority",
        "prompt_cache_key",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
ENTRY_BYTES = 256  # of an answer, beside its events

_encode = msgspec.json.Encoder(order="sorted").encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Event]).decode


class _Kept(NamedTuple):
    until_s: float
    size: int
    events: bytes


class _Shelf:
    """The answers under one policy."""

    def __init__(self) -> None:
        self.kept: OrderedDict[bytes, _Kept] = OrderedDict()  # the least recently used first
        self.size = 0

    def drop(self, key: bytes) -> None:
        if (kept := self.kept.pop(key, None)) is not None:
            self.size -= kept.size


class Answers:
    """Owns the answers. Those under a policy take no more than its `max_bytes`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}

    def size(self, policy: str) -> int:
        """Bytes that the answers under a policy take."""
        shelf = self._shelves.get(policy)
        return shelf.size if shelf is not None else 0

    def find(self, policy: str, key: bytes) -> Sequence[Event] | None:
        shelf = self._shelves.get(policy)
        kept = shelf.kept.get(key) if shelf is not None else None
        if shelf is None or kept is None:
            return None
        if kept.until_s <= self._clock():
            shelf.drop(key)
            return None
        shelf.kept.move_to_end(key)
        return _unpack(kept.events)

    def keep(self, policy: str, rule: Cache, key: bytes, events: Sequence[Event]) -> None:
        """Nothing is kept of an answer that was withheld, or has no end, or is too long."""
        plain = [bare for event in events if (bare := _bare(event)) is not None]
        if not plain or type(plain[-1]) is not Finished or any(map(_withheld, events)):
            return
        packed = _pack(plain)
        size = len(packed) + ENTRY_BYTES
        if size > rule.max_bytes:
            return
        shelf = self._shelves.setdefault(policy, _Shelf())
        shelf.drop(key)
        shelf.kept[key] = _Kept(self._clock() + rule.ttl_s, size, packed)
        shelf.size += size
        while shelf.size > rule.max_bytes:
            shelf.drop(next(iter(shelf.kept)))


def key_of(entry: Entry, request: Request, call: Call, version: Version) -> bytes | None:
    """What the answer to this request is kept under; None: it is not to be given again.

    `version` tells which version of its model stands behind a target.
    """
    rule = entry.policy.cache
    if not rule.ttl_s or call.fresh or not (rule.answers == "all" or deterministic(entry, request)):
        return None
    who, source = call.who, request.source
    tenant = (who.org, who.team, who.project, "" if who.project else who.key_id)
    models = sorted({(family(target.engine), target.model, version(target)) for target in entry.targets})
    own = (entry.policy.parameters, entry.policy.settings, entry.parameters, entry.settings)
    prompt = (entry.prompt.reference, entry.prompt.text) if entry.prompt is not None else None
    said = (
        {name: bytes(value) for name, value in source.fields.items() if name not in IDLE} if source is not None else {}
    )
    if entry.prompt is not None and source is not None and "metadata" in source.fields:
        said["metadata"] = bytes(source.fields["metadata"])  # the prompt's variables
    asked = replace(
        request,
        model="",
        stream=False,
        include_usage=False,
        user=None,
        source=None,
        traceparent=None,
        keep_alive_s=None,
    )
    dialect = source.dialect if source is not None else ""
    return hashlib.sha256(_encode((tenant, entry.name, models, own, entry.spec, prompt, dialect, said, asked))).digest()


def deterministic(entry: Entry, request: Request) -> bool:
    """Whether the same answer is what the caller expects: nothing is left to chance, or chance was fixed."""
    sampling = request.sampling
    layers = {
        **(entry.spec.parameters if entry.spec is not None else {}),
        **entry.policy.parameters,
        **entry.parameters,
    }
    if layers:
        sampling = under(sampling, sampling_of(layers))
    return sampling.temperature == 0 or sampling.seed is not None


def given_again(events: Sequence[Event], *, priced: bool) -> Sequence[Event]:
    """A kept answer, whose prompt was read by nobody and which costs nothing."""
    *before, end = events
    usage = end.usage if isinstance(end, Finished) else Usage()
    usage = replace(usage, cached=usage.prompt, cache_write=0, cost_micro_usd=0 if priced else None)
    return [*before, Finished(usage=usage)]


def _bare(event: Event) -> Event | None:
    """Without an engine's own frame, which says when it was made; None for what is no part of an answer."""
    match event:
        case Opaque() | Progress():
            return None
        case Finished():
            return Finished(usage=event.usage)
    return replace(event, raw=None)


def _withheld(event: Event) -> bool:
    """Not to be given again: it was filtered, or has what only its own dialect can say (custom tools)."""
    if isinstance(event, ChoiceFinished):
        return event.reason == "content_filter"
    return isinstance(event, Finished) and "choices" in event.extra
