"""Terms of keys and of what is above them: kept with their owners, told nearest first, taken up by every replica; in
each store."""

from typing import Any

import anyio
import pytest

from drivetrain.errors import BadRequest, Conflict
from drivetrain.governance import Said, Terms
from drivetrain.store import Store
from drivetrain.store.administration import Administration
from drivetrain.store.directory import Directory
from tests.unit.store.administrators import BY, PEPPER, Clock, new_key

pytestmark = pytest.mark.anyio


async def said(directory: Directory, public_id: str) -> tuple[Said, ...]:
    record = await directory.find(public_id)
    assert record is not None
    return record.principal.terms


async def test_a_key_has_the_terms_of_all_above_it_from_the_nearest_to_the_widest(
    admin: Administration, store: Store, clock: Clock
) -> None:
    org = admin.create("org", {"name": "acme", "terms": {"on_disconnect": "drain"}}, actor=BY)
    team = admin.create("team", {"name": "search", "org": "acme", "terms": {"queue_size": 0}}, actor=BY)
    project = admin.create("project", {"name": "web", "team": "search"}, actor=BY)
    user = admin.create("user", {"name": "Ada", "org": "acme", "terms": {"idle_s": 4}}, actor=BY)
    fields: dict[str, Any] = {"user": user.id, "terms": {"first_token_s": 0.5, "total_s": 9}}
    key, _ = new_key(admin, project=project.id, **fields)
    assert await said(Directory(store, PEPPER, clock), key.public_id) == (
        Said(id=f"key:{key.id}", owner="key 'ci'", terms=Terms(first_token_s=0.5, total_s=9.0)),
        Said(id=f"user:{user.id}", owner="user 'Ada'", terms=Terms(idle_s=4.0)),
        Said(id=f"team:{team.id}", owner="team 'search'", terms=Terms(queue_size=0)),
        Said(id=f"org:{org.id}", owner="org 'acme'", terms=Terms(on_disconnect="drain")),
    )
    assert admin.get("key", key.id) == key


async def test_a_key_of_nobody_who_laid_anything_down_has_no_terms(
    admin: Administration, store: Store, clock: Clock
) -> None:
    key, _ = new_key(admin)
    assert await said(Directory(store, PEPPER, clock), key.public_id) == ()


async def test_terms_that_are_set_and_lifted_reach_every_replica(
    admin: Administration, store: Store, clock: Clock
) -> None:
    key, _ = new_key(admin, team="default")
    replicas = [Directory(store, PEPPER, clock) for _ in range(2)]
    for replica in replicas:
        assert await said(replica, key.public_id) == ()
    async with anyio.create_task_group() as group:
        for replica in replicas:
            group.start_soon(replica.run)
        for terms, length in (({"queue_size": 0}, 1), ({}, 0)):
            admin.update("team", "default", None, {"terms": terms}, actor=BY)
            with anyio.fail_after(10):
                for replica in replicas:
                    while len(await said(replica, key.public_id)) != length:
                        await anyio.sleep(0.01)
        group.cancel_scope.cancel()


async def test_a_key_that_takes_anothers_place_has_its_terms_and_waits_with_it(
    admin: Administration, store: Store, clock: Clock
) -> None:
    old, _ = new_key(admin, terms={"queue_size": 1})
    new, _ = admin.rotate_key("ci", grace_s=60, actor=BY)
    assert new.terms == Terms(queue_size=1)

    directory = Directory(store, PEPPER, clock)
    (one,), (other,) = await said(directory, old.public_id), await said(directory, new.public_id)
    assert one == other == Said(id=f"key:{old.id}", owner="key 'ci'", terms=Terms(queue_size=1))


def test_of_two_who_have_read_the_same_version_one_is_told_so(admin: Administration) -> None:
    team = admin.create("team", {"name": "search"}, actor=BY)
    after = admin.update("team", team.id, 1, {"terms": {"idle_s": 5}}, actor=BY)
    assert (after.version, after.terms) == (2, Terms(idle_s=5.0))  # type: ignore[union-attr]
    with pytest.raises(Conflict, match="has version 2, not 1"):
        admin.update("team", team.id, 1, {"terms": {"idle_s": 6}}, actor=BY)
    assert admin.update("team", team.id, 2, {"terms": {"idle_s": 5.0}}, actor=BY) == after  # nothing new in it


def test_a_write_of_terms_is_a_line_of_the_audit(admin: Administration) -> None:
    team = admin.create("team", {"name": "search", "terms": {"idle_s": 5}}, actor=BY)
    admin.update("team", team.id, 1, {"terms": {"queue_size": 0}}, actor="cli root")
    line = admin.audit()[-1]
    assert (line.kind, line.action, line.actor) == ("team", "update", "cli root")
    assert line.before is not None and line.after is not None
    assert (line.before["terms"], line.after["terms"]) == ({"idle_s": 5.0}, {"queue_size": 0})
    assert admin.verify_audit().broken is None


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"idle_s": 0}, "terms.idle_s 0 of a team: expected `float` > 0.0"),
        ({"total_s": 1e9}, "terms.total_s 1000000000.0 of a team: expected `float` <= 31536000.0"),
        ({"queue_size": -1}, "terms.queue_size -1 of a team: expected `int` >= 0"),
        ({"on_disconnect": "never"}, "terms.on_disconnect 'never' of a team: invalid enum value 'never'"),
        ({"patience_s": 1}, "terms {'patience_s': 1} of a team: object contains unknown field `patience_s`"),
        ("strict", "terms 'strict' of a team: expected `object`, got `str`"),
    ],
)
def test_terms_that_make_no_sense_are_refused_by_their_names(embedded: Administration, terms: Any, told: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        embedded.create("team", {"name": "search", "terms": terms}, actor=BY)
    assert (refusal.value.message, refusal.value.param) == (told, "terms")


def test_a_list_cannot_be_narrowed_by_terms(embedded: Administration) -> None:
    with pytest.raises(BadRequest, match="a list of teams cannot be filtered by 'terms'"):
        embedded.list("team", {"terms": {}})
