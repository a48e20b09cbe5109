"""A rollout, whatever is seen of it and whoever moves it: no stage is left out, and no caller goes back and forth."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drivetrain.errors import Conflict
from drivetrain.governance import Move
from drivetrain.rollouts.evidence import Evidence, Seen
from drivetrain.rollouts.moves import moved
from drivetrain.rollouts.plan import Rollout, Shadow, Stage, assigned, percent, shadowed
from drivetrain.rollouts.step import step
from tests.unit.rollouts.traffic import canary, made

SUBJECTS = [f"key {number}" for number in range(200)]
STAGES = (Stage(percent=0, shadow=True, least_s=10, least_requests=20), *canary(1, 10, 10, 50, 100, least_s=10))
BAD = Seen(requests=400, failures=300)
GOOD = Seen(requests=400, failures=4)
MOVES: tuple[Move, ...] = ("advance", "pause", "resume", "finish", "rollback")


class Moved(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rollout = made(*STAGES, shadow=Shadow())
        self.now_s = 0.0
        self.new: set[str] = set()
        self.ended = False

    def to(self, rollout: Rollout) -> None:
        before, self.rollout = self.rollout, rollout
        assert rollout.version == before.version + 1
        assert rollout.stage - before.stage in (0, 1)
        assert before.state != "rolled_back"
        if rollout.stage > before.stage:
            assert rollout.since_s == self.now_s
        if rollout.state == "done":
            assert before.stage == rollout.stage == len(STAGES) - 1

    @rule(
        after_s=st.floats(0.0, 30.0), baseline=st.sampled_from([GOOD, Seen()]), arm=st.sampled_from([GOOD, BAD, Seen()])
    )
    def look(self, after_s: float, baseline: Seen, arm: Seen) -> None:
        self.now_s += after_s
        before = self.rollout
        taken = step(before, Evidence(baseline=baseline, arm=arm), self.now_s)
        if taken.move is not None:
            self.to(moved(before, taken.move, why=taken.why, now_s=self.now_s))
        if before.state == "running" and arm is BAD:
            assert self.rollout.state == "rolled_back"
        if taken.action in ("advance", "done"):
            assert arm is GOOD and self.now_s - before.since_s >= before.stages[before.stage].least_s
        assert taken.why

    @rule(move=st.sampled_from(MOVES))
    def somebody_moves_it(self, move: Move) -> None:
        try:
            after = moved(self.rollout, move, why="by hand", now_s=self.now_s)
        except Conflict:
            return
        self.to(after)

    @precondition(lambda self: self.rollout.state == "running")
    @rule()
    def it_can_always_be_paused_and_rolled_back(self) -> None:
        paused = moved(self.rollout, "pause", why="", now_s=self.now_s)
        assert percent(paused) == percent(self.rollout)
        assert moved(paused, "rollback", why="", now_s=self.now_s).state == "rolled_back"

    @invariant()
    def nobody_who_got_the_new_arm_loses_it_but_by_a_rollback(self) -> None:
        new = {subject for subject in SUBJECTS if assigned(self.rollout, subject).name == "new"}
        if self.rollout.state == "rolled_back":
            assert not new
        else:
            assert new >= self.new
            self.new = new

    @invariant()
    def what_is_rolled_back_stays_so(self) -> None:
        assert self.rollout.state == "rolled_back" or not self.ended
        self.ended = self.rollout.state == "rolled_back"

    @invariant()
    def requests_are_copied_only_before_anybody_gets_the_new_arm(self) -> None:
        assert (shadowed(self.rollout) is None) or percent(self.rollout) == 0


TestMoved = Moved.TestCase
TestMoved.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
