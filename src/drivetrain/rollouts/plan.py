"""The values of rollouts and experiments, and which arm a caller gets. Pure: reads no clock, keeps no state.

Everything here goes into the store as JSON and comes back equal. A `Plan` is what the request path looks at.
"""

from collections.abc import Mapping
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, Literal

from drivetrain.config.schema import Target
from drivetrain.types import Value

Kind = Literal["rollout", "experiment"]
State = Literal["running", "paused", "done", "rolled_back"]
Compare = Literal["exact", "similarity", "json"]
BUCKETS: Final = 10_000  # callers are told apart so finely: a share is exact to a hundredth of a percent


# How the label of a row of the ledger ends, after ID:ARM, where it is not of a caller at that arm.
SHADOW: Final = ":shadow"  # a copy, of which no caller saw anything
SPILL: Final = ":spill"  # the baseline's, in the place of another arm whose engines were set aside, failed or refused


class Arm(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One side of a rollout: what differs from the model's own route."""

    name: str  # "baseline" or another, unique in its rollout
    targets: tuple[Target, ...] | None = None  # None: those of the model's own route
    prompt: str | None = None  # "name@version" of a prompt template; None: none
    settings: Mapping[str, Any] = {}  # load time options over the policy's
    parameters: Mapping[str, Any] = {}  # request time defaults over the policy's


class Stage(Value, frozen=True, kw_only=True):
    """How far a rollout goes before it is looked at again."""

    percent: float  # of the callers that get the new arm
    shadow: bool = False  # copies of requests go to the new arm, as `Rollout.shadow` says
    least_s: float = 300.0  # it lasts at least so long
    least_requests: int = 100  # and until the new arm has answered so many
    most_s: float = 86_400.0  # after which a stage that cannot go on says why


class Guards(Value, frozen=True, kw_only=True):
    """What the new arm may not do worse than the baseline that runs beside it. None: not looked at."""

    errors: float | None = 0.01  # its share of failed requests may be so much above the baseline's
    first_token: float | None = 1.25  # times the baseline's 95th percentile of the time to the first token
    tokens_per_s: float | None = 0.8  # times the baseline's median of tokens per second, at least
    cost: float | None = None  # times the baseline's mean cost of a request
    answers: float | None = None  # the mean of what shadow comparisons say, 0 to 1, at least
    false_alarms: float = 0.05  # chance that an arm that is no worse is rolled back, over all guards, stages and looks


class Shadow(Value, frozen=True, kw_only=True):
    """Copies of requests that no caller sees the answer of."""

    percent: float = 100.0  # of the requests that are copied in a stage with `shadow`
    concurrency: int = 4  # copies at once; while so many run, no request is copied
    usd: float = 10.0  # what the copies of one rollout may cost together
    compare: Compare = "similarity"


class Rollout(Value, frozen=True, kw_only=True):
    """A change of what stands behind a public model name, on its way; or an experiment with several at once."""

    id: str
    model: str  # public name
    kind: Kind = "rollout"
    arms: tuple[Arm, ...]  # the first is the baseline
    stages: tuple[Stage, ...] = ()  # of a rollout
    guards: Guards = Guards()
    shares: tuple[float, ...] = ()  # of an experiment: per arm, in relation to each other
    state: State = "running"
    stage: int = 0  # number of the stage it is in
    since_s: float = 0.0  # when the stage began
    why: str = ""  # of the last change
    version: int = 1  # counts the changes
    created_s: float = 0.0
    shadow: Shadow | None = None


class Prompt(Value, frozen=True, kw_only=True):
    """A version of a named system prompt. It is never changed: a new text is a new version."""

    name: str
    version: int
    text: str  # with `{variables}`
    created_s: float = 0.0

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"


class Plan(Value, frozen=True, kw_only=True):
    """All that is in force at one moment."""

    rollouts: Mapping[str, Rollout] = {}  # by public model name; what is done or rolled back may stay in it
    prompts: Mapping[str, Prompt] = {}  # by "name@version"


def percent(rollout: Rollout) -> float:
    """The share of callers that a rollout sends to its new arm now. It only grows, until it is rolled back."""
    if rollout.state == "rolled_back":
        return 0.0
    return 100.0 if rollout.state == "done" else rollout.stages[rollout.stage].percent


def shadowed(rollout: Rollout) -> Shadow | None:
    """How requests are copied to the new arm now; None: not at all."""
    if rollout.state != "running" or rollout.kind != "rollout" or not rollout.stages[rollout.stage].shadow:
        return None
    return rollout.shadow


def bucket(rollout: str, subject: str) -> int:
    """Where a caller stands in a rollout, the same in every process and for ever."""
    digest = blake2b(f"{rollout}\0{subject}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) % BUCKETS


def assigned(rollout: Rollout, subject: str) -> Arm:
    """The arm of a caller. A bigger share only adds callers to the new arm, it never takes one away."""
    if rollout.kind == "experiment":
        return _of_shares(rollout, subject)
    share = percent(rollout)
    if share <= 0.0:
        return rollout.arms[0]
    if share >= 100.0:
        return rollout.arms[1]
    return rollout.arms[bucket(rollout.id, subject) < share * (BUCKETS / 100)]


def _of_shares(rollout: Rollout, subject: str) -> Arm:
    """An experiment that is over leaves everybody at the baseline."""
    if rollout.state in ("done", "rolled_back"):
        return rollout.arms[0]
    at = (bucket(rollout.id, subject) + 0.5) * sum(rollout.shares) / BUCKETS
    ends = zip(rollout.arms, accumulate(rollout.shares), strict=True)
    return next((arm for arm, end in ends if at < end), rollout.arms[-1])
