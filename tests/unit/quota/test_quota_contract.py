"""What every quota keeps to, wherever it counts: in memory and in Redis alike."""

from collections.abc import AsyncIterator

import pytest

from drivetrain.quota import Demand, Quota
from drivetrain.quota.memory import MemoryQuota
from tests.services import new_redis
from tests.unit.quota.counting import (
    CENT,
    DOLLAR,
    Clock,
    admitted,
    held,
    leased,
    money,
    refused,
    rule,
    shared,
    tokens,
    used,
    wait_of,
)

pytestmark = pytest.mark.anyio

SHORT_S = 0.001


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis", "leased"])
async def quota(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Quota]:
    if request.param == "memory":
        yield MemoryQuota(clock=clock)
    elif request.param == "leased":
        async with leased(new_redis(request), clock) as counting:
            yield counting
    else:
        async with shared(new_redis(request), clock) as made:
            yield made


# --- rates ------------------------------------------------------------------------------------------------------------


async def test_of_a_burst_as_many_are_let_in_as_the_limit_says(quota: Quota) -> None:
    assert len(await admitted(quota, [rule(amount=100)], times=400)) == 100


async def test_who_waits_as_told_is_let_in_and_not_much_earlier(quota: Quota, clock: Clock) -> None:
    limit = rule(amount=2)
    await held(quota, [limit])
    clock.turn(10)
    await held(quota, [limit])
    refusal = await refused(quota, [limit])
    assert refusal.wait_s == pytest.approx(50.75, abs=SHORT_S)  # the first one's bucket ends at .75, a minute later
    clock.turn(wait_of(refusal) - SHORT_S)
    await refused(quota, [limit])
    clock.turn(SHORT_S)
    await held(quota, [limit])


async def test_a_limit_per_day_rolls_too(quota: Quota, clock: Clock) -> None:
    limit = rule(amount=1, per="day")
    await held(quota, [limit])
    clock.turn(86_400 - 1)
    refusal = await refused(quota, [limit])
    clock.turn(wait_of(refusal))
    await held(quota, [limit])


async def test_an_estimate_is_set_aside_and_corrected_when_the_count_is_known(quota: Quota) -> None:
    limit = rule("tokens", 1000)
    first = await held(quota, [limit], tokens(600))
    await refused(quota, [limit], tokens(600))
    quota.settle(first, tokens(100))
    assert await used(quota, limit) == 100
    await held(quota, [limit], tokens(900))
    await refused(quota, [limit], tokens(1))


async def test_a_correction_counts_from_when_it_was_set_aside(quota: Quota, clock: Clock) -> None:
    limit = rule("tokens", 1000)
    first = await held(quota, [limit], tokens(10))
    clock.turn(59)
    quota.settle(first, tokens(1000))
    assert (await refused(quota, [limit], tokens(1))).wait_s == pytest.approx(1.75, abs=SHORT_S)
    clock.turn(1.76)
    await held(quota, [limit], tokens(1000))


async def test_more_than_was_set_aside_keeps_everybody_out_until_it_is_old(quota: Quota, clock: Clock) -> None:
    limit = rule("tokens", 1000)
    first = await held(quota, [limit], tokens(10))
    clock.turn(5)
    second = await held(quota, [limit], tokens(10))
    quota.settle(first, tokens(5000))
    quota.settle(second, tokens(500))
    refusal = await refused(quota, [limit], tokens(500))
    assert refusal.wait_s == pytest.approx(55.75, abs=SHORT_S)
    clock.turn(wait_of(refusal))
    await held(quota, [limit], tokens(500))


async def test_what_is_settled_after_its_period_changes_nothing(quota: Quota, clock: Clock) -> None:
    limit = rule("tokens", 1000)
    first = await held(quota, [limit], tokens(10))
    clock.turn(70)
    await held(quota, [limit], tokens(400))
    quota.settle(first, tokens(900))
    assert await used(quota, limit) == 400


async def test_an_estimate_above_the_whole_limit_passes_when_nothing_else_counts(quota: Quota, clock: Clock) -> None:
    limit = rule("tokens", 1000)
    await held(quota, [limit], tokens(1))
    refusal = await refused(quota, [limit], tokens(5000))
    clock.turn(wait_of(refusal))
    await held(quota, [limit], tokens(5000))
    await refused(quota, [limit], tokens(1))


