"""Engines that were taken out of service: a line of the audit each, known everywhere within a look; in each store."""

import pytest

from drivetrain.store import Store
from drivetrain.store.administration import Administration
from drivetrain.store.directory import Directory
from tests.unit.store.administrators import BY, PEPPER, Clock

pytestmark = pytest.mark.anyio


async def test_who_is_out_is_known_after_a_look_and_who_is_back_too(admin: Administration, store: Store) -> None:
    directory = Directory(store, PEPPER, Clock())
    await directory.refresh()
    assert directory.drained == frozenset()
    for engine in ("box", "gpu@10.0.0.5:8000"):
        assert admin.drain(engine, out=True, actor=BY)
    await directory.refresh()
    assert directory.drained == {"box", "gpu@10.0.0.5:8000"}
    assert admin.drain("box", out=False, actor=BY)
    await directory.refresh()
    assert directory.drained == {"gpu@10.0.0.5:8000"}
    later = Directory(store, PEPPER, Clock())  # of a process that has just started
    await later.refresh()
    assert later.drained == {"gpu@10.0.0.5:8000"}


async def test_what_is_so_already_is_no_change_and_no_line(admin: Administration) -> None:
    assert [admin.drain("box", out=out, actor=BY) for out in (False, True, True, False)] == [False, True, False, True]
    lines = admin.audit(kind="engine")
    assert [(line.action, line.object_id, line.actor, line.after) for line in lines] == [
        ("drain", "box", BY, {"name": "box", "drained": True}),
        ("resume", "box", BY, {"name": "box", "drained": False}),
    ]
    assert admin.verify_audit().broken is None


async def test_other_changes_leave_who_is_out_as_it_is(admin: Administration, store: Store) -> None:
    directory = Directory(store, PEPPER, Clock())
    admin.drain("box", out=True, actor=BY)
    await directory.refresh()
    kept = directory.drained
    admin.create("org", {"name": "acme"}, actor=BY)
    await directory.refresh()
    assert directory.drained is kept
