"""When an engine is set aside, how it comes back, and what never counts."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from drivetrain.config.schema import Breaker as Rules
from drivetrain.router import Breaker

RULES = Rules(failures=3, percent=50, window_s=60.0, least_requests=10, open_s=10.0, slow_start_s=20.0)


def broken(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    for _ in range(3):
        attempt(breaker, at_s, worked=False)
    return breaker


def attempt(breaker: Breaker, now_s: float, *, worked: bool | None) -> None:
    trial = breaker.began()
    if worked is None:
        breaker.spared(trial=trial)
    elif worked:
        breaker.succeeded(now_s, trial=trial)
    else:
        breaker.failed(now_s, trial=trial)


def test_it_opens_on_failures_in_a_row() -> None:
    breaker = Breaker(RULES)
    for worked, state in ((False, "closed"), (False, "closed"), (False, "open")):
        attempt(breaker, 1.0, worked=worked)
        assert breaker.state(1.0) == state


def test_one_success_starts_the_row_anew() -> None:
    breaker = Breaker(RULES)
    for worked in (False, False, True, False, False):
        attempt(breaker, 1.0, worked=worked)
    assert breaker.state(1.0) == "closed"


def test_it_opens_on_a_share_of_failures_only_with_enough_requests() -> None:
    breaker = Breaker(RULES)
    for turn in range(9):
        attempt(breaker, 1.0, worked=turn % 2 == 0)
    assert breaker.state(1.0) == "closed"
    attempt(breaker, 1.0, worked=False)
    assert breaker.state(1.0) == "open"


def test_failures_of_long_ago_do_not_count() -> None:
    breaker = Breaker(RULES)
    for turn in range(8):
        attempt(breaker, 1.0, worked=turn % 2 == 0)
    for worked in (True, False):
        attempt(breaker, 100.0, worked=worked)
    assert breaker.state(100.0) == "closed"


def test_a_mistake_of_the_caller_or_a_request_given_up_never_counts() -> None:
    breaker = Breaker(RULES)
    for worked in (False, False, *[None] * 100):
        attempt(breaker, 1.0, worked=worked)
    assert (breaker.state(1.0), breaker.share(1.0)) == ("closed", Breaker.share(_after(False, False), 1.0))


def _after(*outcomes: bool) -> Breaker:
    breaker = Breaker(RULES)
    for worked in outcomes:
        attempt(breaker, 1.0, worked=worked)
    return breaker


def test_after_the_pause_one_request_at_a_time_may_try_it() -> None:
    breaker = broken(at_s=0.0)
    assert [breaker.state(now_s) for now_s in (0.0, 9.9, 10.0)] == ["open", "open", "trial"]
    breaker.began()
    assert breaker.state(11.0) == "trying"


def test_a_trial_that_succeeds_closes_it_and_the_engine_warms_up() -> None:
    breaker = broken(at_s=0.0)
    attempt(breaker, 12.0, worked=True)
    assert breaker.state(12.0) == "closed"
    assert [breaker.share(now_s) for now_s in (12.0, 22.0, 32.0)] == [0.05, 0.5, 1.0]


def test_each_trial_that_fails_doubles_the_pause_up_to_eightfold() -> None:
    breaker, now_s, pauses = broken(at_s=0.0), 0.0, []
    for _ in range(6):
        pause_s = next(s for s in range(1, 1000) if breaker.state(now_s + s) == "trial")
        pauses.append(pause_s)
        now_s += pause_s
        attempt(breaker, now_s, worked=False)
    assert pauses == [10, 20, 40, 80, 80, 80]


def test_a_trial_that_tells_nothing_leaves_the_place_to_the_next() -> None:
    breaker = broken(at_s=0.0)
    attempt(breaker, 12.0, worked=None)
    assert breaker.state(12.0) == "trial"


def test_what_began_before_it_opened_neither_closes_it_nor_prolongs_the_pause() -> None:
    breaker = Breaker(RULES)
    began = [breaker.began() for _ in range(5)]
    for trial in began[:3]:
        breaker.failed(0.0, trial=trial)
    breaker.succeeded(5.0, trial=began[3])
    breaker.failed(9.0, trial=began[4])
    assert [breaker.state(now_s) for now_s in (5.0, 9.9, 10.0)] == ["open", "open", "trial"]


def test_a_last_resort_that_succeeds_during_the_pause_closes_it() -> None:
    breaker = broken(at_s=0.0)
    attempt(breaker, 3.0, worked=True)
    assert breaker.state(3.0) == "closed"


def test_a_last_resort_that_fails_during_the_pause_does_not_prolong_it() -> None:
    breaker = broken(at_s=0.0)
    attempt(breaker, 3.0, worked=False)
    assert breaker.state(10.0) == "trial"


def test_an_engine_that_a_probe_finds_again_may_be_tried_at_once() -> None:
    breaker = broken(at_s=0.0)
    breaker.returned(2.0)
    assert breaker.state(2.0) == "trial"


def test_an_engine_that_was_away_takes_up_work_slowly() -> None:
    breaker = Breaker(RULES)
    breaker.returned(100.0)
    assert [breaker.share(now_s) for now_s in (100.0, 105.0, 120.0)] == [0.05, 0.25, 1.0]


def test_a_failure_costs_some_of_the_share_for_a_while() -> None:
    breaker = _after(False)
    shares = [breaker.share(now_s) for now_s in (1.0, 31.0, 301.0)]
    assert shares == [0.7, 1 - 0.3 * 2.718281828459045**-1, 1.0]


class Broken(RuleBasedStateMachine):
    """Attempts overlap and end in any order, at any time."""

    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(RULES)
        self.now_s = 0.0
        self.trials = 0

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(target=attempts)
    def begins(self) -> bool:
        trial = self.breaker.began()
        assert trial == (self.breaker.state(self.now_s) != "closed")
        self.trials += trial
        return trial

    @rule(trial=consumes(attempts))
    def succeeds(self, trial: bool) -> None:
        self.breaker.succeeded(self.now_s, trial=trial)
        self.trials -= trial
        if trial:
            assert self.breaker.state(self.now_s) == "closed"

    @rule(trial=consumes(attempts))
    def fails(self, trial: bool) -> None:
        before = self.breaker.state(self.now_s)
        self.breaker.failed(self.now_s, trial=trial)
        self.trials -= trial
        if before == "trying" and trial:
            assert self.breaker.state(self.now_s) == "open"
        elif before != "closed" and not trial:
            assert self.breaker.state(self.now_s) in (before, "trial")

    @rule(trial=consumes(attempts))
    def is_given_up(self, trial: bool) -> None:
        share, closed = self.breaker.share(self.now_s), self.breaker.state(self.now_s) == "closed"
        self.breaker.spared(trial=trial)
        self.trials -= trial
        assert self.breaker.share(self.now_s) == share
        assert (self.breaker.state(self.now_s) == "closed") == closed

    @invariant()
    def its_share_is_never_nothing_nor_more_than_all(self) -> None:
        assert 0.05 <= self.breaker.share(self.now_s) <= 1.0

    @invariant()
    def it_is_tried_again_at_last(self) -> None:
        if self.breaker.state(self.now_s) == "open":
            later = self.breaker.state(self.now_s + 8 * RULES.open_s)
            assert later == ("trying" if self.trials else "trial")


TestBroken = Broken.TestCase
TestBroken.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
