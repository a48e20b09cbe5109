"""What the admin API speaks of where it speaks of rollouts and prompts.

What is left out keeps its default, or its value.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from drivetrain.rollouts.plan import Arm, Guards, Kind, Prompt, Rollout, Shadow, Stage
from drivetrain.server.admin.kinds import Body, Change
from drivetrain.store import RolloutReport, Turn

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class NewArm(Arm, frozen=True, forbid_unknown_fields=True):
    """As `Arm`; nothing else."""


class NewStage(Stage, frozen=True, forbid_unknown_fields=True):
    """As `Stage`; nothing else."""


class NewGuards(Guards, frozen=True, forbid_unknown_fields=True):
    """As `Guards`; nothing else."""


class NewShadow(Shadow, frozen=True, forbid_unknown_fields=True):
    """As `Shadow`; nothing else."""


class NewRollout(Body, frozen=True):
    """Of a rollout the second arm is the new one, of an experiment each has its share."""

    model: Text  # public name
    arms: tuple[NewArm, ...]
    kind: Kind | UnsetType = UNSET
    stages: tuple[NewStage, ...] | UnsetType = UNSET  # of a rollout
    guards: NewGuards | UnsetType = UNSET
    shares: tuple[float, ...] | UnsetType = UNSET  # of an experiment
    shadow: NewShadow | UnsetType | None = UNSET


class RolloutChange(Change, frozen=True):
    guards: NewGuards | UnsetType = UNSET
    shadow: NewShadow | UnsetType | None = UNSET


class Moving(Change, frozen=True):
    """On to the next stage, or back. Also without a version, for somebody in a hurry."""

    why: Annotated[str, msgspec.Meta(max_length=500)] | UnsetType = UNSET


class NewPrompt(Body, frozen=True):
    """The next version of a name."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=200_000)]


SHAPES: tuple[type[Any], ...] = (
    *(Rollout, NewRollout, RolloutChange, Moving, RolloutReport, Turn),
    *(Prompt, NewPrompt),
)
