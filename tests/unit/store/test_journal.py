"""The journal: whole lines survive, and belong to one process at a time."""

import fcntl
from pathlib import Path

import pytest

from drivetrain.store.journal import SEGMENT_BYTES, Journal, Segment

LINE = b'{"row":1}\n'


def test_lines_come_back_and_one_that_was_cut_short_does_not(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path / "a.journal")
    assert segment.append(b"one\n")
    assert segment.append(b"two\n")
    assert segment.append(b"thr")  # its process died here
    assert list(segment.lines()) == [b"one", b"two"]
    segment.delete()


def test_a_segment_can_be_adopted_once_its_owner_has_let_go(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    owner = Segment.create(path)
    owner.append(LINE)
    assert Segment.adopt(path) is None
    owner.close()
    heir = Segment.adopt(path)
    assert heir is not None
    assert list(heir.lines()) == [LINE.rstrip()]
    heir.delete()
    assert Segment.adopt(path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_size_is_no_segment(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(LINE)
    assert Segment.adopt(path) is None
    assert path.read_bytes() == LINE


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_segment_whose_process_did_not_live_to_make_it_is_swept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(content)
    assert Segment.adopt(path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_segment_that_is_swept_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock, opened = tmp_path / "a.journal", fcntl.flock, list[int]()

    def flock(descriptor: int, how: int) -> None:
        opened.append(descriptor)
        if len(opened) == 1:  # another process looks for orphans before we have the lock
            assert Segment.adopt(path) is None
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    segment = Segment.create(path)
    assert segment.append(LINE)
    segment.close()
    assert path.read_bytes().rstrip(b"\0") == LINE


def test_a_full_segment_is_followed_by_another_and_forgotten_when_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    line = b"x" * (SEGMENT_BYTES // 4) + b"\n"  # three of them fit
    assert all(journal.append(line, number) for number in range(1, 8))
    assert [segment.last for segment in journal.full()] == [3, 6]
    assert journal.forget(2) == []
    free = journal.forget(3)
    assert [segment.last for segment in free] == [3]
    journal.reuse(free)
    assert [segment.last for segment in journal.full()] == [6]
    assert all(journal.append(line, number) for number in range(8, 11))  # goes on in what was freed
    assert len(list(tmp_path.iterdir())) == 3
    journal.close(10)
    assert list(tmp_path.iterdir()) == []


def test_what_was_reused_holds_new_lines_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(b"a much longer old line\n", 1)
    journal.forget(1)
    journal.append(b"new\n", 2)
    journal.rotate()
    assert [list(segment.lines()) for segment in journal.full()] == [[b"new"]]
    journal.close(2)


def test_closing_leaves_what_is_not_written_to_an_heir(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(LINE, 1)
    journal.rotate()
    journal.append(LINE, 2)
    journal.close(1)
    orphans = list(Journal(tmp_path).orphans())
    assert [list(orphan.lines()) for orphan in orphans] == [[LINE.rstrip()]]
    for orphan in orphans:
        orphan.delete()


@pytest.mark.parametrize("line", [b"x" * (SEGMENT_BYTES + 1)])
def test_a_line_that_no_segment_can_hold_is_refused(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path)
    assert not journal.append(line, 1)
    journal.close(1)


def test_without_a_place_for_files_nothing_is_kept_and_nothing_breaks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "below")
    assert not journal.append(LINE, 1)
    journal.prepare()
    journal.close(0)
