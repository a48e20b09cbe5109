"""Log-probabilities in both of OpenAI's forms: chat's list of tokens, and completions' four parallel lists."""

import math
from collections.abc import Sequence
from typing import Any

from drivetrain.dialects.openai import wire
from drivetrain.types import TokenLogprob

LOWEST = -9999.0  # JSON has no infinity; vLLM writes the same
UNKNOWN = math.nan  # completions: of a prompt's first token, which nothing precedes


def decode(given: wire.LogprobsOut) -> tuple[TokenLogprob, ...]:
    if told := given.content or given.refusal:
        return tuple(_token(token) for token in told)
    if given.tokens is None:
        return ()
    count = len(given.tokens)
    own = given.token_logprobs or [None] * count
    top = given.top_logprobs or [None] * count
    return tuple(
        TokenLogprob(token=token, logprob=UNKNOWN if logprob is None else logprob, top=_ranked(others or {}))
        for token, logprob, others in zip(given.tokens, own, top, strict=False)
    )


def _token(given: wire.TokenOut) -> TokenLogprob:
    return TokenLogprob(
        token=given.token,
        logprob=0.0 if given.logprob is None else given.logprob,
        bytes=None if given.bytes is None else tuple(given.bytes),
        top=tuple(_token(other) for other in given.top_logprobs or ()),
    )


def _ranked(others: dict[str, float]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token=token, logprob=logprob) for token, logprob in others.items())


def encode_chat(tokens: Sequence[TokenLogprob], *, refusal: bool = False) -> dict[str, Any]:
    told = [_entry(token) | {"top_logprobs": [_entry(top) for top in token.top]} for token in tokens]
    return {"content": None, "refusal": told} if refusal else {"content": told, "refusal": None}


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": token.bytes}


def encode_completion(tokens: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """`offset`: how many characters of the choice came before these tokens."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [None if math.isnan(token.logprob) else _finite(token.logprob) for token in tokens],
        "top_logprobs": [
            None if math.isnan(token.logprob) else {top.token: _finite(top.logprob) for top in token.top}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST
