"""What a rollout does next, by what was seen of its arms. A pure decision; the changes that follow are in `moves`."""

from typing import Final, Literal

from drivetrain.governance import Move
from drivetrain.rollouts.evidence import Evidence
from drivetrain.rollouts.guards import Verdict, verdicts
from drivetrain.rollouts.moves import last
from drivetrain.rollouts.plan import Rollout, Stage
from drivetrain.types import Value

Action = Literal["advance", "hold", "rollback", "done"]
MOVES: Final[dict[Action, Move]] = {"advance": "advance", "rollback": "rollback", "done": "finish"}


class Step(Value, frozen=True, kw_only=True):
    action: Action
    why: str
    verdicts: tuple[Verdict, ...] = ()

    @property
    def move(self) -> Move | None:
        """What it asks for; None: nothing changes."""
        return MOVES.get(self.action)


def step(rollout: Rollout, evidence: Evidence, now_s: float) -> Step:
    """What to do now, by what was seen since the stage began."""
    if rollout.state != "running":
        return Step(action="hold", why=f"it is {rollout.state.replace('_', ' ')}")
    if rollout.kind != "rollout":
        return Step(action="hold", why="an experiment ends when somebody ends it")
    said = verdicts(rollout.guards, evidence, stages=len(rollout.stages))
    if alarms := [verdict for verdict in said if verdict.alarm]:
        why = "; ".join(f"{verdict.guard}: {verdict.text}" for verdict in alarms)
        return Step(action="rollback", why=why, verdicts=said)
    stage = rollout.stages[rollout.stage]
    if missing := _missing(stage, evidence, now_s - rollout.since_s, said):
        return Step(action="hold", why=_late(stage, now_s - rollout.since_s) + missing, verdicts=said)
    why = f"{evidence.arm.answered} requests answered at the new arm, and no guard against it"
    return Step(action="done" if last(rollout) else "advance", why=why, verdicts=said)


def _missing(stage: Stage, evidence: Evidence, lasted_s: float, said: tuple[Verdict, ...]) -> str:
    """What a stage still waits for; "" for nothing."""
    if doubts := [f"{verdict.guard}: {verdict.text}" for verdict in said if verdict.doubt]:
        return f"in doubt, {'; '.join(doubts)}"
    if evidence.arm.answered < stage.least_requests:
        return f"{evidence.arm.answered} of {stage.least_requests} requests answered at the new arm"
    if said and stage.percent < 100 and evidence.baseline.requests < stage.least_requests:
        return f"{evidence.baseline.requests} of {stage.least_requests} requests at the baseline, to compare with"
    if lasted_s < stage.least_s:
        return f"{lasted_s:.0f} of {stage.least_s:g} s have passed"
    return ""


def _late(stage: Stage, lasted_s: float) -> str:
    return f"the stage should have ended after {stage.most_s:g} s; " if lasted_s > stage.most_s else ""
