"""Rollouts in the store: what is in force of them, that nobody overwrites another's move, and what is on record."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from drivetrain.config.schema import Target
from drivetrain.errors import BadRequest, Conflict, NotFound
from drivetrain.governance import Comparison
from drivetrain.rollouts.plan import Guards, Plan, Rollout, Shadow, Stage
from drivetrain.store import Store
from drivetrain.store.administration import Administration
from drivetrain.store.prompts import Prompts
from drivetrain.store.rollouts import Rollouts, plan
from tests.unit.store.administrators import BY, Clock
from tests.unit.store.plans import ENGINES, begun, done, experiment, spec, target


@pytest.fixture
def rollouts(store: Store, clock: Clock) -> Rollouts:
    return Rollouts(store, clock)


@pytest.fixture
def prompts(store: Store, clock: Clock) -> Prompts:
    return Prompts(store, clock)


def in_force(store: Store) -> Plan:
    with store.reading() as connection:
        return plan(connection)


# --- making -----------------------------------------------------------------------------------------------------------


def test_what_was_made_is_read_again_as_it_is(rollouts: Rollouts, store: Store, clock: Clock) -> None:
    made = begun(rollouts, guards={"errors": 0.05}, shadow={"usd": 1.0}, model="chät")
    assert made == Rollout(
        id=made.id,
        model="chät",
        arms=made.arms,
        stages=(Stage(percent=10.0), Stage(percent=100.0)),
        guards=Guards(errors=0.05),
        shadow=Shadow(usd=1.0),
        since_s=clock.now_s,
        created_s=clock.now_s,
    )
    assert made.arms[1].targets == (Target(engine="new", model="m"),)
    assert rollouts.get(made.id) == rollouts.get("chät") == made
    assert rollouts.list() == [made]
    assert in_force(store) == Plan(rollouts={"chät": made})


def test_stages_that_are_not_said_are_1_5_25_and_100_percent(file: Store) -> None:
    fields = spec()
    del fields["stages"]
    made = Rollouts(file).create(fields, engines=ENGINES, actor=BY)
    assert [stage.percent for stage in made.stages] == [1.0, 5.0, 25.0, 100.0]


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a member that nobody knows": ({"speed": 1}, "no member 'speed'"),
    "a member of a guard": ({"guards": {"error": 0.1}}, "guards have no member 'error'; there are answers, cost"),
    "a member of a stage": ({"stages": [{"percent": 100.0, "shade": True}]}, "stages have no member 'shade'"),
    "a state": ({"state": "done"}, "no member 'state'"),
    "a text for a number": ({"guards": {"errors": "many"}}, "guards.errors: expected"),
    "an engine": ({"arms": [{"name": "b"}, {"name": "n", "targets": [target("gone")]}]}, "engine 'gone' is not"),
    "a prompt": ({"arms": [{"name": "b"}, {"name": "n", "prompt": "brief@1"}]}, "there is no prompt 'brief@1'"),
    "no sense": ({"stages": [{"percent": 50.0}]}, "has to have 100"),
    "no arms": ({"arms": []}, "arms"),
    "a model that nobody can write": ({"model": "cha\0t"}, "model 'cha.x00t'"),
    "a prompt that nobody can write": ({"arms": [{"name": "b"}, {"name": "n", "prompt": "b\0@1"}]}, "no version of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_and_leaves_nothing(file: Store, case: str) -> None:
    more, problem = REFUSED[case]
    with pytest.raises(BadRequest, match=problem):
        begun(Rollouts(file), **more)
    assert Rollouts(file).list() == []
    assert file.revision() == 0


def test_an_instance_of_a_group_of_engines_is_an_engine(file: Store) -> None:
    arms = [{"name": "baseline"}, {"name": "new", "targets": [target("new@host:8000"), target("new-2")]}]
    assert [one.engine for one in begun(Rollouts(file), arms=arms).arms[1].targets or ()] == ["new@host:8000", "new-2"]


def test_a_model_has_one_on_its_way(rollouts: Rollouts) -> None:
    first = begun(rollouts)
    with pytest.raises(Conflict, match=f"rollout {first.id} of 'chat' is running; end that one first"):
        rollouts.create(experiment(), engines=ENGINES, actor=BY)
    rollouts.move(first.id, None, "pause", why="", actor=BY)
    with pytest.raises(Conflict, match="is paused"):
        begun(rollouts)
    rollouts.move(first.id, None, "rollback", why="", actor=BY)
    assert begun(rollouts).state == "running"


# --- moving -----------------------------------------------------------------------------------------------------------


def test_every_move_is_a_version_and_a_line_of_history_and_audit(
    rollouts: Rollouts, admin: Administration, clock: Clock
) -> None:
    made = begun(rollouts)
    clock.now_s += 60
    moved = rollouts.move(made.id, 1, "advance", why="it is good", actor="ada", request_id="req_1", evidence={"n": 3})
    assert (moved.stage, moved.since_s, moved.why, moved.version) == (1, clock.now_s, "it is good", 2)
    first, second = rollouts.history(made.id)
    assert (first.move, first.state, first.stage, first.version, first.actor) == ("create", "running", 0, 1, BY)
    assert (second.move, second.state, second.stage, second.version, second.actor) == (
        *("advance", "running", 1, 2, "ada"),
    )
    assert (second.why, second.at_s, second.evidence) == ("it is good", clock.now_s, {"n": 3})
    created, advanced = admin.audit()
    assert (created.action, created.kind, created.object_id, created.before) == ("create", "rollout", made.id, None)
    assert (advanced.action, advanced.actor, advanced.request_id) == ("advance", "ada", "req_1")
    assert [msgspec.convert(side, Rollout) for side in (advanced.before, advanced.after)] == [made, moved]
    assert admin.verify_audit().broken is None


def test_a_move_from_what_somebody_has_moved_since_is_refused(rollouts: Rollouts) -> None:
    made = begun(rollouts)
    rollouts.move(made.id, 1, "advance", why="", actor=BY)
    with pytest.raises(Conflict, match="has version 2, not 1; it has moved since it was read"):
        rollouts.move(made.id, 1, "advance", why="", actor=BY)
    assert rollouts.get(made.id).stage == 1


def test_what_is_done_stays_in_force_and_can_be_taken_back_at_once(rollouts: Rollouts, store: Store) -> None:
    one = done(rollouts)
    assert one.state == "done"
    assert in_force(store).rollouts == {"chat": one}
    back = rollouts.move(one.id, None, "rollback", why="no", actor=BY)
    assert back.state == "rolled_back"
    assert in_force(store).rollouts == {}
    with pytest.raises(Conflict, match="is rolled back; make another one"):
        rollouts.move(one.id, None, "rollback", why="no", actor=BY)


def test_the_next_rollout_stands_upon_the_one_before(rollouts: Rollouts, prompts: Prompts, store: Store) -> None:
    prompts.add("brief", "Be brief.", actor=BY)
    before = done(rollouts)
    arms = [{"name": "baseline"}, {"name": "brief", "prompt": "brief@1", "parameters": {"temperature": 0.1}}]
    after = begun(rollouts, arms=arms)
    new = (Target(engine="new", model="m"),)
    assert [(arm.targets, arm.prompt, arm.parameters) for arm in after.arms] == [
        (new, None, {}),
        (new, "brief@1", {"temperature": 0.1}),
    ]
    assert in_force(store).rollouts == {"chat": after}
    rollouts.move(after.id, None, "rollback", why="", actor=BY)
    assert in_force(store).rollouts == {"chat": before}


def test_an_experiment_that_is_over_leaves_everything_as_it_was(rollouts: Rollouts, store: Store) -> None:
    before = done(rollouts)
    made = rollouts.create(experiment(), engines=ENGINES, actor=BY)
    assert made.stages == ()
    assert in_force(store).rollouts == {"chat": made}
    assert rollouts.move(made.id, None, "finish", why="", actor=BY).state == "done"
    assert in_force(store).rollouts == {"chat": before}


def test_guards_may_change_on_the_way_and_what_is_not_said_of_them_stays(rollouts: Rollouts) -> None:
    made = begun(rollouts, guards={"errors": 0.02, "cost": 2.0})
    amended = rollouts.amend(made.id, 1, {"guards": {"cost": None}}, actor=BY)
    assert amended == msgspec.structs.replace(made, guards=Guards(errors=0.02, cost=None), version=2)
    assert rollouts.history(made.id)[-1].move == "update"
    assert rollouts.amend(made.id, 2, {"guards": {"cost": None}}, actor=BY).version == 2
    with pytest.raises(BadRequest, match="no member 'arms' to set; there are guards, shadow"):
        rollouts.amend(made.id, 2, {"arms": []}, actor=BY)
    rollouts.move(made.id, None, "rollback", why="", actor=BY)
    with pytest.raises(Conflict, match="is rolled back; make another one"):
        rollouts.amend(made.id, 3, {"guards": {"cost": 3.0}}, actor=BY)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_what_is_over_can_be_removed_with_all_that_hangs_on_it(
    rollouts: Rollouts, store: Store, admin: Administration
) -> None:
    made = begun(rollouts)
    with pytest.raises(Conflict, match="is running; roll it back or finish it"):
        rollouts.remove(made.id, actor=BY)
    way_in = store.rows()
    way_in.keep([comparison(made.id)])
    way_in.close()
    rollouts.move(made.id, None, "rollback", why="", actor=BY)
    rollouts.remove(made.id, 2, actor=BY)
    with pytest.raises(NotFound):
        rollouts.get(made.id)
    assert rollouts.history(made.id) == []
    assert store.sweep_comparisons(1e12) == 0
    assert admin.audit()[-1].action == "delete"


def comparison(rollout: str, **fields: Any) -> Comparison:
    usual: dict[str, Any] = {
        "request_id": "req_1",
        "arm": "new",
        "at_s": 1000.0,
        "how": "exact",
        "value": 1.0,
        "first_token_s": None,
        "baseline_first_token_s": 0.1,
        "total_s": 1.0,
        "baseline_total_s": 2.0,
    }
    return Comparison(rollout=rollout, **{**usual, **fields})


def test_comparisons_are_deleted_when_their_time_is_over(store: Store) -> None:
    way_in = store.rows()
    assert way_in.keep([comparison("a", at_s=at_s) for at_s in (1.0, 2.0, 3.0)]) == []
    way_in.close()
    assert store.sweep_comparisons(2.5) == 2
    assert store.sweep_comparisons(2.5) == 0


def test_lists_go_by_pages_and_by_model(rollouts: Rollouts) -> None:
    made = [begun(rollouts, model=model) for model in ("a", "b", "c")]
    assert rollouts.list(limit=2) == made[:2]
    assert rollouts.list(after=made[1].id) == made[2:]
    assert rollouts.list(model="b") == made[1:2]
    assert rollouts.list(state="done") == []


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_a_new_text_is_the_next_version_and_none_is_ever_changed(
    prompts: Prompts, store: Store, admin: Administration
) -> None:
    first, second = (prompts.add("brief", text, actor=BY) for text in ("Be brief.", "Be very brief.\0"[:-1]))
    assert (first.reference, second.reference) == ("brief@1", "brief@2")
    assert prompts.add("brief", "Be very brief.", actor=BY) == second
    assert prompts.add("brief", "Be brief.", actor=BY).version == 3
    other = prompts.add("answer.in-full", "Ünd 语", actor=BY)
    assert prompts.get("brief@1") == first
    assert prompts.get("brief").version == 3
    assert [one.reference for one in prompts.list()] == ["answer.in-full@1", "brief@1", "brief@2", "brief@3"]
    assert [one.version for one in prompts.list(name="brief", after="brief@1", limit=1)] == [2]
    assert in_force(store).prompts["answer.in-full@1"] == other
    assert [(line.kind, line.object_id) for line in admin.audit()][:2] == [("prompt", "brief@1"), ("prompt", "brief@2")]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("", "x", "name '' of a prompt"),
        ("a@b", "x", "name 'a@b' of a prompt"),
        ("a", " ", "from 1 to"),
        ("a", "x\0", "none of them zero"),
        ("a", "x" * 200_001, "200001 characters"),
        ("a", "\ud800", "text of a prompt"),
    ],
)
def test_what_is_no_prompt_is_refused(file: Store, name: str, text: str, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        Prompts(file).add(name, text, actor=BY)


@pytest.mark.parametrize("reference", ["brief@9", "nothing"])
def test_a_version_that_there_is_not_is_told(file: Store, reference: str) -> None:
    Prompts(file).add("brief", "Be brief.", actor=BY)
    with pytest.raises(NotFound, match=f"there is no prompt '{reference}'"):
        Prompts(file).get(reference)
