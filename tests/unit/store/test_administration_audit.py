"""Every write leaves a line, one after the other, and a line that was changed afterwards is found; in each store."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update

from drivetrain.errors import BadRequest, Conflict
from drivetrain.governance import Change
from drivetrain.store import Store
from drivetrain.store.administration import Administration
from drivetrain.store.audit import Verdict
from drivetrain.store.tables import audit, head
from tests.unit.store.administrators import BY, Clock, administration, new_key


def filled(admin: Administration) -> None:
    for number in range(3):
        admin.create("org", {"name": f"org {number}"}, actor=BY, request_id="req_1")


def test_a_line_tells_who_did_what_to_what(admin: Administration) -> None:
    clock = Clock()
    org = admin.create("org", {"name": "acme"}, actor="user ada@example.com", request_id="req_1")
    admin.update("org", "acme", 1, {"disabled": True}, actor="cli root")
    made, changed = admin.audit()
    before = {"id": org.id, "name": "acme", "disabled": False, "terms": {}, "created_s": clock.now_s,
              "version": 1}  # fmt: skip
    assert made == Change(
        revision=1,
        at_s=clock.now_s,
        actor="user ada@example.com",
        action="create",
        kind="org",
        object_id=org.id,
        before=None,
        after=before,
        request_id="req_1",
        hash=made.hash,
    )
    assert (changed.revision, changed.actor, changed.action) == (2, "cli root", "update")
    assert (changed.before, changed.after) == (before, {**before, "disabled": True, "version": 2})
    assert admin.audit(1) == [changed]
    assert admin.audit(kind="team") == []
    assert admin.audit(object_id=org.id, limit=1) == [made]


def test_a_write_that_fails_leaves_nothing(admin: Administration) -> None:
    with pytest.raises(BadRequest):  # after it has made the default organisation
        admin.create("user", {"name": "Ada", "scopes": ["root"]}, actor=BY)
    assert admin.list("org") == []
    assert admin.audit() == []


def test_an_audit_that_nobody_touched_is_whole(admin: Administration) -> None:
    assert admin.verify_audit() == Verdict(lines=0, head_hash="")
    filled(admin)
    key, _ = new_key(admin, expires_s=1_900_000_000.25)
    admin.rotate_key(key.id, grace_s=0.1, actor=BY)
    newest = admin.audit()[-1]
    assert admin.verify_audit() == Verdict(lines=newest.revision, head_hash=newest.hash)


@pytest.mark.parametrize(
    ("change", "broken", "why"),
    [
        (update(audit).where(audit.c.revision == 2).values(actor="somebody else"), 2, "the line was changed"),
        (update(audit).where(audit.c.revision == 2).values(after=None), 2, "the line was changed"),
        (update(audit).where(audit.c.revision == 3).values(at_s=1.0), 3, "the line was changed"),
        (delete(audit).where(audit.c.revision == 2), 2, "the line is missing"),
        (delete(audit).where(audit.c.revision == 1), 1, "the line is missing"),
        (delete(audit).where(audit.c.revision == 3), 3, "the line is missing"),
        (delete(audit), 1, "the line is missing"),
        (update(head).values(hash="0" * 64), 4, "the head of the audit was changed"),
    ],
)
def test_the_first_line_that_is_not_as_it_was_written_is_named(
    admin: Administration, store: Store, change: Any, broken: int, why: str
) -> None:
    filled(admin)
    with store.writing() as connection:
        connection.execute(change)
    verdict = admin.verify_audit()
    assert (verdict.broken, verdict.lines) == (broken, broken - 1)
    assert why in verdict.why


def test_lines_that_were_put_elsewhere_are_found(admin: Administration, store: Store) -> None:
    filled(admin)
    with store.writing() as connection:
        rows = connection.execute(select(audit).order_by(audit.c.revision)).mappings().all()
        connection.execute(delete(audit))
        turned = [{**row, "revision": 4 - row["revision"]} for row in rows]
        connection.execute(insert(audit), turned)
    assert admin.verify_audit().broken == 1


def test_of_writers_who_read_the_same_version_one_wins(store: Store, store_url: str, tmp_path: Path) -> None:
    others = Store.open(store_url, tmp_path)
    writers = [administration(store), administration(others)] * 3
    team = writers[0].create("team", {"name": "search"}, actor=BY)
    lines = len(writers[0].audit())

    def write(number: int) -> str:
        try:
            writers[number].update("team", team.id, 1, {"name": f"team {number}"}, actor=f"writer {number}")
        except Conflict as error:
            return error.message
        return "won"

    with ThreadPoolExecutor(len(writers)) as threads:
        outcomes = list(threads.map(write, range(len(writers))))
    others.close()
    assert outcomes.count("won") == 1
    lost = f"team '{team.id}' has version 2, not 1; somebody else has changed it: read it again, and repeat"
    assert all(outcome == "won" or outcome.startswith(lost) for outcome in outcomes)
    winner = outcomes.index("won")
    assert getattr(writers[0].get("team", team.id), "name", "") == f"team {winner}"
    assert [change.actor for change in writers[0].audit(lines)] == [f"writer {winner}"]


def test_lines_of_many_writers_have_no_gaps_and_one_chain(store: Store, store_url: str, tmp_path: Path) -> None:
    others = Store.open(store_url, tmp_path)
    writers = [administration(store), administration(others)]

    def write(number: int) -> None:
        writers[number % 2].create("org", {"name": f"org {number}"}, actor=BY)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(20)))
    others.close()
    with store.reading() as connection:
        assert connection.execute(select(func.count()).select_from(audit)).scalar() == 20
    assert writers[0].verify_audit().lines == 20
    assert writers[0].verify_audit().broken is None
