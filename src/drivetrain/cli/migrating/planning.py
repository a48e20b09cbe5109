"""The rollouts that move public names from one engine to another, as the store takes them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.cli.migrating.judging import Judged, Made, Side
from drivetrain.cli.migrating.today import Public, baseline, is_at, moved
from drivetrain.config.schema import Policy
from drivetrain.parameters import PARAMETERS
from drivetrain.rollouts.plan import Rollout, Stage

BASELINE = "baseline"
SHARES = (1.0, 5.0, 25.0, 100.0)
BETWEEN = "-to-"


def label(source: str, target: str) -> str:
    """The name of a migration, and of the new arm of its rollouts."""
    return f"{source}{BETWEEN}{target}"


def fields(
    public: Public,
    judged: Judged,
    source: Side,
    target: Side,
    policy: Policy,
    *,
    stage: Mapping[str, Any],
    guards: Mapping[str, Any],
    shadow: Mapping[str, Any],
) -> dict[str, Any]:
    """`stage`: how long each stage lasts."""
    if (becomes := judged.match.target) is None:
        raise ValueError(f"{public.name!r} becomes nothing")
    new = {
        "name": label(source.name, target.name),
        "targets": msgspec.to_builtins(moved(public, source.name, target.name, becomes)),
        "parameters": kept(source.made.get(judged.match.source, Made()), target.made.get(becomes), policy),
    }
    old = {"name": BASELINE, "targets": msgspec.to_builtins(baseline(public, target.name))}
    return {
        "model": public.name,
        "arms": [old, new],
        "stages": _stages(stage, only_embeds=source.model(judged.match.source).capabilities == {"embedding"}),
        "guards": dict(guards),
        "shadow": dict(shadow),
    }


def kept(made: Made, there: Made | None, policy: Policy) -> dict[str, Any]:
    """What a Modelfile says of requests, where neither the policy nor the new engine's own model says it."""
    said = {PARAMETERS[name] for name in policy.parameters if name in PARAMETERS}
    said |= {PARAMETERS[name] for name in (there.parameters if there else ()) if name in PARAMETERS}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in made.parameters.items()
        if name in PARAMETERS and PARAMETERS[name] not in said
    }


def _stages(lasting: Mapping[str, Any], *, only_embeds: bool) -> list[dict[str, Any]]:
    """First copies alone, of which there are none of embeddings."""
    shadow = {"percent": 0.0, "shadow": True, **lasting}
    if only_embeds:
        shadow |= {"least_s": 0.0, "least_requests": 0}
    return [shadow, *({"percent": share, **lasting} for share in SHARES)]


# --- those that are planned -------------------------------------------------------------------------------------------


def is_of(rollout: Rollout, name: str) -> bool:
    return rollout.kind == "rollout" and rollout.arms[1].name == name


def is_migration(rollout: Rollout) -> bool:
    return rollout.kind == "rollout" and BETWEEN in rollout.arms[1].name


def newest(rollouts: Sequence[Rollout]) -> str | None:
    """The name of the migration that was planned last."""
    names = [one.arms[1].name for one in sorted(rollouts, key=lambda one: one.id) if is_migration(one)]
    return names[-1] if names else None


def reached(stages: Sequence[Stage], percent: float) -> int:
    """The first stage with at least so many callers, which the last one has."""
    return next(at for at, stage in enumerate(stages) if stage.percent >= percent)


def mapped(rollouts: Sequence[Rollout], source: str, target: str) -> dict[str, str]:
    """Which model of the source becomes which of the target."""
    return {
        old.model: new.model
        for one in rollouts
        for old in one.arms[0].targets or ()
        for new in one.arms[1].targets or ()
        if is_at(old, source) and is_at(new, target)
    }
