"""Keys: shown once, rotated with grace, revoked for good, and the first one of an administrator; in each store."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from drivetrain import keys
from drivetrain.errors import BadRequest, Conflict, NotFound
from drivetrain.governance import SCOPES, Key
from drivetrain.store import Store
from drivetrain.store.administration import Administration
from drivetrain.store.tables import audit
from drivetrain.store.tables import keys as keys_table
from tests.unit.store.administrators import BY, PEPPER, Clock, administration, new_key
from tests.unit.store.attempts import attempt, kept

DAY_S = 86400.0


def test_a_key_is_kept_without_what_it_takes_to_use_it(admin: Administration, store: Store) -> None:
    key, text = new_key(admin, models=["phi4"], scopes=["inference", "models"], tags={"app": "search"})
    parsed = keys.parse(text)
    assert parsed is not None
    assert parsed[0] == key.public_id
    with store.reading() as connection:
        row = connection.execute(select(keys_table)).mappings().one()
        lines = connection.execute(select(audit)).all()
    assert keys.matches(PEPPER.secret, parsed[1], row["hash"])
    assert row["pepper"] == PEPPER.id
    assert row["hash"] not in str(lines)
    assert parsed[1] not in f"{row} {lines} {key}"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"expires_s": 1.0}, "expires_s 1.0 of a key: it is over already"),
        ({"priority": "urgent"}, "priority 'urgent' of a key: invalid enum value 'urgent'"),
        ({"scopes": ["admin", "admin"]}, "a scope is listed twice"),
        ({"tags": {"a": 1}}, "tags {'a': 1} of a key: expected `str`"),
        ({"tags": {"a": "\n"}}, "up to 32 names with printable texts"),
        ({"public_id": "aaaaaaaaaaaa"}, "a key has no member 'public_id' to set"),
    ],
)
def test_a_key_that_cannot_be_is_not_made(embedded: Administration, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        new_key(embedded, **fields)
    assert said in caught.value.message
    assert embedded.list("key") == []


def test_a_name_is_free_again_when_its_key_has_ended(admin: Administration, clock: Clock) -> None:
    first, _ = new_key(admin, expires_s=clock.now_s + 60)
    with pytest.raises(Conflict, match="there is a key 'ci' already"):
        new_key(admin)
    clock.now_s += 60
    second, _ = new_key(admin)
    admin.revoke_key("ci", actor=BY)
    third, _ = new_key(admin)
    assert admin.get("key", "ci") == third
    assert {key.id for key in admin.list("key")} == {first.id, second.id, third.id}


def test_a_key_is_found_by_the_part_that_everybody_may_see(admin: Administration) -> None:
    key, text = new_key(admin)
    assert admin.get("key", key.public_id) == key
    assert admin.get("key", f"dt-{key.public_id}") == key
    with pytest.raises(NotFound):
        admin.get("key", "dt-aaaaaaaaaaaa")
    assert text.startswith(f"dt-{key.public_id}-")


# --- rotation ---------------------------------------------------------------------------------------------------------


def test_a_rotated_key_goes_on_for_its_grace_beside_its_successor(admin: Administration, clock: Clock) -> None:
    old, _ = new_key(admin, models=["phi4"], tags={"app": "search"})
    clock.now_s += 10
    new, text = admin.rotate_key("ci", 1, grace_s=DAY_S, actor=BY)
    assert text.startswith(f"dt-{new.public_id}-")
    assert new == Key(
        id=new.id,
        public_id=new.public_id,
        name="ci",
        project=old.project,
        models=("phi4",),
        rotated_from=old.id,
        tags={"app": "search"},
        created_s=clock.now_s,
    )
    ended = admin.get("key", old.id)
    assert isinstance(ended, Key)
    assert (ended.expires_s, ended.version) == (clock.now_s + DAY_S, 2)
    assert admin.get("key", "ci") == new


def test_a_successor_lives_as_long_and_grace_never_lengthens_a_life(admin: Administration, clock: Clock) -> None:
    old, _ = new_key(admin, expires_s=clock.now_s + 30 * DAY_S)
    clock.now_s += 29.5 * DAY_S
    new, _ = admin.rotate_key(old.id, grace_s=DAY_S, actor=BY)
    assert new.expires_s == clock.now_s + 30 * DAY_S
    ended = admin.get("key", old.id)
    assert isinstance(ended, Key)
    assert ended.expires_s == old.expires_s


def test_a_line_of_keys_is_counted_by_the_first(admin: Administration) -> None:
    first, _ = new_key(admin)
    second, _ = admin.rotate_key("ci", grace_s=DAY_S, actor=BY)
    third, _ = admin.rotate_key("ci", grace_s=DAY_S, actor=BY)
    assert [second.rotated_from, third.rotated_from] == [first.id, first.id]
    limit = admin.create("limit", {"key": "ci", "resource": "requests", "amount": 5}, actor=BY)
    assert getattr(limit, "subject_id", "") == first.id
    with pytest.raises(Conflict, match=f"was rotated already; rotate {third.id}"):
        admin.rotate_key(second.id, grace_s=DAY_S, actor=BY)


def test_what_has_ended_is_not_rotated(admin: Administration) -> None:
    key, _ = new_key(admin)
    admin.revoke_key(key.id, actor=BY)
    with pytest.raises(Conflict, match="has ended; make a new one"):
        admin.rotate_key(key.id, grace_s=DAY_S, actor=BY)


# --- revocation -------------------------------------------------------------------------------------------------------


def test_revoking_is_for_good(admin: Administration) -> None:
    key, _ = new_key(admin)
    revoked = admin.revoke_key("ci", 1, actor=BY)
    assert (revoked.disabled, revoked.version) == (True, 2)
    with pytest.raises(Conflict, match="was revoked, which is for good; make a new one"):
        admin.update("key", key.id, 2, {"disabled": False}, actor=BY)
    assert admin.revoke_key(key.id, actor=BY) == revoked


def test_revoking_a_key_revokes_those_whose_place_it_took(admin: Administration) -> None:
    first, _ = new_key(admin)
    second, _ = admin.rotate_key("ci", grace_s=DAY_S, actor=BY)
    third, _ = admin.rotate_key("ci", grace_s=DAY_S, actor=BY)
    assert admin.revoke_key(second.id, actor=BY).id == second.id
    disabled = {key.id for key in admin.list("key", {"disabled": True})}
    assert disabled == {first.id, second.id}
    assert admin.revoke_key("ci", actor=BY).id == third.id
    assert {key.id for key in admin.list("key", {"disabled": True})} == {first.id, second.id, third.id}


@pytest.mark.anyio
async def test_a_key_of_the_ledger_is_not_deleted(admin: Administration, store: Store, tmp_path: Path) -> None:
    key, _ = new_key(admin)
    await kept(store, tmp_path / "state", [attempt(1, key_id=key.id)])
    with pytest.raises(Conflict, match="is in the ledger; revoke it"):
        admin.delete("key", key.id, actor=BY)


# --- the first one ----------------------------------------------------------------------------------------------------


def test_the_first_start_makes_an_administrators_key_once(admin: Administration) -> None:
    text = admin.first_admin_key()
    assert text is not None
    key = admin.get("key", text[3:15])
    assert isinstance(key, Key)
    assert key.scopes == tuple(sorted(SCOPES))
    assert (key.priority, key.models) == ("system", None)
    assert admin.first_admin_key() is None
    admin.revoke_key(key.id, actor=BY)
    assert admin.first_admin_key() is None  # whoever lost the last one makes another at the machine itself


def _first(url: str, home: str) -> str | None:
    store = Store.open(url, Path(home))
    try:
        return administration(store).first_admin_key()
    finally:
        store.close()


def test_of_processes_that_start_together_one_gets_it(store: Store, store_url: str, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        made = pool.starmap(_first, [(store_url, str(tmp_path))] * 3, chunksize=1)
    assert len([text for text in made if text is not None]) == 1
    assert len(administration(store).list("key")) == 1
