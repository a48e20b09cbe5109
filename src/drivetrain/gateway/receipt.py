"""What a caller is told about a request beside its answer: the gateway fills it in, the server reads it."""

from collections.abc import Sequence

from drivetrain.quota import Standing


class Receipt:
    """One per request of a caller."""

    __slots__ = (
        "attempts",
        "cached",
        "cost_micro_usd",
        "degraded",
        "engine",
        "left",
        "model",
        "overhead_s",
        "queued_s",
        "standings",
        "why",
    )

    def __init__(self) -> None:
        self.engine = ""  # that answers, or was asked last
        self.model = ""  # as that engine calls it
        self.why = ""  # it was chosen
        self.attempts = 0
        self.cached = False  # it is an answer that was given before
        self.queued_s = 0.0
        self.overhead_s = 0.0  # spent here before the engine was asked
        self.cost_micro_usd: int | None = None  # so far; None: nothing has a price here
        self.standings: Sequence[Standing] = ()
        self.degraded = False  # the shared state was away when it was let in
        self.left = False  # the caller has gone; the answer is drained for the books
