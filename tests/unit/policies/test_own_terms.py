"""What a policy is for callers with terms: never more patient than the policy, and the nearest word on who left."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drivetrain.config.schema import Policy, Queue, Reserved, Timeouts
from drivetrain.governance import OnDisconnect, Said, Terms
from drivetrain.policies.terms import Own, own

TIMES = Timeouts.__struct_fields__
POLICY = Policy(
    timeouts=Timeouts(connect_s=2.0, first_token_s=30.0, idle_s=20.0, total_s=600.0),
    queue=Queue(size=64, timeout_s=10.0, reserved=Reserved(default=10)),
    on_disconnect="drain",
)


def said(owner: str, **terms: float | int | str) -> Said:
    kind, _, name = owner.partition(" ")
    return Said(id=f"{kind}:{name}", owner=f"{kind} {name!r}", terms=Terms(**terms))  # type: ignore[arg-type]


def test_who_lays_nothing_down_has_the_policy_as_it_is() -> None:
    assert own(POLICY, ()) == own(POLICY, (said("key ci"),)) == Own(policy=POLICY)


def test_of_several_times_the_least_holds_and_it_is_known_whose_it_is() -> None:
    key = said("key ci", first_token_s=5.0, idle_s=20.0, total_s=900.0)
    team = said("team search", first_token_s=4.0, connect_s=0.5)
    found = own(POLICY, (key, team))
    assert found.policy.timeouts == Timeouts(connect_s=0.5, first_token_s=4.0, idle_s=20.0, total_s=600.0)
    assert found.by == {"connect_s": "team 'search'", "first_token_s": "team 'search'"}
    assert [found.whose(name) for name in TIMES] == [
        "connect_s of team 'search'", "first_token_s of team 'search'", "", "",
    ]  # fmt: skip


def test_of_equal_words_the_nearest_is_named() -> None:
    assert own(POLICY, (said("key ci", idle_s=5.0), said("team search", idle_s=5.0))).whose("idle_s") == (
        "idle_s of key 'ci'"
    )


def test_the_shortest_wait_in_a_queue_holds_and_the_queue_stays_as_long_as_it_is() -> None:
    found = own(POLICY, (said("key ci", queue_timeout_s=60.0, queue_size=0), said("team search", queue_timeout_s=3.0)))
    assert found.policy == replace(POLICY, queue=Queue(size=64, timeout_s=3.0, reserved=Reserved(default=10)))


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        ((None, None), "drain"),
        (("estimate", None), "estimate"),
        ((None, "free"), "free"),
        (("estimate", "free"), "estimate"),
    ],
)
def test_the_nearest_word_on_who_left_holds(words: Sequence[OnDisconnect | None], holds: str) -> None:
    chain = [Said(id=f"{n}", owner=f"{n}", terms=Terms(on_disconnect=word)) for n, word in enumerate(words)]
    assert own(POLICY, chain).policy.on_disconnect == holds


SECONDS = st.floats(min_value=0.001, max_value=10_000)
MAYBE = st.none() | SECONDS
TERMS = st.builds(
    Terms, connect_s=MAYBE, first_token_s=MAYBE, idle_s=MAYBE, total_s=MAYBE, queue_timeout_s=MAYBE,
)  # fmt: skip
CHAIN = st.lists(TERMS, max_size=5).map(
    lambda chain: [Said(id=f"{n}", owner=f"{n}", terms=terms) for n, terms in enumerate(chain)]
)


@given(st.builds(Timeouts, connect_s=SECONDS, first_token_s=SECONDS, idle_s=SECONDS, total_s=SECONDS), CHAIN)
def test_nobody_can_be_more_patient_than_a_policy_and_blame_falls_on_who_said_so(
    timeouts: Timeouts, chain: Sequence[Said]
) -> None:
    found = own(Policy(timeouts=timeouts), chain)
    for name in TIMES:
        words = [getattr(each.terms, name) for each in chain if getattr(each.terms, name) is not None]
        holds = getattr(found.policy.timeouts, name)
        assert holds == min([getattr(timeouts, name), *words])
        assert (name in found.by) == (holds < getattr(timeouts, name))
        if name in found.by:
            assert getattr(chain[int(found.by[name])].terms, name) == holds


@given(CHAIN)
def test_in_which_order_times_are_laid_down_makes_no_difference(chain: list[Said]) -> None:
    turned = chain[::-1]
    one, other = own(POLICY, chain).policy, own(POLICY, turned).policy
    assert (one.timeouts, one.queue) == (other.timeouts, other.queue)
