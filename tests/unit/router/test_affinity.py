"""Prompts and sessions are kept where they are at home, as far as nobody gets too much to do for that."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.schema import Target
from drivetrain.router import (
    ORDINARY,
    Decision,
    Facts,
    Heat,
    Roster,
    Speed,
    Standing,
    Terms,
    Traits,
    Wish,
    Work,
    candidates,
    work_of,
)

NAMES = ("a", "b", "c")
PREFIX, SESSION = Wish(affinity="prefix"), Wish(affinity="session")
KEYS = [Random(seed).getrandbits(64) | 1 for seed in range(3000)]


class Pool:
    """Engines, what they have in hand, and a choice among them."""

    def __init__(self, *names: str, wish: Wish = PREFIX, weights: Mapping[str, int] = {}) -> None:
        self.targets = [Target(engine=name, model="m", weight=weights.get(name, 1)) for name in names]
        self.known: dict[str, Standing] = {name: Standing() for name in names}
        self.traits: dict[str, Traits] = {}
        self.wish = wish
        self.roster = Roster(self.targets, lambda target: self.traits.get(target.engine, ORDINARY))
        self.heat = Heat()
        self.random = Random(1)

    def work(self, targets: Sequence[Target]) -> Work:
        found = [(self.known[target.engine], target.weight) for target in targets]
        able = [(each.outstanding, weight) for each, weight in found if each.ready and each.state == "closed"]
        return work_of([work for work, _ in able], [weight for _, weight in able])

    def terms(self, share: float) -> Terms:
        return Terms(self.wish, lambda target: 0.0, self.work, share)

    def decide(self, key: int, shared: int | None = None, *, share: float = 0.0) -> Decision:
        facts = Facts(own=key, shared=key if shared is None else shared)
        return candidates(
            self.roster, lambda target: self.known[target.engine], self.random.random, facts, self.terms(share)
        )

    def first(self, key: int, shared: int | None = None, *, share: float = 0.0) -> str:
        decision = self.decide(key, shared, share=share)
        assert decision.first is not None
        return decision.first.engine

    def home(self, key: int) -> str:
        """Where it goes while nobody has anything to do."""
        known, self.known = self.known, {name: Standing() for name in self.known}
        found = self.first(key)
        self.known = known
        return found

    def at(self, name: str) -> int:
        """A key that is at home there."""
        return next(key for key in KEYS if self.home(key) == name)


# --- where it goes ----------------------------------------------------------------------------------------------------


def test_the_same_beginning_goes_to_the_same_engine_and_different_ones_are_shared_out() -> None:
    pool = Pool(*NAMES)
    homes = {key: pool.first(key) for key in KEYS}
    assert {key: pool.first(key) for key in KEYS} == homes
    assert all(0.2 < count / len(KEYS) < 0.5 for count in Counter(homes.values()).values())


def test_two_replicas_know_the_same_homes_without_a_word() -> None:
    one, other = Pool(*NAMES), Pool(*NAMES)
    other.random = Random(99)
    assert [one.first(key) for key in KEYS[:100]] == [other.first(key) for key in KEYS[:100]]


def test_without_a_session_it_goes_by_load() -> None:
    pool = Pool(*NAMES, wish=SESSION)
    assert {pool.first(0) for _ in range(50)} == set(NAMES)


def test_it_leaves_an_engine_that_has_more_than_its_share_to_do() -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    pool.known = {"a": Standing(outstanding=5), "b": Standing(outstanding=4), "c": Standing(outstanding=4)}
    decision = pool.decide(key)
    assert decision.first is not None
    assert (decision.first.engine in "bc", decision.first.why.partition(", load")[0]) == (
        True,
        "tier 0, same prefix, spilled over",
    )
    assert {pool.first(key) for _ in range(20)} == {decision.first.engine}  # the second home is always the same


def test_it_stays_with_an_engine_up_to_a_quarter_more_than_the_mean() -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    pool.known = {"a": Standing(outstanding=4), "b": Standing(outstanding=4), "c": Standing(outstanding=3)}
    decision = pool.decide(key)
    assert decision.first is not None
    assert (decision.first.engine, decision.first.why) == ("a", "tier 0, same prefix, load 4")


def test_an_idle_pool_never_sends_a_conversation_elsewhere() -> None:
    pool = Pool(*NAMES, wish=SESSION)
    assert {pool.first(KEYS[0]) for _ in range(100)} == {pool.home(KEYS[0])}


@given(
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
    st.sampled_from([(1, 1, 1), (1, 2, 4)]),
    st.floats(1.0, 2.0),
    st.integers(1, 2**63),
)
def test_no_engine_is_ever_brought_above_the_factor_by_affinity(
    work: list[int], weights: tuple[int, ...], factor: float, key: int
) -> None:
    pool = Pool(
        *NAMES, wish=Wish(affinity="prefix", load_factor=factor), weights=dict(zip(NAMES, weights, strict=True))
    )
    pool.known = {name: Standing(outstanding=each) for name, each in zip(NAMES, work, strict=True)}
    at = NAMES.index(pool.first(key))
    mean = (sum(work) + 1) / sum(weights)
    least = min((each + 1) / weight for each, weight in zip(work, weights, strict=True))
    assert (work[at] + 1) / weights[at] <= max(factor * mean, least) + 1e-6


@pytest.mark.parametrize("concurrency", [12, 24, 60])
def test_under_load_the_busiest_engine_has_at_most_a_quarter_more_than_the_mean(concurrency: int) -> None:
    """One beginning in ten is half of the traffic."""
    pool, chance = Pool(*NAMES), Random(concurrency)
    running: list[str] = []
    work = Counter[str]()
    peaks: list[float] = []
    for step in range(2000):
        key = KEYS[0] if chance.random() < 0.5 else KEYS[chance.randrange(10)]
        name = pool.first(key, share=0.01)
        running.append(name)
        work[name] += 1
        if len(running) > concurrency:
            work[running.pop(chance.randrange(len(running)))] -= 1
        pool.known = {each: Standing(outstanding=work[each]) for each in NAMES}
        if step > concurrency:
            peaks.append(max(work.values()) / (sum(work.values()) / 3))
    assert fmean(peaks) <= 1.25


# --- system prompts and conversations ---------------------------------------------------------------------------------


def test_conversations_with_a_rare_system_prompt_are_all_at_one_engine() -> None:
    pool = Pool(*NAMES)
    assert len({pool.first(key, KEYS[0], share=0.1) for key in KEYS[:200]}) == 1


def test_conversations_with_a_common_one_are_spread_and_each_stays_where_it_is() -> None:
    pool = Pool(*NAMES)
    homes = [pool.first(key, KEYS[0], share=1.0) for key in KEYS[:300]]
    assert [pool.first(key, KEYS[0], share=1.0) for key in KEYS[:300]] == homes
    assert all(count > 60 for count in Counter(homes).values())


def test_the_more_common_it_is_the_more_homes_it_has() -> None:
    pool = Pool(*map(str, range(10)))
    found = [len({pool.first(key, KEYS[0], share=share) for key in KEYS[:300]}) for share in (0.05, 0.1, 0.15, 0.2, 1)]
    assert found == [1, 2, 3, 4, 10]


def test_one_home_more_moves_only_some_conversations() -> None:
    pool = Pool(*map(str, range(10)))
    before = [pool.first(key, KEYS[0], share=0.1) for key in KEYS[:300]]
    after = [pool.first(key, KEYS[0], share=0.15) for key in KEYS[:300]]
    assert 60 < sum(old != new for old, new in zip(before, after, strict=True)) < 140  # to the third of three


# --- engines that ail -------------------------------------------------------------------------------------------------

AWAY, OPEN, TRIAL, TRYING = Standing(ready=False), *(Standing(state=state) for state in ("open", "trial", "trying"))


@pytest.mark.parametrize("ailing", [AWAY, OPEN, TRYING, Standing(wait_s=3.0)])
def test_it_goes_to_its_second_home_while_the_first_is_not_able_and_back_after(ailing: Standing) -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    pool.known["a"] = ailing
    away = {pool.first(key) for _ in range(20)}
    assert len(away) == 1
    assert "a" not in away
    pool.known["a"] = Standing()
    assert pool.first(key) == "a"


def test_an_engine_on_trial_gets_a_request_that_is_at_home_there() -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    pool.known["a"] = TRIAL
    assert pool.first(key) == "a"


def test_an_engine_that_warms_up_gets_its_own_back_bit_by_bit() -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    pool.known["a"] = Standing(share=0.25)
    assert 180 < Counter(pool.first(key) for _ in range(1000))["a"] < 320


def test_a_much_slower_home_is_left_and_a_somewhat_slower_one_is_not() -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    fast, slower, slow = (Speed(prompt_s=0.001 * times, token_s=0.01 * times) for times in (1, 5, 10))
    pool.known = {"a": Standing(speed=slower), "b": Standing(speed=fast), "c": Standing(speed=fast)}
    assert pool.first(key) == "a"
    pool.known["a"] = Standing(speed=slow)
    decision = pool.decide(key)
    assert decision.first is not None
    assert decision.first.engine != "a"
    assert decision.first.why.startswith("tier 0, same prefix, its home is slow")


def test_whoever_lacks_something_is_no_home() -> None:
    pool = Pool(*NAMES)
    key = pool.at("a")
    pool.traits["a"] = Traits(context=100)
    pool.roster.renew()
    assert pool.first(key) != "a"


def test_after_a_failure_the_next_one_is_the_second_home() -> None:
    pool = Pool(*map(str, range(6)))
    for key in KEYS[:50]:
        order = [each.engine for each in pool.decide(key).order]
        pool.known[order[0]] = AWAY
        assert pool.first(key) == order[1]
        pool.known[order[0]] = Standing()
