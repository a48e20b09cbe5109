"""Who moves rollouts on: by what the ledger knows, once, and not where somebody else has been faster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from drivetrain.cli.steering import ACTOR, Pilot, moves
from drivetrain.rollouts.plan import Plan, Rollout
from drivetrain.store import Store
from drivetrain.store.exporting import Lead
from drivetrain.store.rollouts import Rollouts
from tests.unit.store.attempts import attempt
from tests.unit.store.plans import begun, stage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open("sqlite:///drivetrain.db", tmp_path)
    yield opened
    opened.close()


def write(store: Store, one: Rollout, arm: str, first: int, times: int, outcome: str = "ok") -> None:
    way_in = store.rows()
    label, started_s = f"{one.id}:{arm}", one.since_s + 0.5
    fields = {"rollout": label, "started_s": started_s, "outcome": outcome, "completion_tokens": 11, "total_s": 1.01}
    assert way_in.insert([attempt(number, **fields) for number in range(first, first + times)]) == ()
    way_in.close()


def test_a_rollout_goes_on_when_it_may_and_once(store: Store) -> None:
    rollouts, pilot = Rollouts(store), Pilot(store)
    one = begun(rollouts, stages=[stage(50.0, 20), stage(100.0, 20)])
    write(store, one, "baseline", 0, 20)
    write(store, one, "new", 100, 19)
    pilot.look([one], one.since_s + 10)
    assert rollouts.get(one.id) == one
    write(store, one, "new", 200, 1)
    pilot.look([one], one.since_s + 10)
    pilot.look([one], one.since_s + 10)  # the plan has not told yet
    on = rollouts.get(one.id)
    assert (on.stage, on.version, on.why) == (1, 2, "20 requests answered at the new arm, and no guard against it")
    turn = rollouts.history(one.id)[-1]
    assert (turn.move, turn.actor) == ("advance", ACTOR)
    assert [arm["requests"] for arm in turn.evidence["arms"]] == [20, 20]
    write(store, on, "new", 300, 20)
    pilot.look([on], on.since_s + 10)
    assert rollouts.get(one.id).state == "done"


def test_a_rollout_whose_new_arm_fails_is_taken_back(store: Store) -> None:
    rollouts, pilot = Rollouts(store), Pilot(store)
    one = begun(rollouts)
    write(store, one, "baseline", 0, 60)
    write(store, one, "new", 100, 60, "absorbed")
    pilot.look([one], one.since_s + 1)
    back = rollouts.get(one.id)
    assert (back.state, back.why.partition(":")[0]) == ("rolled_back", "errors")
    assert rollouts.history(one.id)[-1].evidence["guards"][0]["guard"] == "errors"


def test_one_that_breaks_keeps_no_other_from_being_taken_back(store: Store) -> None:
    rollouts, pilot = Rollouts(store), Pilot(store)
    broken, one = begun(rollouts, model="other"), begun(rollouts)
    write(store, one, "baseline", 0, 60)
    write(store, one, "new", 100, 60, "absorbed")
    with pytest.raises(ExceptionGroup):
        pilot.look([replace(broken, stages=()), one], one.since_s + 1)
    assert rollouts.get(one.id).state == "rolled_back"


def test_one_that_somebody_has_ended_meanwhile_is_left_alone(store: Store) -> None:
    rollouts, pilot = Rollouts(store), Pilot(store)
    one = begun(rollouts, stages=[stage(100.0, 1)])
    write(store, one, "new", 100, 1)
    rollouts.move(one.id, None, "rollback", why="by hand", actor="ada")
    rollouts.remove(one.id, actor="ada")
    pilot.look([one], one.since_s + 10)
    assert rollouts.list() == []


def test_one_process_moves_rollouts_while_another_may_export(store: Store) -> None:
    first, second, sinks = Lead(store, "rollouts"), Lead(store, "rollouts"), Lead(store)
    assert [lead.take() for lead in (first, second, sinks)] == [True, False, True]
    first.release()
    assert second.take()
    second.release()
    sinks.release()


def test_listeners_are_told_of_each_rollout_that_began_moved_or_ended(store: Store) -> None:
    rollouts = Rollouts(store)
    a, b, c = (begun(rollouts, model=model) for model in "abc")
    moved = rollouts.move(b.id, None, "pause", why="", actor="ada")
    before, after = Plan(rollouts={"a": a, "b": b}), Plan(rollouts={"b": moved, "c": c})
    assert [(notice.name, notice.model) for notice in moves(before, after)] == [
        ("rollout.moved", "a"),
        ("rollout.moved", "b"),
        ("rollout.moved", "c"),
    ]
    assert list(moves(after, after)) == []