async def test_a_hold_tells_what_is_left_and_when_all_is_free(quota: Quota) -> None:
    limits = [rule(amount=10), rule("tokens", 1000, "day"), rule("concurrency", 5), rule("money", DOLLAR, "day")]
    hold = await held(quota, limits, Demand(tokens=300, micro_usd=CENT))
    told = [(each.rule.id, each.remaining, round(each.reset_s, 2)) for each in hold.standings]
    assert told == [("requests:minute", 9, 60.75), ("tokens:day", 700, 86_400 + 1440 - 0.25)]


# --- slots ------------------------------------------------------------------------------------------------------------


async def test_a_slot_is_taken_until_it_is_settled(quota: Quota, clock: Clock) -> None:
    limit = rule("concurrency", 2)
    first, _ = await held(quota, [limit]), await held(quota, [limit])
    clock.turn(20)
    refusal = await refused(quota, [limit])
    assert refusal.wait_s is None
    quota.settle(first, Demand())
    await held(quota, [limit])
    await refused(quota, [limit])


async def test_settling_a_second_time_does_nothing(quota: Quota) -> None:
    limits = [rule("concurrency", 2), rule("tokens", 1000), rule("money", DOLLAR, "day")]
    first = await held(quota, limits, Demand(tokens=100, micro_usd=CENT))
    await held(quota, limits, Demand(tokens=100, micro_usd=CENT))
    for _ in range(3):
        quota.settle(first, Demand(tokens=50, micro_usd=CENT))
    assert await quota.spent(limits) == {"concurrency:minute": 1, "tokens:minute": 150, "money:day": 2 * CENT}


# --- money ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rolling", [False, True])
async def test_of_many_at_once_a_budget_lets_in_what_it_can_pay_for(quota: Quota, rolling: bool) -> None:
    budget = rule("money", DOLLAR, "day", rolling=rolling)
    holds = await admitted(quota, [budget], money(CENT), times=200)
    assert len(holds) == 100
    for hold in holds:
        quota.settle(hold, money(CENT))
    assert await used(quota, budget) == DOLLAR
    await refused(quota, [budget], money(1))


@pytest.mark.parametrize("rolling", [False, True])
async def test_what_was_too_much_goes_back(quota: Quota, rolling: bool) -> None:
    budget = rule("money", DOLLAR, "month", rolling=rolling)
    first = await held(quota, [budget], money(90 * CENT))
    await refused(quota, [budget], money(20 * CENT))
    quota.settle(first, money(5 * CENT))
    assert await used(quota, budget) == 5 * CENT
    await held(quota, [budget], money(95 * CENT))


async def test_a_budget_has_room_again_when_its_window_ends(quota: Quota, clock: Clock) -> None:
    budget = rule("money", DOLLAR, "day")
    quota.settle(await held(quota, [budget], money(DOLLAR)), money(DOLLAR))
    refusal = await refused(quota, [budget], money(1))
    assert refusal.wait_s == pytest.approx(12 * 3600 - 0.25, abs=SHORT_S)
    clock.turn(wait_of(refusal))
    await held(quota, [budget], money(DOLLAR))


async def test_a_request_over_the_end_of_a_window_is_booked_where_it_was_reserved(quota: Quota, clock: Clock) -> None:
    budget = rule("money", DOLLAR, "day")
    hold = await held(quota, [budget], money(60 * CENT))
    clock.turn(13 * 3600)
    assert await used(quota, budget) == 0
    quota.settle(hold, money(70 * CENT))
    assert await used(quota, budget) == 0
    await held(quota, [budget], money(DOLLAR))


async def test_rolling_money_is_free_a_period_after_it_was_reserved(quota: Quota, clock: Clock) -> None:
    budget = rule("money", DOLLAR, "hour", rolling=True)
    first = await held(quota, [budget], money(60 * CENT))
    clock.turn(600)
    second = await held(quota, [budget], money(30 * CENT))
    quota.settle(first, money(60 * CENT))
    quota.settle(second, money(30 * CENT))
    refusal = await refused(quota, [budget], money(50 * CENT))
    assert refusal.wait_s == pytest.approx(3000 + 60 - 0.25, abs=SHORT_S)
    clock.turn(wait_of(refusal))
    await held(quota, [budget], money(50 * CENT))
    await refused(quota, [budget], money(50 * CENT))


async def test_money_that_requests_still_hold_has_no_time_to_wait_for(quota: Quota) -> None:
    budget = rule("money", DOLLAR, "hour", rolling=True)
    await held(quota, [budget], money(DOLLAR))
    assert (await refused(quota, [budget], money(1))).wait_s is None


async def test_no_time_helps_where_the_whole_budget_is_too_small_or_has_no_end(quota: Quota) -> None:
    monthly, total = rule("money", DOLLAR, "month"), rule("money", DOLLAR, "total")
    assert (await refused(quota, [monthly], money(DOLLAR + 1))).wait_s is None
    quota.settle(await held(quota, [total], money(DOLLAR)), money(DOLLAR))
    assert (await refused(quota, [total], money(1))).wait_s is None


