"""What the ledger knows of a rollout: which rows count for which arm, since when, and that none is read twice."""

from typing import Any

import pytest
from msgspec.structs import replace

from drivetrain.governance import Comparison
from drivetrain.rollouts.evidence import Seen, Tally
from drivetrain.rollouts.plan import Rollout
from drivetrain.store import Store
from drivetrain.store.evidence import Sighting
from drivetrain.store.rollouts import Rollouts
from tests.unit.store.administrators import BY, Clock
from tests.unit.store.attempts import attempt
from tests.unit.store.plans import ENGINES, begun, experiment

ON_SQLITE = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # no database has a part in the rule


@pytest.fixture
def rollouts(store: Store, clock: Clock) -> Rollouts:
    return Rollouts(store, clock)


class Book:
    """Rows of the ledger, each with a number of its own, begun a while after the clock's time."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._number = 0

    def write(self, label: str, *, times: int = 1, after_s: float = 1.0, **fields: Any) -> None:
        """`label` as the gateway writes it: ID:ARM, ID:ARM:shadow, …"""
        rows = []
        for _ in range(times):
            self._number += 1
            usual = {"first_token_s": 0.5, "total_s": 1.5, "completion_tokens": 11, "cost_micro_usd": 7}
            rows.append(
                attempt(self._number, rollout=label, started_s=self._clock.now_s + after_s, **{**usual, **fields})
            )
        way_in = self._store.rows()
        assert way_in.insert(rows) == ()
        way_in.close()

    def compare(self, rollout: Rollout, *values: float, after_s: float = 1.0) -> None:
        at_s = self._clock.now_s + after_s
        rest: dict[str, Any] = {"first_token_s": 0.1, "baseline_first_token_s": None}
        way_in = self._store.rows()
        assert not way_in.keep(
            [
                Comparison(
                    request_id=f"req_{number}", rollout=rollout.id, arm="new", at_s=at_s, how="exact", value=value,
                    total_s=1.0, baseline_total_s=1.0, **rest,
                )
                for number, value in enumerate(values)
            ]
        )  # fmt: skip
        way_in.close()


@pytest.fixture
def book(store: Store, clock: Clock) -> Book:
    return Book(store, clock)


def seen(times: int, *, failures: int = 0, answers: tuple[float, ...] = ()) -> Seen:
    """So many answers as `Book` writes them: 10 further tokens in the second after the first one."""
    tally = Tally()
    for _ in range(times):
        tally.add(first_token_s=0.5, tokens_per_s=10.0, cost_micro_usd=7.0)
    for _ in range(failures):
        tally.add(failed=True, cost_micro_usd=7.0)
    for value in answers:
        tally.compared(value)
    return tally.seen()


def of(store: Store, rollout: Rollout) -> tuple[Seen, Seen]:
    sighting = Sighting(store, rollout)
    sighting.read()
    evidence = sighting.evidence()
    return whole(evidence.baseline), whole(evidence.arm)


def whole(what: Seen) -> Seen:
    """Without what came lately, which is counted apart."""
    return replace(what, lately=None)


def test_rows_count_for_their_arm_and_a_failure_counts_also_where_a_fallback_hid_it(
    rollouts: Rollouts, store: Store, book: Book
) -> None:
    one = begun(rollouts)
    book.write(f"{one.id}:baseline", times=3)
    book.write(f"{one.id}:new", times=2)
    book.write(f"{one.id}:new", outcome="absorbed", final=False)
    book.write(f"{one.id}:new", outcome="error")
    book.write(f"{one.id}:new", outcome="cancelled")  # the caller left
    book.write(f"{one.id}:new", outcome="rejected")  # the caller's fault
    book.write(f"{one.id}:new:shadow")
    book.write("")
    book.write("another:new")
    assert of(store, one) == (seen(3), seen(2, failures=2))


@ON_SQLITE
def test_a_request_that_the_new_engines_could_not_even_be_asked_for_is_their_failure(
    rollouts: Rollouts, store: Store, book: Book
) -> None:
    one = begun(rollouts)
    book.write(f"{one.id}:new", outcome="absorbed", final=False)
    book.write(f"{one.id}:baseline:spill", position=2)  # of the same request
    book.write(f"{one.id}:baseline:spill", position=1)
    baseline, arm = of(store, one)
    assert baseline == seen(0)
    assert (arm.requests, arm.failures, arm.first_token_s) == (2, 2, {})


@ON_SQLITE
def test_what_the_new_engines_refused_is_their_failure_if_the_baseline_answers_it_else_nobodys(
    rollouts: Rollouts, store: Store, book: Book
) -> None:
    one = begun(rollouts)
    refused: dict[str, Any] = {"outcome": "absorbed", "why": "engine_refused", "status": 400, "final": False}
    for id, outcome in (("req_1", "ok"), ("req_2", "rejected"), ("req_3", "error")):
        book.write(f"{one.id}:new", request_id=id, **refused)
        book.write(f"{one.id}:baseline:spill", request_id=id, position=2, outcome=outcome)
    baseline, arm = of(store, one)
    assert baseline == seen(0)
    assert (arm.requests, arm.failures) == (1, 1)


@ON_SQLITE
@pytest.mark.parametrize(
    ("label", "other"),
    [
        ("{}:new", {"received_s": 1.0}),
        ("{}:new", {"position": 3}),
        ("another:new", {}),
        ("{}:baseline", {}),
    ],
)
def test_what_was_refused_in_another_visit_says_nothing_though_its_caller_chose_the_same_id(
    rollouts: Rollouts, store: Store, book: Book, label: str, other: dict[str, Any]
) -> None:
    one = begun(rollouts)
    visit: dict[str, Any] = {"request_id": "always-the-same", "received_s": 2.0}
    refused: dict[str, Any] = {"outcome": "absorbed", "why": "engine_refused", "status": 400, "final": False}
    book.write(label.format(one.id), **{**visit, **refused, **other})
    book.write(f"{one.id}:baseline:spill", position=2, **visit)
    assert of(store, one) == (seen(0), seen(0))


@ON_SQLITE
def test_rows_from_before_the_stage_do_not_count(rollouts: Rollouts, store: Store, book: Book, clock: Clock) -> None:
    one = begun(rollouts)
    book.write(f"{one.id}:baseline", after_s=-1.0)
    book.write(f"{one.id}:new", after_s=-1.0)
    book.compare(one, 0.0, after_s=-1.0)
    assert of(store, one) == (seen(0), seen(0))


@ON_SQLITE
def test_while_no_caller_gets_the_new_arm_its_copies_tell_about_it(
    rollouts: Rollouts, store: Store, book: Book
) -> None:
    one = begun(rollouts, stages=[{"percent": 0.0, "shadow": True}, {"percent": 100.0}], shadow={})
    book.write(f"{one.id}:baseline", times=2)
    book.write(f"{one.id}:new:shadow", times=4, final=False)
    book.write(f"{one.id}:new:shadow", outcome="rejected", final=False)  # what the baseline had answered
    book.compare(one, 1.0, 0.5)
    book.write(f"{one.id}:new:shadow", outcome="rejected", engine="", final=False)  # not sent: no money left for copies
    assert of(store, one) == (seen(2), seen(4, failures=1, answers=(1.0, 0.5)))


def test_while_everybody_gets_it_the_baseline_is_what_it_was_in_the_stage_before(
    rollouts: Rollouts, store: Store, book: Book, clock: Clock
) -> None:
    one = begun(rollouts, stages=[{"percent": 1.0}, {"percent": 50.0}, {"percent": 100.0}])
    book.write(f"{one.id}:baseline", times=1)
    clock.now_s += 100
    rollouts.move(one.id, None, "advance", why="", actor=BY)
    book.write(f"{one.id}:baseline", times=4)
    book.write(f"{one.id}:new", times=4)
    clock.now_s += 50
    rollouts.amend(one.id, None, {"guards": {"errors": 0.02}}, actor=BY)  # begins no stage
    clock.now_s += 50
    book.write(f"{one.id}:new", times=2)
    assert of(store, rollouts.move(one.id, None, "advance", why="", actor=BY)) == (seen(4), seen(2))


@ON_SQLITE
def test_a_second_stage_of_everybody_is_compared_with_the_last_that_left_some_at_the_baseline(
    rollouts: Rollouts, store: Store, book: Book, clock: Clock
) -> None:
    one = begun(rollouts, stages=[{"percent": 50.0}, {"percent": 100.0}, {"percent": 100.0}])
    book.write(f"{one.id}:baseline", times=3)
    for _ in range(2):
        clock.now_s += 100
        one = rollouts.move(one.id, None, "advance", why="", actor=BY)
    book.write(f"{one.id}:new", times=2)
    assert of(store, one) == (seen(3), seen(2))


@ON_SQLITE
def test_an_arm_of_an_experiment_has_its_own_rows(rollouts: Rollouts, store: Store, book: Book) -> None:
    one = rollouts.create(experiment(), engines=ENGINES, actor=BY)
    book.write(f"{one.id}:baseline", times=2)
    book.write(f"{one.id}:hot", times=3)
    sighting = Sighting(store, one)
    sighting.read()
    assert {arm: whole(what) for arm, what in sighting.seen().items()} == {"baseline": seen(2), "hot": seen(3)}


def test_each_reading_goes_on_where_the_one_before_ended(rollouts: Rollouts, store: Store, book: Book) -> None:
    one = begun(rollouts)
    sighting = Sighting(store, one)
    book.write(f"{one.id}:new", times=5)
    book.compare(one, 1.0, 1.0, 1.0)
    sighting.read(most=2)
    assert (whole(sighting.evidence().arm), sighting.whole) == (seen(2, answers=(1.0, 1.0)), False)
    sighting.read(most=10)
    assert (whole(sighting.evidence().arm), sighting.whole) == (seen(5, answers=(1.0, 1.0, 1.0)), True)
    book.write(f"{one.id}:new")
    sighting.read()
    assert whole(sighting.evidence().arm) == seen(6, answers=(1.0, 1.0, 1.0))


@ON_SQLITE
def test_an_answer_of_one_token_has_no_speed(rollouts: Rollouts, store: Store, book: Book) -> None:
    one = begun(rollouts)
    book.write(f"{one.id}:new", completion_tokens=1)
    book.write(f"{one.id}:new", first_token_s=None)
    arm = of(store, one)[1]
    assert (arm.requests, arm.tokens_per_s) == (2, {})


@ON_SQLITE
def test_a_report_tells_what_would_become_of_it(rollouts: Rollouts, store: Store, book: Book, clock: Clock) -> None:
    one = begun(rollouts, stages=[{"percent": 50.0, "least_s": 10.0, "least_requests": 20}, {"percent": 100.0}])
    book.write(f"{one.id}:baseline", times=20)
    book.write(f"{one.id}:new", times=19)
    clock.now_s += 20
    report = rollouts.report(one)
    assert (report.next, report.why, report.whole) == ("hold", "19 of 20 requests answered at the new arm", True)
    book.write(f"{one.id}:new")
    assert rollouts.report(one).next == "advance"
    assert [arm.requests for arm in rollouts.report(one).arms.arms] == [20, 20]


def test_the_index_of_rollouts_is_used_whoever_else_fills_the_ledger(rollouts: Rollouts, store: Store) -> None:
    sighting = Sighting(store, begun(rollouts))
    with store.reading() as connection:
        question = sighting.question(connection).compile(connection, compile_kwargs={"literal_binds": True})
        postgres = connection.dialect.name == "postgresql"
        if postgres:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # an empty table is always read whole
        plan = connection.exec_driver_sql(f"EXPLAIN {'' if postgres else 'QUERY PLAN '}{question}".replace("%", "%%"))
        assert "ix_attempts_rollout" in str(plan.all())
