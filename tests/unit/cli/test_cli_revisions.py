"""`drivetrain config revisions` and `rollback`: an earlier configuration comes back as it was written."""

import signal
from pathlib import Path

import pytest

from drivetrain.store import Store
from tests.unit.cli.kit import Terminal
from tests.unit.cli.standin import StandIn

FIRST, SECOND = "server: {port: 8080}\n", "server: {port: 9090}\nengines: {e: {kind: openai, url: 'http://e'}}\n"


@pytest.fixture
def file(drivetrain: Terminal) -> Path:
    """A home in which the first configuration was followed by the second one."""
    (drivetrain.home / "state").mkdir(parents=True)
    store = Store.open("sqlite:///state/drivetrain.db", drivetrain.home)
    for at_s, body in ((1_796_040_000.0, FIRST), (1_796_043_600.0, SECOND)):
        store.keep_config(body, actor="serve", at_s=at_s)
    store.close()
    path = drivetrain.home / "drivetrain.yaml"
    path.write_text(SECOND)
    return path


def test_revisions_are_listed_and_shown(drivetrain: Terminal, file: Path) -> None:
    lines = [line.split() for line in drivetrain("config", "revisions").out.splitlines()]
    assert [[*line[:4], *line[5:]] for line in lines[1:]] == [
        ["2", "2026-11-30", "13:00:00Z", "serve", "now"],
        ["1", "2026-11-30", "12:00:00Z", "serve"],
    ]
    assert drivetrain("config", "revisions", "1").out == FIRST
    told = drivetrain("config", "revisions", "--json").json
    assert ([one["revision"] for one in told["revisions"]], told["present"]) == ([2, 1], 2)


def test_rollback_writes_the_file_again(drivetrain: Terminal, file: Path) -> None:
    outcome = drivetrain("config", "rollback", "1")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"{file} is as in revision 1; no server runs on this home; the next one takes it\n"
    assert file.read_text() == FIRST
    assert sorted(path.name for path in drivetrain.home.iterdir()) == ["drivetrain.yaml", "state"]
    told = drivetrain("config", "revisions", "--json").json
    assert (told["present"], told["revisions"][0]["actor"].partition(", ")[2]) == (3, "back to 1")


def test_what_was_never_in_force_is_kept_before_it_is_overwritten(drivetrain: Terminal, file: Path) -> None:
    file.write_text("server: {port: 7070}\n")
    drivetrain("config", "rollback", "2")
    assert drivetrain("config", "revisions", "3").out == "server: {port: 7070}\n"


def test_a_file_that_cannot_be_read_does_not_stop_the_way_back(drivetrain: Terminal, file: Path) -> None:
    file.write_text("server: {prot: 1}\n")
    outcome = drivetrain("config", "rollback", "1")
    assert (outcome.code, file.read_text()) == (0, FIRST)
    assert "the present configuration cannot be used" in outcome.err


def test_a_revision_that_cannot_be_used_any_more_is_refused(drivetrain: Terminal, file: Path) -> None:
    store = Store.open("sqlite:///state/drivetrain.db", drivetrain.home)
    store.keep_config("engines: {e: {kind: gone}}\n", actor="serve", at_s=0.0)
    store.close()
    outcome = drivetrain("config", "rollback", "3")
    assert (outcome.code, file.read_text()) == (2, SECOND)
    assert "no installed package offers engines of kind 'gone'" in outcome.err


def test_a_server_that_runs_is_told(drivetrain: Terminal, file: Path) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: told.append(number))
    try:
        with StandIn(drivetrain.home, {}):
            rolled = drivetrain("config", "rollback", "1", "--json").json
        assert rolled == {"revision": 3, "like": 1, "server_told": True}
        assert told == [signal.SIGHUP]
        drivetrain("config", "rollback", "2")  # the server has gone, and its number is another process's by now
        assert told == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_revision_that_is_not_there_is_not_found(drivetrain: Terminal, file: Path) -> None:
    wanted = "Error: there is no revision 9 of the configuration; the newest is 2\n"
    assert drivetrain("config", "rollback", "9") == (3, "", wanted)
    assert drivetrain("config", "revisions", "9") == (3, "", wanted)