async def test_what_costs_nothing_passes_a_budget_that_is_used_up(quota: Quota) -> None:
    budget = rule("money", DOLLAR, "day")
    await held(quota, [budget], money(DOLLAR))
    await held(quota, [budget], money(0))


@pytest.mark.parametrize(
    "quota", ["memory", "redis"], indirect=True
)  # of leases, an overdraft is known when one is over
async def test_what_costs_nothing_does_not_pass_a_budget_that_is_overdrawn(quota: Quota) -> None:
    budget = rule("money", DOLLAR, "day")
    hold = await held(quota, [budget], money(DOLLAR))
    await held(quota, [budget], money(0))
    quota.settle(hold, money(DOLLAR + 1))
    await refused(quota, [budget], money(0))


@pytest.mark.parametrize("rolling", [False, True])
async def test_a_dearer_attempt_sets_more_aside_or_leaves_all_as_it_was(quota: Quota, rolling: bool) -> None:
    budget, limit = rule("money", DOLLAR, "day", rolling=rolling), rule("concurrency", 1)
    hold = await held(quota, [limit, budget], money(50 * CENT))
    more = await quota.extend(hold, 30 * CENT)
    assert getattr(more, "demand", None) == money(80 * CENT)
    assert await used(quota, budget) == 80 * CENT
    assert getattr(await quota.extend(hold, 30 * CENT), "rule", None) == budget
    assert await quota.spent([budget, limit]) == {budget.id: 80 * CENT, limit.id: 1}
    quota.settle(hold, money(70 * CENT))
    assert await quota.spent([budget, limit]) == {budget.id: 70 * CENT, limit.id: 0}


# --- several rules ----------------------------------------------------------------------------------------------------


async def test_a_refusal_sets_nothing_aside(quota: Quota) -> None:
    open_limits = [rule(amount=10), rule("tokens", 1000), rule("concurrency", 5), rule("money", DOLLAR, "day")]
    rolling = rule("money", DOLLAR, "hour", rolling=True)
    full = rule(amount=1, name="full")
    await held(quota, [full])
    refusal = await refused(quota, [*open_limits, rolling, full], Demand(tokens=10, micro_usd=10))
    assert refusal.rule == full
    assert set((await quota.spent([*open_limits, rolling])).values()) == {0}


async def test_a_refusal_names_what_has_to_be_waited_for_longest(quota: Quota) -> None:
    minute, day = rule(amount=1, per="minute"), rule(amount=1, per="day")
    await held(quota, [minute, day])
    assert (await refused(quota, [minute, day])).rule == day
    assert (await refused(quota, [day, minute])).rule == day


async def test_no_line_is_joined_whose_end_is_another_refusal(quota: Quota) -> None:
    slot, minute = rule("concurrency", 1), rule(amount=1)
    await held(quota, [slot, minute])
    assert (await refused(quota, [slot, minute])).rule == minute
    assert (await refused(quota, [slot])).rule == slot


async def test_a_soft_rule_counts_and_refuses_nobody(quota: Quota) -> None:
    soft = [rule("money", DOLLAR, "day", hard=False), rule(amount=1, hard=False)]
    for _ in range(3):
        quota.settle(await held(quota, soft, money(DOLLAR)), money(DOLLAR))
    assert await quota.spent(soft) == {"money:day": 3 * DOLLAR, "requests:minute": 3}


async def test_a_changed_amount_forgets_nothing(quota: Quota) -> None:
    await held(quota, [rule(amount=1)])
    await refused(quota, [rule(amount=1)])
    await held(quota, [rule(amount=2)])
    await refused(quota, [rule(amount=2)])


async def test_a_rule_that_counts_something_else_now_begins_anew(quota: Quota) -> None:
    await held(quota, [rule(amount=1, per="day", name="x")])
    await held(quota, [rule(amount=1, per="minute", name="x")])
    await held(quota, [rule("tokens", 1, "minute", name="x")], tokens(1))
    await held(quota, [rule("money", 1, "day", name="x", zone="Europe/Berlin")], money(1))
    await held(quota, [rule("money", 1, "day", name="x")], money(1))
    await refused(quota, [rule("money", 1, "day", name="x")], money(1))


async def test_nothing_to_count_is_let_in(quota: Quota) -> None:
    hold = await held(quota, [])
    quota.settle(hold, Demand())
    assert await quota.spent([]) == {}
