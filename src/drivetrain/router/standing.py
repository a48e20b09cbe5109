"""What a choice is made from: how each engine stands, and what is known of the request."""

from typing import Literal

from drivetrain.router.estimates import Speed
from drivetrain.types import Value

State = Literal["closed", "open", "trial", "trying"]  # trial: one request may try it; trying: one does


class Standing(Value, frozen=True, kw_only=True):
    """How an engine stands at this moment."""

    ready: bool = True  # its last probe said so
    outstanding: int = 0  # requests it is working on for us
    state: State = "closed"  # of its breaker
    wait_s: float = 0.0  # it asked not to be asked for so long (Retry-After)
    share: float = 1.0  # of its weight that it takes: less after failures, and while it warms up
    speed: Speed | None = None  # None: not measured yet

    @property
    def able(self) -> bool:
        """Whether it may be chosen; where nothing else is left, the others are tried too."""
        return self.ready and not self.wait_s and (self.state == "closed" or self.state == "trial")


class Facts(Value, frozen=True, kw_only=True):
    """About a request, as far as its time depends on it."""

    prompt_tokens: int = 512
    output_tokens: int = 256


UNKNOWN = Standing()
USUAL = Facts()
