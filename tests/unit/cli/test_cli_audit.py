"""`drivetrain audit`: every write is a line of it, and nobody changes one unseen."""

import sqlite3
from contextlib import closing

import pytest

from drivetrain.cli.office import actor
from tests.unit.cli.kit import Terminal


@pytest.fixture
def busy(drivetrain: Terminal) -> Terminal:
    drivetrain.type("teams create search")
    drivetrain.type("keys create --name ci --team search")
    drivetrain.type("budgets set --team search --usd 50 --per month")
    drivetrain.type("budgets set --team search --usd 60 --per month")
    drivetrain.type("keys revoke ci")
    return drivetrain


def test_it_says_who_did_what(busy: Terminal) -> None:
    changes = busy("audit", "--json").json["changes"]
    assert [(one["action"], one["kind"]) for one in changes] == [
        ("create", "org"),
        ("create", "team"),
        ("create", "project"),
        ("create", "key"),
        ("create", "budget"),
        ("update", "budget"),
        ("revoke", "key"),
    ]
    assert {one["actor"] for one in changes} == {actor()}
    assert [one["revision"] for one in changes] == [1, 2, 3, 4, 5, 6, 7]


def test_a_line_shows_what_changed(busy: Terminal) -> None:
    lines = busy("audit").out.splitlines()
    assert lines[0].split() == ["REVISION", "AT", "WHO", "DID", "WHAT", "CHANGED"]
    assert lines[-2].endswith("amount: 50000000 → 60000000")
    assert "key 'ci'" in lines[-1]
    assert lines[-1].endswith("disabled: False → True")


def test_it_can_be_narrowed(busy: Terminal) -> None:
    def found(words: str) -> list[int]:
        return [one["revision"] for one in busy.type(f"audit {words} --json").json["changes"]]

    assert (found("--kind key"), found("--limit 2"), found("--kind key --limit 1")) == ([4, 7], [6, 7], [7])
    assert (found("--since 1h"), found("list --since 2100-01-01")) == ([1, 2, 3, 4, 5, 6, 7], [])


def test_no_secret_is_in_it(drivetrain: Terminal) -> None:
    secret = drivetrain("keys", "create", "--name", "ci").out.strip().split("-", 2)[2]
    assert secret not in drivetrain("audit", "--json").out


def test_it_is_whole_until_somebody_changes_a_line(busy: Terminal) -> None:
    verdict = busy("audit", "verify")
    assert verdict.code == 0
    assert verdict.out.startswith("whole: 7 changes are as they were written; the newest has the hash ")
    assert busy("audit", "verify", "--json").json["whole"] is True

    with closing(sqlite3.connect(busy.home / "state" / "drivetrain.db")) as database:
        database.execute("""UPDATE audit SET "after" = replace("after", '60000000', '1') WHERE revision = 6""")
        database.commit()
    broken = busy("audit", "verify")
    assert (broken.code, broken.out) == (1, "")
    assert broken.err.startswith("broken at revision 6: ")
    assert busy("audit", "verify", "--json").json["broken"] == 6
