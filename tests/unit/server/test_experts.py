"""Headers that tell how the experts of a streamed model fare."""

from drivetrain.server import experts
from drivetrain.types import Experts


def test_a_model_that_does_not_stream_has_none() -> None:
    assert experts.headers(None) == ()


def test_shares_have_four_digits_and_bytes_are_whole() -> None:
    told = Experts(hits=2, misses=1, wait_s=1.0, compute_s=2.0, read_bytes=5_000_000_000, budget_bytes=7)
    assert experts.headers(told) == (
        (b"x-drivetrain-expert-hit-rate", b"0.6667"),
        (b"x-drivetrain-expert-read-bytes", b"5000000000"),
        (b"x-drivetrain-expert-wait-share", b"0.3333"),
        (b"x-drivetrain-expert-budget-bytes", b"7"),
    )
