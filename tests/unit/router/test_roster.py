"""The groups that are kept: who is in them, how long they hold, and that draws from them fall as the weights say."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.schema import Target
from drivetrain.router import Facts, Roster, Standing, Terms, Traits, Wish, candidates
from drivetrain.router.roster import MOST, Group
from tests.unit.router.test_choice import FAST, OPEN, SLOW, targets

TALKER = Traits(capabilities=frozenset({"completion"}), context=2048)
SKILLED = Traits(capabilities=frozenset({"completion", "tools"}), context=8192)
PLAIN = Wish()


def names(group: Group | None) -> list[str]:
    return [target.engine for target in group.targets] if group is not None else []


class Counted:
    """How engines stand, and which were looked at."""

    def __init__(self, known: dict[str, Standing]) -> None:
        self.known = known
        self.looked: list[str] = []

    def __call__(self, target: Target) -> Standing:
        self.looked.append(target.engine)
        return self.known.get(target.engine, Standing())


def chance(points: Sequence[float]) -> Callable[[], float]:
    return iter(points).__next__


def every(roster: Roster, standings: Counted, draws: int, facts: Facts, terms: Terms) -> Counter[str]:
    """Who goes first, once for all that chance may do: in the middle of every share of the total weight."""
    width = sum(target.weight for target in roster.targets)
    found: Counter[str] = Counter()
    for points in product(range(width), repeat=draws):
        decision = candidates(roster, standings, chance([(point + 0.5) / width for point in points]), facts, terms)
        assert decision.first is not None
        found[decision.first.engine] += 1
    return found


# --- who is in them ---------------------------------------------------------------------------------------------------


def skills(target: Target) -> Traits:
    return SKILLED if target.engine.startswith("s") else TALKER


def test_a_group_has_only_those_who_can_do_what_is_asked() -> None:
    roster = Roster(targets("s1", "t1", "s2", "t2"), skills)
    assert names(roster.first(PLAIN, Facts())) == ["s1", "t1", "s2", "t2"]
    assert names(roster.first(PLAIN, Facts(tools=True))) == ["s1", "s2"]
    assert names(roster.first(PLAIN, Facts(prompt_tokens=2000, limit=48))) == ["s1", "t1", "s2", "t2"]
    assert names(roster.first(PLAIN, Facts(prompt_tokens=2000, limit=49))) == ["s1", "s2"]
    assert roster.first(PLAIN, Facts(images=True)) is None


def test_a_tier_in_which_nobody_can_do_it_is_passed_over() -> None:
    roster = Roster([*targets("t1", "t2"), *targets("s1", tier=1)], skills)
    assert names(roster.first(PLAIN, Facts(tools=True))) == ["s1"]


def test_those_of_the_region_and_the_others_are_kept_apart_without_those_who_are_away() -> None:
    regions = {"e1": "eu", "e2": "eu", "u1": "us", "u2": "us"}
    away = {"e1", "u2"}
    roster = Roster(
        targets(*regions), lambda target: Traits(region=regions[target.engine]), lambda each: each.engine not in away
    )
    group = roster.first(PLAIN, Facts(region="eu"))
    assert group is not None
    assert (names(group.near), names(group.far)) == (["e2"], ["u1"])
    away.add("e2")
    roster.renew()
    group = roster.first(PLAIN, Facts(region="eu"))
    assert group is not None
    assert (names(group.near), names(group.far)) == ([], ["u1"])


def test_where_a_beginning_is_at_home_does_not_move_with_those_who_come_and_go() -> None:
    away: set[str] = set()
    roster = Roster(targets("a", "b", "c"), up=lambda target: target.engine not in away)
    whole = roster.first(PLAIN, Facts())
    away.add("b")
    roster.renew()
    rest = roster.first(PLAIN, Facts())
    assert whole is not None
    assert rest is not None
    assert names(rest) == ["a", "c"]
    assert rest.whole is whole


# --- how long they hold -----------------------------------------------------------------------------------------------


def test_a_group_is_made_once_until_something_changes() -> None:
    known = {"a": TALKER}
    roster = Roster(targets("a", "b"), lambda target: known.get(target.engine, SKILLED))
    asked = Facts(tools=True)
    found = roster.first(PLAIN, asked)
    known["a"] = SKILLED
    assert roster.first(PLAIN, asked) is found
    roster.renew(7)
    assert names(roster.first(PLAIN, asked)) == ["a", "b"]
    assert roster.version == 7


def test_a_roster_that_could_not_be_renewed_is_renewed_the_next_time() -> None:
    lost: set[str] = set()

    def look(target: Target) -> Traits:
        if target.engine in lost:
            raise OSError("gone")
        return SKILLED

    roster = Roster(targets("a", "b"), look)
    lost.add("b")
    with pytest.raises(OSError, match="gone"):
        roster.renew(7)
    assert roster.version == 0


def test_so_many_kinds_of_requests_are_remembered_and_no_more() -> None:
    contexts = {f"e{n}": Traits(context=1000 * (n + 1)) for n in range(2 * MOST)}
    roster = Roster(targets(*contexts), lambda target: contexts[target.engine])
    for n in range(2 * MOST):
        assert len(names(roster.first(PLAIN, Facts(prompt_tokens=1000 * n + 500)))) == 2 * MOST - n
    assert len(roster._able) <= MOST
    for region in map(str, range(2 * MOST)):  # where nobody is, all are alike
        roster.first(PLAIN, Facts(prompt_tokens=1, region=region))
    assert len(roster._able) <= MOST


# --- what is drawn from them ------------------------------------------------------------------------------------------


def test_of_engines_that_are_alike_each_goes_first_exactly_as_often_as_its_weight_says() -> None:
    among = [*targets("big", weight=5), *targets("mid", weight=3), *targets("small", weight=2)]
    found = every(Roster(among), Counted({}), 2, Facts(), Terms())
    assert found == {"big": 50, "mid": 30, "small": 20}


def test_the_less_loaded_of_two_drawn_goes_first_in_exactly_so_many_of_all_draws() -> None:
    among = [*targets("busy", weight=3), *targets("idle", weight=1)]
    found = every(Roster(among), Counted({"busy": Standing(outstanding=9)}), 2, Facts(), Terms())
    assert found == {"busy": 9, "idle": 7}  # only if both draws fall on the busy one


def test_where_both_draws_fall_on_a_slow_engine_a_third_is_made_among_the_others_by_their_weights() -> None:
    among = [*targets("slow", weight=2), *targets("fast", weight=1), *targets("quick", weight=3)]
    standings = Counted({"slow": Standing(speed=SLOW), "fast": Standing(speed=FAST), "quick": Standing(speed=FAST)})
    found = every(Roster(among), standings, 3, Facts(), Terms())
    # 36 pairs, each with six third draws: both slow in four of them, then one of four points is the fast one's;
    # slow and another in 20, the other goes; two others in twelve, the first of them goes.
    both = 4 * Counter(third(point, 4, [("fast", 1), ("quick", 3)]) for point in range(6))["fast"]
    assert found == {"fast": both + 6 * (4 + 4), "quick": 24 - both + 6 * (12 + 12)}


def third(point: int, width: int, others: Sequence[tuple[str, int]]) -> str:
    """On whom the middle of one of six parts falls, of others that are so wide together."""
    at = (point + 0.5) / 6 * width
    for name, weight in others:
        if at < weight:
            return name
        at -= weight
    raise AssertionError(at)


def test_among_those_who_can_do_it_the_shares_are_those_of_their_weights_and_nobody_else_is_looked_at() -> None:
    among = [*targets("t1", weight=4), *targets("s1", weight=3), *targets("s2", weight=1)]
    standings = Counted({})
    found = every(Roster(among, skills), standings, 2, Facts(tools=True), Terms())
    assert found == {"s1": 48, "s2": 16}
    assert set(standings.looked) == {"s1", "s2"}


@pytest.mark.parametrize(("lost", "left"), [(50, 50), (90, 10)])
def test_a_choice_among_many_of_whom_most_are_away_looks_at_two(lost: int, left: int) -> None:
    among = targets(*map(str, range(lost + left)))
    standings = Counted({})
    roster = Roster(among, up=lambda target: int(target.engine) >= lost)
    decision = candidates(roster, standings, chance([0.0, 0.999]))
    assert decision.first is not None
    assert standings.looked == [str(lost), str(lost + left - 1)]


@pytest.mark.parametrize(
    ("points", "first"),
    [
        ((0, 1), "1"),  # one of the two is idle
        ((0, 2, 3, 1), "1"),  # both are at work: two more
        ((0, 2, 3, 4), "2"),  # all are: whoever has least, of equals the first
        ((0, 2, 4, 9), "2"),  # of two more, one is away
    ],
)
def test_of_many_two_more_are_drawn_where_both_are_at_work(points: Sequence[int], first: str) -> None:
    busy = {name: Standing(outstanding=work) for name, work in (("0", 5), ("2", 2), ("3", 3), ("4", 2))}
    roster = Roster(targets(*map(str, range(10))))
    draw = chance([(point + 0.5) / 10 for point in points])
    decision = candidates(roster, Counted({**busy, "9": OPEN}), draw)
    assert decision.first is not None
    assert decision.first.engine == first
    assert next(draw.__self__, None) is None  # type: ignore[attr-defined]


def test_a_region_is_not_left_while_anybody_there_is_able() -> None:
    """However often the draws fall on those who are set aside."""
    among = targets(*(f"eu-{n}" for n in range(20)), "us-1")
    roster = Roster(among, lambda target: Traits(region=target.engine[:2]))
    standings = Counted({f"eu-{n}": OPEN for n in range(19)})
    decision = candidates(roster, standings, lambda: 0.0, Facts(region="eu"))
    assert decision.first is not None
    assert (decision.first.engine, decision.first.why) == ("eu-19", "tier 0, load 0, in region eu")


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=2, max_size=12), st.booleans())
def test_a_kept_group_is_what_a_look_at_everybody_finds(rows: list[tuple[int, bool, bool]], tools: bool) -> None:
    among = [Target(engine=f"e{n}", model="m", weight=row[0], tier=n % 2) for n, row in enumerate(rows)]
    row = {target.engine: each for target, each in zip(among, rows, strict=True)}
    roster = Roster(among, lambda each: SKILLED if row[each.engine][1] else TALKER, lambda each: row[each.engine][2])
    fit = [each for each in among if each.weight and row[each.engine][2] and (row[each.engine][1] or not tools)]
    lowest = min((each.tier for each in fit), default=0)
    expected = [each.engine for each in fit if each.tier == lowest]
    group = roster.first(PLAIN, Facts(tools=tools))
    assert names(group) == expected
    assert group is None or group.bounds[-1] == sum(target.weight for target in group.targets)
