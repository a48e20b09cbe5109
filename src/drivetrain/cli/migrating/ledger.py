"""What the ledger knows of how callers use a public name: by which API, how long, and the requests that are kept."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from drivetrain.cli.migrating.judging import Used
from drivetrain.dialects import ollama, openai
from drivetrain.errors import DrivetrainError
from drivetrain.governance import Attempt
from drivetrain.store import AttemptQuery, Store
from drivetrain.types import EmbedRequest, Request

MOST_ROWS = 20_000  # of a model, the newest
MOST_SAMPLES = 200
MOST_LOOKED = 500  # rows whose bodies are looked for
MOST_VAIN = 50  # of them, one after the other without a body: then none is kept
# How requests that are answered in words come, and how each is read.
WORDS: Mapping[str, Callable[[bytes], Request]] = {
    surface.name: surface.decode_request for surface in (ollama.CHAT, ollama.GENERATE, openai.CHAT, openai.COMPLETIONS)
}
Asked = TypeVar("Asked", Request, EmbedRequest)


def used(store: Store, model: str, since_s: float) -> Used:
    rows = asked(store, model, since_s)
    return Used(
        requests=len(rows),
        dialects=dict(Counter(row.dialect for row in rows)),
        longest=max((row.prompt_tokens + row.completion_tokens for row in rows), default=0),
        samples=tuple(samples(store, rows, MOST_SAMPLES, WORDS)),
    )


def asked(store: Store, model: str, since_s: float) -> Sequence[Attempt]:
    """The last attempt of each request that was let in, newest first."""
    found = store.attempts(AttemptQuery(model=model, since_s=since_s, limit=MOST_ROWS))
    return [row for row in found if row.final and row.outcome != "rejected"]


def samples(
    store: Store, rows: Sequence[Attempt], most: int, readers: Mapping[str, Callable[[bytes], Asked]]
) -> Iterator[Asked]:
    """Requests whose bodies are kept whole, the newest first. `readers`: of what came by these APIs, by their names."""
    vain = 0
    for row in [row for row in rows if row.dialect in readers][:MOST_LOOKED]:
        if most <= 0 or vain >= MOST_VAIN:
            return
        kept = store.body(row.request_id)
        vain = vain + 1 if kept is None else 0
        request = _read(readers[row.dialect], kept.request) if kept is not None else None
        if request is not None:
            most -= 1
            yield request


def _read(decode: Callable[[bytes], Asked], body: str) -> Asked | None:
    """None for one that was cut, or whose secrets are blackened where it hurts, or that only loads a model."""
    try:
        request = decode(body.encode())
    except DrivetrainError:
        return None
    return request if _asks(request) else None


def _asks(request: Request | EmbedRequest) -> bool:
    if isinstance(request, EmbedRequest):
        return bool(request.inputs)
    return bool(request.messages) or request.completion is not None
