"""What an answer's headers tell of a model whose experts are streamed. Pure."""

from collections.abc import Sequence

from drivetrain.server.exchange import Header
from drivetrain.types import Experts


def headers(experts: Experts | None) -> Sequence[Header]:
    """None for any other model."""
    if experts is None:
        return ()
    return (
        (b"x-drivetrain-expert-hit-rate", b"%.4f" % experts.hit_rate),
        (b"x-drivetrain-expert-read-bytes", b"%d" % experts.read_bytes),
        (b"x-drivetrain-expert-wait-share", b"%.4f" % experts.wait_share),
        (b"x-drivetrain-expert-budget-bytes", b"%d" % experts.budget_bytes),
    )
