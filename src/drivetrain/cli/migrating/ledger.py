"""What the ledger knows of how callers use a public name: by which API, how long, and the requests that are kept."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from drivetrain.cli.migrating.judging import Used
from drivetrain.dialects import Surface, ollama, openai
from drivetrain.errors import DrivetrainError
from drivetrain.governance import Attempt
from drivetrain.store import AttemptQuery, Store
from drivetrain.types import Request

MOST_ROWS = 20_000  # of a model, the newest
MOST_SAMPLES = 200
MOST_LOOKED = 500  # rows whose bodies are looked for
MOST_VAIN = 50  # of them, one after the other without a body: then none is kept
SURFACES: Mapping[str, Surface] = {
    surface.name: surface for surface in (ollama.CHAT, ollama.GENERATE, openai.CHAT, openai.COMPLETIONS)
}


def used(store: Store, model: str, since_s: float) -> Used:
    rows = asked(store, model, since_s)
    return Used(
        requests=len(rows),
        dialects=dict(Counter(row.dialect for row in rows)),
        longest=max((row.prompt_tokens + row.completion_tokens for row in rows), default=0),
        samples=tuple(samples(store, rows, MOST_SAMPLES)),
    )


def asked(store: Store, model: str, since_s: float) -> Sequence[Attempt]:
    """The last attempt of each request that was let in, newest first."""
    found = store.attempts(AttemptQuery(model=model, since_s=since_s, limit=MOST_ROWS))
    return [row for row in found if row.final and row.outcome != "rejected"]


def samples(store: Store, rows: Sequence[Attempt], most: int) -> Iterator[Request]:
    """Requests whose bodies are kept whole, the newest first."""
    vain = 0
    for row in [row for row in rows if row.dialect in SURFACES][:MOST_LOOKED]:
        if most <= 0 or vain >= MOST_VAIN:
            return
        kept = store.body(row.request_id)
        vain = vain + 1 if kept is None else 0
        request = _read(SURFACES[row.dialect].decode_request, kept.request) if kept is not None else None
        if request is not None:
            most -= 1
            yield request


def _read(decode: Callable[[bytes], Request], body: str) -> Request | None:
    """None for one that was cut, or whose secrets are blackened where it hurts, or that only loads a model."""
    try:
        request = decode(body.encode())
    except DrivetrainError:
        return None
    return request if request.messages or request.completion is not None else None
