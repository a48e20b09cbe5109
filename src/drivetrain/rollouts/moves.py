"""The changes that a rollout may go through. Stages are never left out, and what was rolled back stays so."""

from typing import Final

import msgspec

from drivetrain.errors import Conflict
from drivetrain.governance import Move
from drivetrain.rollouts.plan import Rollout

FINAL: Final = frozenset({"done", "rolled_back"})


def moved(rollout: Rollout, move: Move, *, why: str, now_s: float) -> Rollout:
    """The rollout after a move, one version on. Raises `Conflict` for a move that its state does not allow."""
    if rollout.state in FINAL and not (move == "rollback" and rollout.state == "done"):
        raise Conflict(f"{rollout.kind} {rollout.id} is {_said(rollout)}; make another one")
    match move:
        case "advance":
            return _advanced(rollout, why, now_s)
        case "pause":
            return _paused(rollout, why)
        case "resume":
            return _resumed(rollout, why, now_s)
        case "finish":
            return _finished(rollout, why)
        case "rollback":
            return _changed(rollout, state="rolled_back", why=why)


def _advanced(rollout: Rollout, why: str, now_s: float) -> Rollout:
    if rollout.state == "paused":
        raise Conflict(f"{rollout.kind} {rollout.id} is paused; resume it, then advance it")
    if rollout.kind == "experiment":
        raise Conflict(f"experiment {rollout.id} has no stages; finish it, or roll it back")
    if last(rollout):
        return _changed(rollout, state="done", why=why)
    return _changed(rollout, stage=rollout.stage + 1, since_s=now_s, why=why)


def _paused(rollout: Rollout, why: str) -> Rollout:
    """Its callers stay where they are; nobody is added, nothing is copied, and no guard looks at it."""
    if rollout.state == "paused":
        raise Conflict(f"{rollout.kind} {rollout.id} is paused already")
    return _changed(rollout, state="paused", why=why)


def _resumed(rollout: Rollout, why: str, now_s: float) -> Rollout:
    """It goes on with the stage in which it was paused, from the beginning of that."""
    if rollout.state == "running":
        raise Conflict(f"{rollout.kind} {rollout.id} is running")
    return _changed(rollout, state="running", since_s=now_s, why=why)


def _finished(rollout: Rollout, why: str) -> Rollout:
    if rollout.kind == "rollout" and not last(rollout):
        place = f"stage {rollout.stage + 1} of {len(rollout.stages)}"
        raise Conflict(f"rollout {rollout.id} is in {place}; advance it through the others, or roll it back")
    return _changed(rollout, state="done", why=why)


def last(rollout: Rollout) -> bool:
    """Whether no stage comes after the one that it is in."""
    return rollout.stage >= len(rollout.stages) - 1


def _changed(rollout: Rollout, **members: object) -> Rollout:
    return msgspec.structs.replace(rollout, version=rollout.version + 1, **members)


def _said(rollout: Rollout) -> str:
    return rollout.state.replace("_", " ")
