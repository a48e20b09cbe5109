"""Shared numbers: any process reads what every process counted, and no count is lost with its process."""

import fcntl
from pathlib import Path

import pytest

from drivetrain.telemetry import cells
from drivetrain.telemetry.cells import Cells, Row


def test_what_is_added_is_read_at_once_by_anybody(tmp_path: Path) -> None:
    own = Cells.open(tmp_path)
    row = own.row('["a","é"]', 3)
    assert row is not None
    row[0] += 1
    row[2] += 0.5
    assert list(cells.read(tmp_path)) == [Row('["a","é"]', (1.0, 0.0, 0.5), live=True)]
    own.close()


def test_a_key_has_one_row(tmp_path: Path) -> None:
    own = Cells.open(tmp_path)
    assert own.row("a", 2) is own.row("a", 2)
    assert own.row("b", 2) is not own.row("a", 2)
    assert [row.key for row in cells.read(tmp_path)] == ["a", "b"]
    own.close()


def test_processes_that_live_at_once_have_files_of_their_own(tmp_path: Path) -> None:
    one, other = Cells.open(tmp_path), Cells.open(tmp_path)
    assert one.path != other.path
    one.close()
    other.close()


def test_a_file_that_another_process_takes_while_it_is_made_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, others = fcntl.flock, list[Cells]()

    def flock(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        others.append(Cells.open(tmp_path))  # before we have the lock
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    one = Cells.open(tmp_path)
    assert {one.path, others[0].path} == set(tmp_path.iterdir())
    assert one.path != others[0].path
    one.close()
    others[0].close()


def test_the_file_of_a_dead_process_is_counted_on(tmp_path: Path) -> None:
    dead = Cells.open(tmp_path)
    row = dead.row("a", 1)
    assert row is not None
    row[0] = 41
    dead.close()
    assert list(cells.read(tmp_path)) == [Row("a", (41.0,), live=False)]
    heir = Cells.open(tmp_path)
    row = heir.row("a", 1)
    assert row is not None
    row[0] += 1
    assert list(cells.read(tmp_path)) == [Row("a", (42.0,), live=True)]
    assert len(list(tmp_path.iterdir())) == 1
    heir.close()


def test_a_full_file_refuses_new_rows_and_keeps_the_old(tmp_path: Path) -> None:
    own = Cells.open(tmp_path)
    number = 0
    while own.row(f"row {number}", 1000) is not None:
        number += 1
    assert number > 100
    assert own.row("row 0", 1000) is not None
    assert len(list(cells.read(tmp_path))) == number
    own.close()


def test_clearing_spares_the_living(tmp_path: Path) -> None:
    dead, living = Cells.open(tmp_path), Cells.open(tmp_path)
    dead.close()
    living.row("a", 1)
    cells.clear(tmp_path)
    assert list(tmp_path.iterdir()) == [living.path]
    living.close()


def test_a_file_that_is_being_made_has_no_rows_yet(tmp_path: Path) -> None:
    (tmp_path / "new.cells").write_bytes(b"")
    assert list(cells.read(tmp_path)) == []
