"""Rollouts for tests of the store."""

from collections.abc import Mapping
from typing import Any

from drivetrain.rollouts.plan import Rollout
from drivetrain.store.rollouts import Rollouts
from tests.unit.store.administrators import BY

ENGINES = frozenset({"old", "new"})


def target(engine: str = "new") -> Mapping[str, Any]:
    return {"engine": engine, "model": "m"}


def spec(**more: Any) -> dict[str, Any]:
    """A rollout of another engine, in stages of 10 and 100 percent."""
    return {
        "model": "chat",
        "arms": [{"name": "baseline"}, {"name": "new", "targets": [target()]}],
        "stages": [{"percent": 10.0}, {"percent": 100.0}],
        **more,
    }


def experiment(**more: Any) -> dict[str, Any]:
    return {
        "model": "chat",
        "kind": "experiment",
        "arms": [{"name": "baseline"}, {"name": "hot", "parameters": {"temperature": 1.0}}],
        "shares": [1.0, 1.0],
        **more,
    }


def begun(rollouts: Rollouts, **more: Any) -> Rollout:
    return rollouts.create(spec(**more), engines=ENGINES, actor=BY)


def done(rollouts: Rollouts, **more: Any) -> Rollout:
    """One that has gone through all its stages."""
    one = begun(rollouts, **more)
    for version in (1, 2):
        one = rollouts.move(one.id, version, "advance", why="it is good", actor=BY)
    return one


def stage(percent: float, least_requests: int) -> Mapping[str, Any]:
    """Which lasts no longer than it takes."""
    return {"percent": percent, "least_s": 0.0, "least_requests": least_requests}
