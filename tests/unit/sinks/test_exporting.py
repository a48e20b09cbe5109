"""What sinks ask of the store: order, checkpoints that are never overwritten unseen, one exporter at a time."""

import subprocess
import sys
from pathlib import Path

from drivetrain.store import Store
from drivetrain.store.exporting import Lead, Rows
from tests.fakes.exports import attempt

OTHER_PROCESS = """
import sys
from pathlib import Path
from drivetrain.store import Store
from drivetrain.store.exporting import Lead
lead = Lead(Store.open(sys.argv[1], Path("/")))
assert lead.take()
print("taken", flush=True)
sys.stdin.read()
"""


def fill(store: Store, first: int, last: int) -> None:
    rows = store.rows()
    rows.insert([attempt(number) for number in range(first, last + 1)])
    rows.close()


def test_rows_come_in_the_order_of_their_commits(store: Store) -> None:
    rows = Rows(store)
    assert (rows.newest(), rows.after(0, 10)) == (0, [])
    fill(store, 5, 7)
    fill(store, 1, 2)
    got = rows.after(0, 10)
    assert [row for _, row in got] == [attempt(number) for number in (5, 6, 7, 1, 2)]
    assert rows.newest() == got[-1][0]
    assert rows.after(got[2][0], 1) == [got[3]]


def test_a_checkpoint_is_kept_only_over_the_one_that_was_seen(store: Store) -> None:
    rows = Rows(store, clock=lambda: 1000.0)
    assert rows.checkpoint("usage") is None
    assert rows.check("usage", 1, "one", was=None)
    assert not rows.check("usage", 2, "two", was=None)
    assert not rows.check("usage", 2, "two", was="none")
    assert rows.checkpoint("usage") == "one"
    assert rows.check("usage", 2, "two", was="one")
    with store.reading() as connection:
        kept = connection.exec_driver_sql("SELECT name, seq, state, updated_s FROM sinks").all()
    assert kept == [("usage", 2, "two", 1000.0)]


def test_one_exports_and_the_next_when_it_is_gone(store: Store, store_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, store_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        lead = Lead(store)
        assert not lead.take()
        other.kill()
        other.wait()
    while not lead.take():  # the server of a database takes a moment to see that a process is gone
        pass
    assert lead.held()
    again = Store.open(store_url, tmp_path)
    second = Lead(again)
    assert not second.take()
    lead.release()
    assert not lead.held()
    assert second.take()
    second.release()
    again.close()


def test_the_right_to_export_ends_with_the_connection(postgres_url: str, tmp_path: Path) -> None:
    first, second = Store.open(postgres_url, tmp_path), Store.open(postgres_url, tmp_path)
    lead, next_one = Lead(first), Lead(second)
    assert lead.take()
    with second.writing() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        )
    assert not lead.held()
    while not next_one.take():
        pass
    lead.release()
    next_one.release()
    first.close()
    second.close()
