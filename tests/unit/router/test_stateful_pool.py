"""Four engines, their breakers and the choice among them: whatever happens in whatever order, nobody is lost."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from drivetrain.config.schema import Breaker as Rules
from drivetrain.config.schema import Target
from drivetrain.router import Breaker, Roster, Standing, candidates

RULES = Rules(failures=2, least_requests=6, open_s=10.0, slow_start_s=5.0)
TARGETS = [Target(engine=f"e{n}", model="m", tier=n // 3) for n in range(4)]  # three, and a spare
ROSTER = Roster(TARGETS)


class Chosen(RuleBasedStateMachine):
    """Requests are begun where the choice sends them, fail over once, and end in any order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.breakers = {target.engine: Breaker(RULES) for target in TARGETS}
        self.outstanding = dict.fromkeys(self.breakers, 0)
        self.trials = dict.fromkeys(self.breakers, 0)
        self.away: set[str] = set()
        self.now_s = 0.0

    def standing(self, target: Target) -> Standing:
        breaker = self.breakers[target.engine]
        return Standing(
            ready=target.engine not in self.away,
            outstanding=self.outstanding[target.engine],
            state=breaker.state(self.now_s),
            share=breaker.share(self.now_s),
        )

    def begun(self, engine: str) -> tuple[str, bool]:
        self.outstanding[engine] += 1
        trial = self.breakers[engine].began()
        self.trials[engine] += trial
        return engine, trial

    def ended(self, request: tuple[str, bool]) -> Breaker:
        engine, trial = request
        self.outstanding[engine] -= 1
        self.trials[engine] -= trial
        return self.breakers[engine]

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(engine=st.sampled_from([target.engine for target in TARGETS]))
    def goes_away(self, engine: str) -> None:
        self.away.add(engine)

    @rule(engine=st.sampled_from([target.engine for target in TARGETS]))
    def comes_back(self, engine: str) -> None:
        if engine in self.away:
            self.away.remove(engine)
            self.breakers[engine].returned(self.now_s)

    @rule(target=requests, seed=st.integers(0, 2**16))
    def is_chosen(self, seed: int) -> tuple[str, bool]:
        decision = candidates(ROSTER, self.standing, Random(seed).random)
        assert decision.first is not None
        engine = decision.first.engine
        if self.standing(next(target for target in TARGETS if target.engine == engine)).state == "trying":
            up = [target for target in TARGETS if target.engine not in self.away]
            able = [target for target in up if self.standing(target).able]
            assert 2 * len(able) <= len(up)  # a second trial at once only where most fail, or nobody is up
        return self.begun(engine)

    @rule(target=requests, request=consumes(requests), seed=st.integers(0, 2**16))
    def fails_over(self, request: tuple[str, bool], seed: int) -> tuple[str, bool]:
        self.ended(request).failed(self.now_s, trial=request[1])
        order = candidates(ROSTER, self.standing, Random(seed).random).order
        return self.begun(next(each.engine for each in order if each.engine != request[0]))

    @rule(request=consumes(requests), worked=st.sampled_from([True, True, False, None]))
    def ends(self, request: tuple[str, bool], worked: bool | None) -> None:
        breaker = self.ended(request)
        if worked is None:
            breaker.spared(trial=request[1])
        elif worked:
            breaker.succeeded(self.now_s, trial=request[1])
        else:
            breaker.failed(self.now_s, trial=request[1])

    @invariant()
    def everybody_is_asked_at_last_and_on_record(self) -> None:
        decision = candidates(ROSTER, self.standing, Random(0).random)
        assert sorted(each.engine for each in decision.order) == ["e0", "e1", "e2", "e3"]
        assert [each.engine for each in decision.considered] == [each.engine for each in decision.order]

    @invariant()
    def the_spare_goes_first_only_if_no_box_is_able(self) -> None:
        decision = candidates(ROSTER, self.standing, Random(0).random)
        assert decision.first is not None
        if decision.first.engine == "e3" and self.standing(TARGETS[3]).able:
            assert not any(self.standing(target).able for target in TARGETS[:3])

    @invariant()
    def one_that_is_on_trial_has_no_trial_going_on(self) -> None:
        for engine, breaker in self.breakers.items():
            if breaker.state(self.now_s) == "trial":
                assert self.trials[engine] == 0


TestChosen = Chosen.TestCase
TestChosen.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
