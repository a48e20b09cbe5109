"""A revoked key stays out, whatever is slow, away or put back; and who is known goes on while the database is away."""

import shutil
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from drivetrain.errors import StoreAway
from drivetrain.store import Store
from drivetrain.store.administration import Administration
from drivetrain.store.directory import Directory
from tests.services import PostgresServer
from tests.unit.store.administrators import BY, PEPPER, Clock, administration, new_key, opens

if TYPE_CHECKING:
    from sqlalchemy import Connection

pytestmark = pytest.mark.anyio
NOBODYS = "aaaaaaaaaaaa"  # what nobody's key begins with
Away = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def away(request: pytest.FixtureRequest, store: Store, store_url: str, tmp_path: Path) -> Away:
    """Takes the database away, and brings it back."""
    if store_url.startswith("sqlite"):
        return lambda: _without_folder(tmp_path / "state")
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: _without_server(server)


@contextmanager
def _without_folder(folder: Path) -> Iterator[None]:
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("no folder")
    try:
        yield
    finally:
        folder.unlink()
        folder.with_name("elsewhere").rename(folder)


@contextmanager
def _without_server(server: PostgresServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


async def test_while_the_database_is_away_who_is_known_goes_on_and_who_is_revoked_stays_out(
    store: Store, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    admin = administration(store)
    directory = Directory(store, PEPPER, Clock())
    known, text = new_key(admin, "known")
    revoked, _ = new_key(admin, "revoked")
    price = admin.create("price", {"input": 1}, actor=BY)
    await directory.refresh()
    for key in (known, revoked):
        assert await directory.find(key.public_id) is not None
    admin.revoke_key("revoked", actor=BY)
    await directory.refresh()
    with away():
        with pytest.raises(StoreAway) as caught:
            await directory.find(NOBODYS)
        assert caught.value.message == "the key is not known here, and the store that would know it is away; try again"
        for _ in range(3):
            assert not await directory.refresh()
        assert directory.away
        assert opens(text, await directory.find(known.public_id))
        assert await directory.find(revoked.public_id) is None
        assert directory.prices == (price,)
        with pytest.raises(StoreAway):
            await directory.find(NOBODYS)
        with pytest.raises(StoreAway):
            await directory.user_of("https://idp|1")
        with pytest.raises(StoreAway):
            admin.revoke_key("known", actor=BY)
    assert await directory.refresh()
    assert not directory.away
    assert await directory.find(NOBODYS) is None
    assert await directory.find(revoked.public_id) is None
    admin.revoke_key("known", actor=BY)
    await directory.refresh()
    assert await directory.find(known.public_id) is None
    told = [record.getMessage() for record in caplog.records if record.name == "drivetrain.store"]
    assert [line.partition(":")[0] for line in told if "look" in line] == [
        "a key could not be looked up",
        "keys that are known go on, others cannot be looked up",
        "keys are looked up again",
    ]


async def test_what_was_revoked_elsewhere_meanwhile_is_refused_when_the_database_is_back(
    store: Store, away: Away, store_url: str, tmp_path: Path
) -> None:
    admin = administration(store)
    directory = Directory(store, PEPPER, Clock())
    key, _ = new_key(admin)
    await directory.refresh()
    assert await directory.find(key.public_id) is not None
    with away():
        assert not await directory.refresh()
    other = Store.open(store_url, tmp_path)  # a replica that saw it come back first
    administration(other).revoke_key("ci", actor=BY)
    other.close()
    assert await directory.refresh()
    assert await directory.find(key.public_id) is None


# --- readings that take long ------------------------------------------------------------------------------------------


class Slow(Store):
    """Keeps a reading back, after it has read, until it may go."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._database)
        self.revision = store.revision  # type: ignore[method-assign]  # is no reading to keep back
        self._kept: list[tuple[threading.Event, threading.Event] | None] = []

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        with super().reading() as connection:
            yield connection
        if self._kept and (kept := self._kept.pop(0)):
            has_read, may_go = kept
            has_read.set()
            assert may_go.wait(30)

    @asynccontextmanager
    async def keeping(self, begin: Callable[[], object], *, let_go: int = 0) -> AsyncGenerator[None, None]:
        """`begin` starts a reading, or so many more and that one; inside it has read, and sees nothing that happens."""
        has_read, may_go = threading.Event(), threading.Event()
        self._kept += [*[None] * let_go, (has_read, may_go)]
        try:
            begin()
            await anyio.to_thread.run_sync(has_read.wait, 30)
            yield
        finally:
            may_go.set()


def up_to_date(directory: Directory, admin: Administration) -> None:
    """As after a look, but that it knows no keys."""
    directory._head = (len(admin.audit()), admin.audit()[-1].hash)


@pytest.fixture
def slow(store: Store) -> Iterator[Slow]:
    opened = Slow(store)
    yield opened
    opened.close()


async def test_a_key_that_was_read_before_it_was_barred_is_not_taken_for_good_after_it(
    store: Store, slow: Slow
) -> None:
    admin = administration(store)
    directory = Directory(slow, PEPPER, Clock())
    key, _ = new_key(admin)
    up_to_date(directory, admin)
    found: list[object] = []

    async def find() -> None:
        found.append(await directory.find(key.public_id))

    async with anyio.create_task_group() as group:
        async with slow.keeping(lambda: group.start_soon(find)):
            admin.update("org", "default", 1, {"disabled": True}, actor=BY)
            await directory.refresh()
            assert directory.cached(key.public_id) is None
    assert found == [None]
    assert directory.cached(key.public_id) is None


async def test_a_key_that_came_while_the_audit_was_looked_at_is_looked_at_too(store: Store, slow: Slow) -> None:
    admin = administration(store)
    directory = Directory(slow, PEPPER, Clock())
    key, text = new_key(admin)
    up_to_date(directory, admin)
    found: list[object] = []

    async def find() -> None:
        found.append(await directory.find(key.public_id))

    async with anyio.create_task_group() as group, AsyncExitStack() as looking:
        async with slow.keeping(lambda: group.start_soon(find)):  # has read it as it was
            admin.update("org", "default", 1, {"disabled": True}, actor=BY)
            # The look has read that, and the key is not known yet.
            await looking.enter_async_context(slow.keeping(lambda: group.start_soon(directory.refresh)))
        with anyio.fail_after(30):
            while not found:
                await anyio.sleep(0.001)
        assert opens(text, directory.cached(key.public_id))
    assert directory.cached(key.public_id) is None
    assert await directory.find(key.public_id) is None


async def test_who_is_revoked_is_out_before_all_else_is_read_again(store: Store, slow: Slow) -> None:
    admin = administration(store)
    directory = Directory(slow, PEPPER, Clock())
    keys = [new_key(admin, name)[0] for name in ("one", "two")]
    for key in keys:
        assert await directory.find(key.public_id) is not None
    await directory.refresh()
    admin.create("limit", {"org": "default", "resource": "requests", "amount": 1}, actor=BY)
    admin.revoke_key("one", actor=BY)
    async with anyio.create_task_group() as group:
        async with slow.keeping(lambda: group.start_soon(directory.refresh), let_go=1):
            assert [directory.cached(key.public_id) is not None for key in keys] == [False, True]
            assert directory.revision < len(admin.audit())
    assert [len(found.principal.rules) for key in keys if (found := directory.cached(key.public_id))] == [1]


async def test_a_database_that_does_not_answer_is_away(store: Store, slow: Slow) -> None:
    may_answer = threading.Event()

    def never() -> int:
        may_answer.wait(30)
        return store.revision()

    directory = Directory(slow, PEPPER, Clock())
    key, text = new_key(administration(store))
    await directory.refresh()
    slow.revision = never  # type: ignore[method-assign]  # as if the host had vanished
    directory._deadline_s = 0.01
    for _ in range(2):
        assert not await directory.refresh()
    assert opens(text, await directory.find(key.public_id))
    with pytest.raises(StoreAway):
        await directory.find(NOBODYS)
    may_answer.set()
    directory._deadline_s = 30.0
    assert await directory.refresh()
    assert await directory.find(NOBODYS) is None


async def test_who_is_looked_up_while_an_empty_database_takes_its_place_is_not_looked_up_for_ever(
    tmp_path: Path,
) -> None:
    store = Store.open("sqlite:///state/drivetrain.db", tmp_path)
    directory = Directory(store, PEPPER, Clock())
    new_key(administration(store))
    await directory.refresh()
    shutil.rmtree(tmp_path / "state")  # before anybody has looked: what is read there is older than what is known
    async with anyio.create_task_group() as group:
        group.start_soon(directory.refresh)
        with anyio.fail_after(30), pytest.raises(StoreAway):
            await directory.find(NOBODYS)
    assert directory.away


async def test_what_the_first_look_up_has_to_import_is_no_delay_of_the_database(store: Store) -> None:
    class Importing(Directory):
        def _prepare(self) -> None:
            imported.wait(30)
            super()._prepare()

    imported = threading.Event()
    directory = Importing(store, PEPPER, Clock())
    key, text = new_key(administration(store))
    directory._deadline_s = 0.2
    async with anyio.create_task_group() as group:
        group.start_soon(directory.find, key.public_id)
        await anyio.sleep(0.3)
        directory._deadline_s = 30.0
        imported.set()
    assert opens(text, directory.cached(key.public_id))


# --- another database in its place ------------------------------------------------------------------------------------


def copy(folder: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)


async def test_a_copy_that_is_put_in_its_place_is_read_anew(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup"
    store = Store.open("sqlite:///state/drivetrain.db", tmp_path)
    admin = administration(store)
    directory = Directory(store, PEPPER, Clock())
    old, old_text = new_key(admin, "old")
    copy(state, backup)
    lost, _ = new_key(admin, "lost")
    admin.create("price", {"input": 1}, actor=BY)
    await directory.refresh()
    for key in (old, lost):
        assert await directory.find(key.public_id) is not None
    copy(backup, state)
    await directory.refresh()
    assert await directory.find(lost.public_id) is None
    assert opens(old_text, await directory.find(old.public_id))
    assert directory.prices == ()


async def test_a_copy_that_went_another_way_is_not_taken_for_the_same(tmp_path: Path) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup"
    store = Store.open("sqlite:///state/drivetrain.db", tmp_path)
    admin = administration(store)
    directory = Directory(store, PEPPER, Clock())
    new_key(admin, "old")
    copy(state, backup)
    lost, _ = new_key(admin, "lost")
    await directory.refresh()
    assert await directory.find(lost.public_id) is not None
    copy(backup, state)
    for name in ("one", "two"):
        new_key(admin, name)
    await directory.refresh()
    assert directory.cached(lost.public_id) is None


async def test_an_empty_database_in_its_place_is_a_database_that_is_away(tmp_path: Path) -> None:
    store = Store.open("sqlite:///state/drivetrain.db", tmp_path)
    directory = Directory(store, PEPPER, Clock())
    key, text = new_key(administration(store))
    await directory.refresh()
    assert await directory.find(key.public_id) is not None
    copy(tmp_path / "state", tmp_path / "backup")
    shutil.rmtree(tmp_path / "state")
    assert not await directory.refresh()
    assert opens(text, await directory.find(key.public_id))
    with pytest.raises(StoreAway):
        await directory.find(NOBODYS)
    copy(tmp_path / "backup", tmp_path / "state")
    assert await directory.refresh()
    assert await directory.find(NOBODYS) is None
