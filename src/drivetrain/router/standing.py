"""What a choice is made from: how each engine stands, what its model can do, and what is known of the request."""

from typing import Literal

from drivetrain.config.schema import Class
from drivetrain.router.estimates import Speed
from drivetrain.types import Capability, Value

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


class Traits(Value, frozen=True, kw_only=True):
    """What does not change from one request to the next: of an engine, and of its model."""

    capabilities: frozenset[Capability] = frozenset()  # none: they are not known
    context: int | None = None  # tokens of prompt and answer together; None: not known
    region: str = ""
    version: str = ""  # of the model: how its digest begins


class Facts(Value, frozen=True, kw_only=True):
    """About a request, as far as the choice depends on it."""

    prompt_tokens: int = 512
    output_tokens: int = 256
    limit: int = 0  # of the answer's tokens, as the request names it; 0: it names none
    tools: bool = False
    images: bool = False
    schema: bool = False  # it demands JSON, a schema or a grammar
    priority: Class = "default"
    deadline_s: float | None = None  # its caller waits for so long; None: as long as it takes
    region: str = ""  # whose engines are asked first
    shared: int = 0  # 64 bits of what many prompts begin with: tools and system prompt
    own: int = 0  # 64 bits of what its conversation begins with, or of its session; 0: none


DRAINED = "drained"  # what a note says of an engine that somebody took out
UNKNOWN = Standing()
ORDINARY = Traits()
USUAL = Facts()
