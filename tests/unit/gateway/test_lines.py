"""The line for a limit on requests at once: classes, slots of one's own, fairness, room, and honest waits.

Time is counted in turns: an answer takes so many, and the test says when one is over.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.config.schema import Limits, Policy, Queue, Reserved, Target
from drivetrain.errors import Busy
from drivetrain.gateway import Call
from drivetrain.gateway.admission import Admission, Ticket
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.lines import Line, Seat
from drivetrain.gateway.receipt import Receipt
from drivetrain.governance import Principal, Priority, Rule
from drivetrain.policies.classes import AHEAD, CLASSES, RANKS
from drivetrain.quota import Demand, Hold
from drivetrain.quota.memory import MemoryQuota
from tests.fakes.engine import END, HELLO, Notebook, ScriptedEngine, ask, gateway_over

pytestmark = pytest.mark.anyio
NOTHING = Reserved(default=0)


class Visitor:
    """One request, from its coming to its end."""

    def __init__(self, priority: Priority, tenant: str, came: int, turns: int, tokens: int) -> None:
        self.priority = priority
        self.tenant = tenant
        self.came = came
        self.turns = turns  # that its answer takes
        self.tokens = tokens
        self.entered: int | None = None
        self.ticket: Ticket | None = None
        self.refused: Busy | None = None
        self.task: asyncio.Task[None] | None = None


class Floor:
    """A model with so many slots, and a clock that goes on by `turn` only."""

    def __init__(self, slots: int, *, reserved: Reserved = NOTHING, size: int = 512, shared: bool = False) -> None:
        self.slots = slots
        self.notebook = Notebook()
        policy = Policy(limits=Limits(concurrency=slots), queue=Queue(size=size, reserved=reserved))
        self.entry = Entry(name="chat", targets=(Target(engine="a", model="m"),), policy=policy)
        self.quota = MemoryQuota()
        self.admission = Admission(self.quota, self.notebook, shared=shared)
        self.now = 0
        self.all: list[Visitor] = []

    async def come(
        self,
        priority: Priority = "default",
        tenant: str = "",
        *,
        turns: int = 1,
        tokens: int = 10,
        rules: Sequence[Rule] = (),
    ) -> Visitor:
        visitor = Visitor(priority, tenant, self.now, turns, tokens)
        visitor.task = asyncio.create_task(self._enter(visitor, tuple(rules)))
        self.all.append(visitor)
        await self.quiet()
        return visitor

    async def _enter(self, visitor: Visitor, own: tuple[Rule, ...]) -> None:
        who = Principal(team=visitor.tenant, rules=own)
        call = Call(id="r", dialect="openai.chat", received_s=0.0, who=who, priority=visitor.priority)
        bound = self.admission.rules(who, self.entry, visitor.priority)
        queue = self.entry.policy.queue
        try:
            visitor.ticket = await self.admission.enter(bound, Demand(), queue, Receipt(), call=call)
        except Busy as error:
            visitor.refused = error
            return
        visitor.entered = self.now

    async def quiet(self) -> None:
        """Until nobody does anything of their own accord any more."""
        calm = 0
        while calm < 8:
            before = (len(self.inside), self.notebook.queued, sum(1 for each in self.all if each.refused))
            await asyncio.sleep(0)
            after = (len(self.inside), self.notebook.queued, sum(1 for each in self.all if each.refused))
            calm = calm + 1 if before == after else 0

    @property
    def inside(self) -> list[Visitor]:
        return [each for each in self.all if each.ticket is not None]

    async def end(self, *visitors: Visitor) -> None:
        """Their answers are over, all at once."""
        for visitor in visitors:
            assert visitor.ticket is not None
            visitor.ticket.spend(visitor.tokens, 0)
            visitor.ticket.close()
            visitor.ticket = None
        await self.quiet()

    async def turn(self) -> None:
        """Time goes on by one: answers that have had their turns are over."""
        self.now += 1
        for visitor in self.inside:
            if visitor.entered is not None and self.now - visitor.entered >= visitor.turns:
                await self.end(visitor)

    async def has_room(self, priority: Priority) -> bool:
        bound = self.admission.rules(Principal(), self.entry, priority)
        used = await self.quota.spent(bound)
        return all(used[rule.id] < rule.amount for rule in bound)

    async def close(self) -> None:
        for visitor in self.all:
            if visitor.task is not None:
                visitor.task.cancel()
        await asyncio.gather(*(each.task for each in self.all if each.task is not None), return_exceptions=True)
        for visitor in self.inside:
            await self.end(visitor)


# --- classes ----------------------------------------------------------------------------------------------------------


async def test_a_slot_goes_to_the_highest_class_that_waits() -> None:
    floor = Floor(1)
    running = await floor.come()
    waiting = [await floor.come(priority) for priority in CLASSES]
    served: list[Priority] = []
    for _ in CLASSES:
        await floor.end(running)
        (running,) = floor.inside
        served.append(running.priority)
    assert served == ["system", "interactive", "default", "bulk"]
    assert all(visitor.entered is not None for visitor in waiting)
    await floor.close()


async def test_equals_are_served_in_the_order_in_which_they_came() -> None:
    floor = Floor(1)
    visitors = [await floor.come("bulk") for _ in range(6)]
    for visitor in visitors:
        assert floor.inside == [visitor]
        await floor.end(visitor)


async def test_a_flood_of_interactive_requests_lets_bulk_move() -> None:
    floor = Floor(1)
    running = await floor.come("interactive")
    await floor.come("bulk")
    for _ in range(3 * AHEAD):
        await floor.come("interactive")
    served: list[Priority] = []
    while floor.inside:
        await floor.end(running)
        served += [each.priority for each in floor.inside]
        running = floor.inside[0] if floor.inside else running
    assert served.index("bulk") == AHEAD
    assert len(served) == 3 * AHEAD + 1


# --- slots of one's own -----------------------------------------------------------------------------------------------


async def test_bulk_leaves_slots_free_that_default_requests_get_at_once() -> None:
    floor = Floor(10, reserved=Reserved(default=20))
    for _ in range(20):
        await floor.come("bulk", turns=99)
    assert len(floor.inside) == 8
    urgent = [await floor.come(priority) for priority in ("default", "interactive")]
    assert [visitor.entered for visitor in urgent] == [0, 0]
    await floor.close()


async def test_a_class_alone_may_have_every_slot_that_is_not_anothers_own() -> None:
    floor = Floor(10, reserved=Reserved(interactive=20, default=20))
    for priority in ("default", "interactive"):
        for _ in range(20):
            await floor.come(priority, turns=99)
    assert Counter(visitor.priority for visitor in floor.inside) == {"default": 8, "interactive": 2}
    await floor.close()


async def test_bulk_that_waits_for_slots_of_its_own_is_not_in_the_way_of_others() -> None:
    floor = Floor(5, reserved=Reserved(default=20))
    for _ in range(30):
        await floor.come("bulk", turns=99)
    running = [visitor for visitor in floor.inside if visitor.priority == "bulk"]
    quick = await floor.come("default")
    late = await floor.come("default")
    assert (len(running), quick.entered, late.entered) == (4, 0, None)
    await floor.turn()
    assert late.entered == 1
    await floor.end(running[0])
    assert Counter(visitor.priority for visitor in floor.inside) == {"default": 1, "bulk": 4}
    await floor.close()


async def test_bulk_whose_turn_it_is_gives_it_away_if_it_has_all_its_slots() -> None:
    floor = Floor(5, reserved=Reserved(default=20))
    for _ in range(4):
        await floor.come("bulk", turns=99)
    await floor.come("default")
    await floor.come("bulk")
    waiting = [await floor.come("default") for _ in range(2 * AHEAD)]
    for number in range(1, 2 * AHEAD + 1):
        await floor.turn()
        assert [visitor.entered is not None for visitor in waiting].count(True) == number
    await floor.close()


async def test_with_nobody_above_it_bulk_goes_on_as_its_slots_come_free() -> None:
    floor = Floor(5, reserved=Reserved(default=20))
    for _ in range(12):
        await floor.come("bulk")
    for _ in range(3):
        assert len(floor.inside) == 4
        await floor.turn()
    assert [len(floor.inside), floor.notebook.queued] == [0, 0]


async def waits(floor: Floor, *, bulk: int) -> list[int]:
    """How many turns each interactive answer takes, from its coming to its end, beside so much bulk."""
    asked: list[Visitor] = []
    for _ in range(30):
        for _ in range(bulk):
            await floor.come("bulk", "batch", turns=4)
        asked.append(await floor.come("interactive", "people", turns=2))
        await floor.turn()
    while any(visitor.entered is None for visitor in asked):
        await floor.turn()
    taken = [visitor.entered - visitor.came + visitor.turns for visitor in asked if visitor.entered is not None]
    await floor.close()
    return sorted(taken)


async def test_ten_times_too_much_bulk_slows_interactive_requests_by_no_more_than_half() -> None:
    slots = 8
    alone = await waits(Floor(slots), bulk=0)
    crowded = Floor(slots, reserved=Reserved(default=25), size=64)
    beside = await waits(crowded, bulk=20)  # 2 bulk answers of 4 turns fit in each turn
    quantile = int(0.95 * len(alone))
    assert beside[quantile] <= 1.5 * alone[quantile]
    moved = sum(1 for visitor in crowded.all if visitor.priority == "bulk" and visitor.entered is not None)
    assert moved > 30  # and bulk moves: more than one in each turn


async def test_without_slots_of_their_own_interactive_requests_wait_for_one_turn_only() -> None:
    beside = await waits(Floor(8, size=64), bulk=20)
    assert beside[int(0.95 * len(beside))] <= 2 + 4  # the slowest wait is for one bulk answer to end


# --- tenants ----------------------------------------------------------------------------------------------------------


async def test_a_greedy_tenant_leaves_a_modest_one_its_share() -> None:
    floor = Floor(2)
    for _ in range(40):
        await floor.come(tenant="greedy", tokens=100)
    modest = [await floor.come(tenant="modest", tokens=100) for _ in range(5)]
    for _ in range(8):
        await floor.turn()
    assert all(visitor.entered is not None for visitor in modest)
    await floor.close()


async def test_shares_are_of_the_tokens_that_answers_really_took() -> None:
    floor = Floor(1)
    for _ in range(60):
        await floor.come(tenant="long", tokens=300)
        await floor.come(tenant="short", tokens=100)
    for _ in range(60):
        await floor.turn()
    served = Counter(visitor.tenant for visitor in floor.all if visitor.entered is not None)
    assert 2.5 <= served["short"] / served["long"] <= 3.5
    await floor.close()


# --- room -------------------------------------------------------------------------------------------------------------


async def test_in_a_full_line_the_newest_of_the_lowest_class_makes_room() -> None:
    floor = Floor(1, size=3)
    await floor.come(turns=99)
    old, default, new = [await floor.come(priority) for priority in ("bulk", "default", "bulk")]
    urgent = await floor.come("interactive")
    assert [visitor.refused is not None for visitor in (old, default, new, urgent)] == [False, False, True, False]
    assert (floor.notebook.queued, floor.notebook.refusals) == (3, ["concurrency"])
    await floor.close()


async def test_nobody_makes_room_for_one_who_need_not_wait() -> None:
    floor = Floor(5, reserved=Reserved(default=20), size=3)
    bulk = [await floor.come("bulk", turns=99) for _ in range(7)]
    urgent = await floor.come("interactive")
    assert (urgent.entered, [visitor for visitor in bulk if visitor.refused]) == (0, [])
    await floor.close()


async def test_who_is_of_the_lowest_class_is_refused_by_a_full_line() -> None:
    floor = Floor(1, size=2)
    await floor.come(turns=99)
    waiting = [await floor.come("default") for _ in range(2)]
    late = [await floor.come(priority) for priority in ("bulk", "default")]
    assert [visitor.refused is not None for visitor in (*waiting, *late)] == [False, False, True, True]
    assert floor.notebook.queued == 2
    await floor.close()


async def test_a_tenant_that_fills_the_line_makes_room_for_another() -> None:
    floor = Floor(1, size=4)
    await floor.come(turns=99)
    greedy = [await floor.come(tenant="greedy") for _ in range(4)]
    modest = await floor.come(tenant="modest")
    assert [visitor.refused is not None for visitor in greedy] == [False, False, False, True]
    assert modest.refused is None
    await floor.close()


async def test_who_has_to_go_is_told_how_long_the_wait_would_have_been() -> None:
    floor = Floor(2, size=1)
    floor.admission.paced("a", 30.0)
    for _ in range(3):
        await floor.come(turns=99)
    refused = await floor.come()
    assert refused.refused is not None
    assert refused.refused.retry_after_s == 30.0  # one ahead, and two slots that take 30 s each
    await floor.close()


def test_the_wait_is_told_by_the_answers_that_were_seen() -> None:
    line = Line()
    for number in range(3):
        line.join(Seat(number, "default", ""))
    line.join(Seat(3, "bulk", ""))
    assert line.wait_s(RANKS["default"], 2, 8.0) == 16.0
    assert line.wait_s(RANKS["bulk"], 2, 8.0) == 20.0
    assert line.wait_s(RANKS["system"], 2, 8.0) == 4.0
    line.learn(Seat(0, "default", ""), 10.0, tokens=10, service_s=2.0)
    assert line.wait_s(RANKS["default"], 2, 8.0) == 4.0


# --- nothing is lost --------------------------------------------------------------------------------------------------


async def test_slots_that_come_free_at_once_are_all_taken() -> None:
    floor = Floor(3)
    running = [await floor.come() for _ in range(3)]
    waiting = [await floor.come() for _ in range(4)]
    await floor.end(*running)
    assert [visitor.entered is not None for visitor in waiting] == [True, True, True, False]
    await floor.close()


async def test_a_slot_is_not_lost_with_the_one_whose_turn_it_was() -> None:
    floor = Floor(1)
    running, leaving, last = [await floor.come() for _ in range(3)]
    assert leaving.task is not None
    leaving.task.cancel()
    await floor.end(running)
    assert last.entered is not None
    await floor.close()


async def test_a_key_that_is_at_its_own_limit_waits_there_and_keeps_its_place_here() -> None:
    floor = Floor(2)
    own = Rule(id="key:K:L", owner="key 'ci'", resource="concurrency", amount=1)
    first = await floor.come(tenant="ci", rules=[own], turns=99)
    second = await floor.come(tenant="ci", rules=[own])
    other = await floor.come(tenant="web")
    assert [visitor.entered for visitor in (first, second, other)] == [0, None, 0]
    late = await floor.come(tenant="web")
    await floor.end(first)
    assert (second.entered is not None, late.entered) == (True, None)
    await floor.end(other)
    assert late.entered is not None
    await floor.close()


async def test_slots_that_another_process_frees_are_found() -> None:
    floor = Floor(2, reserved=Reserved(default=50), shared=True)
    bound = floor.admission.rules(Principal(), floor.entry, "bulk")
    theirs = await floor.quota.reserve(bound, Demand())
    waiting = await floor.come("bulk")
    assert waiting.entered is None
    assert isinstance(theirs, Hold)
    floor.quota.settle(theirs, Demand())
    async with asyncio.timeout(5.0):
        while waiting.entered is None:
            await asyncio.sleep(0.01)
    await floor.close()


async def test_classes_reach_the_engine_in_their_order() -> None:
    engine = ScriptedEngine("a", ([HELLO], 0.005, END))
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=1)))

    async def one(priority: Priority) -> None:
        call = Call(id="r", dialect="openai.chat", received_s=0.0, priority=priority)
        async for _ in gateway.generate(ask(priority), call):
            pass

    order: list[Priority] = ["default", "bulk", "bulk", "interactive", "system", "default"]
    tasks: list[asyncio.Task[None]] = []
    for priority in order:
        tasks.append(asyncio.create_task(one(priority)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    asked = [(request.messages[0].text, request.urgency) for request in engine.asked]
    assert asked == [("default", 1), ("system", 3), ("interactive", 2), ("default", 1), ("bulk", 0), ("bulk", 0)]
    assert notebook.queued == 0


Step = tuple[str, Priority, str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "end", "leave"]),
        st.sampled_from(CLASSES),
        st.sampled_from(["", "red", "blue"]),
        st.integers(0, 2),
    ),
    max_size=40,
)
shares = st.sampled_from([0, 20, 60])


@settings(max_examples=60, deadline=None)
@given(
    steps, st.integers(1, 5), st.integers(0, 6), st.builds(Reserved, system=shares, interactive=shares, default=shares)
)
def test_nobody_is_lost_nobody_served_twice_and_the_line_empties(
    script: list[Step], slots: int, size: int, reserved: Reserved
) -> None:
    asyncio.run(play(script, Floor(slots, size=size, reserved=reserved)))


async def play(script: list[Step], floor: Floor) -> None:
    bound = floor.admission.rules(Principal(), floor.entry, "bulk")
    gone: list[Visitor] = []
    for verb, priority, tenant, number in script:
        waiting = [each for each in floor.all if waits_now(each, gone)]
        if verb == "come":
            await floor.come(priority, tenant)
        elif verb == "end":
            await floor.end(*floor.inside[: number + 1])
        elif waiting:
            gone.append(waiting[number % len(waiting)])
            await leave(gone[-1], floor)
        for each in floor.all:  # nobody waits who could have a slot
            assert not waits_now(each, gone) or not await floor.has_room(each.priority)
        used = await floor.quota.spent(bound)
        assert all(used[rule.id] <= rule.amount for rule in bound)
    while floor.inside:
        await floor.end(floor.inside[0])
    assert [each for each in floor.all if waits_now(each, gone)] == []
    assert all((each.entered is None) != (each.refused is None) or each in gone for each in floor.all)
    assert (floor.notebook.queued, len(floor.admission._lines)) == (0, 0)
    assert set((await floor.quota.spent(bound)).values()) == {0}


async def leave(visitor: Visitor, floor: Floor) -> None:
    assert visitor.task is not None
    visitor.task.cancel()
    await floor.quiet()


def waits_now(visitor: Visitor, gone: list[Visitor]) -> bool:
    return visitor.entered is None and visitor.refused is None and visitor not in gone
