"""What an answer took, in OpenAI's form, both ways: tokens, and to callers what they cost.

Engines and the gateways in front of them agree on three numbers and on little else: cached, written and reasoning
tokens go by many names, and are counted in the others or not.
"""

import re
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw

from drivetrain.dialects import sse
from drivetrain.dialects.openai import wire
from drivetrain.types import Usage

MICRO = 1_000_000  # of a dollar

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_details = attrgetter(
    *sorted({*wire.UsageOut.__struct_fields__} - {"prompt_tokens", "completion_tokens", "total_tokens"})
)
_UNTOLD = _details(wire.UsageOut())
_NO_PROMPT = wire.PromptDetails()
_NO_COMPLETION = wire.CompletionDetails()


# --- from engines -----------------------------------------------------------------------------------------------------


def decode(told: wire.UsageOut | None, timings: wire.TimingsOut | None = None, deltas: int = 0) -> Usage:
    """Usage as reported, zeros included; else llama.cpp's timings; else an estimate: about one token in a frame."""
    if told is not None:
        if told.prompt_tokens is not None and _details(told) == _UNTOLD:  # as most
            return Usage(prompt=_count(told.prompt_tokens), completion=_count(told.completion_tokens))
        prompt, completion = _prompt(told), _completion(told)
        if prompt is not None or completion is not None:
            cached, written = _cached(told), _written(told)
            return Usage(
                prompt=_count(prompt),
                cached=cached,
                completion=_count(completion),
                reasoning=_reasoning(told),
                cache_write=written,
            )
    if timings is not None and timings.predicted_n is not None:
        cached = timings.cache_n or 0
        return Usage(prompt=(timings.prompt_n or 0) + cached, cached=cached, completion=timings.predicted_n)
    return Usage(completion=deltas, estimated=True)


def _prompt(told: wire.UsageOut) -> int | None:
    """All of it. Anthropic leaves out what came from its cache, or went there."""
    if told.prompt_tokens is not None or told.input_tokens is None:
        return told.prompt_tokens
    return told.input_tokens + _cached(told) + _written(told)


def _cached(told: wire.UsageOut) -> int:
    details = told.prompt_tokens_details or _NO_PROMPT
    return _first(details.cached_tokens, told.cache_read_input_tokens, told.prompt_cache_hit_tokens, told.cached_tokens)


def _written(told: wire.UsageOut) -> int:
    details = told.prompt_tokens_details or _NO_PROMPT
    return _first(details.cache_write_tokens, told.cache_creation_input_tokens)


def _reasoning(told: wire.UsageOut) -> int:
    details = told.completion_tokens_details or _NO_COMPLETION
    return _first(details.reasoning_tokens, told.reasoning_tokens)


def _completion(told: wire.UsageOut) -> int | None:
    """All of it. xAI leaves out reasoning, which its total gives away."""
    said = told.completion_tokens if told.completion_tokens is not None else told.output_tokens
    if said is None:
        return None
    reasoning = _reasoning(told)
    apart = told.total_tokens == _count(told.prompt_tokens) + said + reasoning
    return said + reasoning if apart else said


def _first(*counts: int | None) -> int:
    for count in counts:
        if count is not None:
            return _count(count)
    return 0


def _count(said: int | None) -> int:
    return said if said and said > 0 else 0


# --- to callers -------------------------------------------------------------------------------------------------------


def encode(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        **cost(usage),
    }


def cost(usage: Usage) -> dict[str, Raw]:
    """The member that tells what it cost, in dollars and exact; none where nothing has a price."""
    if usage.cost_micro_usd is None:
        return {}
    dollars, micro = divmod(usage.cost_micro_usd, MICRO)
    return {"cost": Raw(f"{dollars}.{micro:06d}".rstrip("0").rstrip(".").encode())}


def priced(raw: bytes, usage: Usage) -> bytes:
    """An engine's frame whose usage tells our cost, in place of its own if it had one. All else stays as it came."""
    ours = cost(usage)
    frame = sse.last(raw) if ours else None
    if frame is None:
        return raw
    members = _members(frame[0])
    theirs = bytes(members.get("usage", b"null"))
    mended = _mended(theirs, ours)
    for place in re.finditer(rb'"usage"\s*:\s*' + re.escape(theirs), raw):
        changed = raw[: place.end() - len(theirs)] + mended + raw[place.end() :]
        if _tells(changed, mended):  # it was not one inside of something else
            return changed
    # It is spread over several lines.
    return sse.frame(msgspec.json.format(_encode({**members, "usage": Raw(mended)}), indent=-1))


def _tells(raw: bytes, usage: bytes) -> bool:
    frame = sse.last(raw)
    try:
        return frame is not None and bytes(_members(frame[0])["usage"]) == usage
    except (msgspec.DecodeError, KeyError):
        return False


def _mended(theirs: bytes, ours: dict[str, Raw]) -> bytes:
    told = _members(theirs) if theirs.startswith(b"{") else {}
    if told and "cost" not in told:
        return theirs[:-1].rstrip() + b',"cost":' + bytes(ours["cost"]) + b"}"
    return _encode({**told, **ours})
