"""`drivetrain keys` and the house that they belong to: on the store of a home, without a server."""

import json
import re

import pytest

from tests.unit.cli.kit import Terminal

SECRET = re.compile(r"dt-[A-Za-z0-9]{12}-[A-Za-z0-9_-]{43}\n")


def test_a_key_is_alone_on_standard_output_and_nowhere_else(drivetrain: Terminal) -> None:
    made = drivetrain("keys", "create", "--name", "ci")
    assert (made.code, made.err) == (0, "")
    assert SECRET.fullmatch(made.out)

    public, secret = made.out.strip().split("-", 2)[1:]
    lines = drivetrain("keys", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "KEY", "TEAM", "PROJECT", "USER", "SCOPES", "MODELS", "EXPIRES", "STATE"]
    assert lines[1].split() == [
        "ci",
        f"dt-{public}-…",
        "default",
        "default",
        "-",
        "inference",
        "all",
        "never",
        "active",
    ]
    kept = b"".join(path.read_bytes() for path in drivetrain.home.rglob("*") if path.is_file())
    assert public.encode() in kept
    assert secret.encode() not in kept


def test_all_that_can_be_said_of_a_key(drivetrain: Terminal) -> None:
    drivetrain("teams", "create", "search")
    drivetrain("projects", "create", "web", "--team", "search")
    drivetrain("users", "create", "ada", "--email", "ada@example.com")
    made = drivetrain.type(
        "keys create --name ci --team search --project web --user ada --models chat,llama* --scopes inference,usage "
        "--priority bulk --expires 2100-01-01 --tag env=ci --json"
    ).json
    assert (made["scopes"], made["models"], made["priority"]) == (["inference", "usage"], ["chat", "llama*"], "bulk")
    assert (made["expires_s"], made["tags"], made["state"]) == (4_102_444_800.0, {"env": "ci"}, "active")
    assert (made["team_name"], made["project_name"]) == ("search", "web")
    assert made["key"].startswith(f"dt-{made['public_id']}-")

    shown = dict(line.split(maxsplit=1) for line in drivetrain("keys", "show", "ci").out.splitlines())
    assert (shown["user"], shown["expires"], shown["tags"]) == ("ada", "2100-01-01", "env=ci")


def test_a_team_without_projects_gets_one_for_its_first_key(drivetrain: Terminal) -> None:
    drivetrain("teams", "create", "search")
    assert drivetrain("keys", "create", "--name", "ci", "--team", "search").code == 0
    assert drivetrain("keys", "list", "--team", "search", "--json").json["keys"][0]["project_name"] == "default"
    drivetrain("keys", "create", "--name", "other")
    assert [key["name"] for key in drivetrain("keys", "list", "--team", "search", "--json").json["keys"]] == ["ci"]


def test_an_unknown_name_brings_the_names_that_are_near(drivetrain: Terminal) -> None:
    drivetrain("teams", "create", "search")
    drivetrain("keys", "create", "--name", "ci", "--team", "search")
    for words, message in (
        (["keys", "create", "--name", "x", "--team", "serch"], "there is no team 'serch'; did you mean 'search'?"),
        (["keys", "show", "c1"], "there is no key 'c1'; known: ci"),
        (["projects", "create", "web", "--team", "sarch"], "there is no team 'sarch'; did you mean 'search'?"),
        (
            ["keys", "create", "--name", "x", "--team", "search", "--project", "defalt"],
            "team 'search' has no project 'defalt'; did you mean 'default'?",
        ),
    ):
        assert drivetrain(*words) == (3, "", f"Error: {message}\n")


def test_a_key_that_was_rotated_works_on_for_a_while(drivetrain: Terminal) -> None:
    drivetrain("keys", "create", "--name", "ci", "--models", "chat")
    old = drivetrain("keys", "show", "ci", "--json").json
    new = drivetrain("keys", "rotate", "ci", "--grace", "1h", "--json").json
    assert (new["name"], new["models"], new["rotated_from"]) == ("ci", ["chat"], old["id"])

    states = {key["id"]: key for key in drivetrain("keys", "list", "--json").json["keys"]}
    assert states.keys() == {old["id"], new["id"]}
    assert states[old["id"]]["expires_s"] - new["created_s"] == pytest.approx(3600)
    assert drivetrain("keys", "show", "ci", "--json").json["id"] == new["id"]  # the name is that of the newest


def test_a_key_that_was_rotated_without_grace_has_ended(drivetrain: Terminal) -> None:
    drivetrain("keys", "create", "--name", "ci")
    assert SECRET.fullmatch(drivetrain("keys", "rotate", "ci", "--grace", "0s").out)
    assert len(drivetrain("keys", "list").out.splitlines()) == 2
    assert [line.split()[-1] for line in drivetrain("keys", "list", "--all").out.splitlines()[1:]] == [
        "expired",
        "active",
    ]


def test_a_revoked_key_is_listed_only_if_asked_for(drivetrain: Terminal) -> None:
    drivetrain("keys", "create", "--name", "ci")
    assert drivetrain("keys", "revoke", "ci") == (0, "", "key 'ci' is revoked\n")
    assert drivetrain("keys", "list", "--json").json == {"keys": []}
    assert [key["state"] for key in drivetrain("keys", "list", "--all", "--json").json["keys"]] == ["revoked"]


def test_a_key_can_be_changed(drivetrain: Terminal) -> None:
    drivetrain("keys", "create", "--name", "ci")
    changed = drivetrain("keys", "update", "ci", "--models", "chat", "--name", "build", "--json").json
    assert (changed["name"], changed["models"], changed["version"]) == ("build", ["chat"], 2)
    assert drivetrain("keys", "update", "build").code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scopes", "inferense"], "there is no scope 'inferense'; did you mean 'inference'?"),
        (["--scopes", ","], "',' names no scope"),
        (["--expires", "soon"], "'soon' is no time; write"),
        (["--tag", "env"], "'env' is no tag; write NAME=VALUE"),
        (["--priority", "high"], "'high' is not one of 'bulk', 'default', 'interactive', 'system'"),
    ],
)
def test_a_value_that_means_nothing_is_wrong_usage(drivetrain: Terminal, words: list[str], message: str) -> None:
    outcome = drivetrain("keys", "create", "--name", "ci", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_teams_are_made_listed_changed_and_removed(drivetrain: Terminal) -> None:
    made = drivetrain("teams", "create", "search", "--models", "chat,llama*", "--json").json
    assert (made["name"], made["models"], made["disabled"]) == ("search", ["chat", "llama*"], False)
    assert drivetrain("teams", "update", "search", "--disable") == (0, "", "team 'search' is changed\n")
    line = drivetrain("teams", "list").out.splitlines()[1].split()
    assert line[:5] == ["search", "default", "chat,", "llama*", "disabled"]
    assert drivetrain("teams", "remove", "search") == (0, "", "team 'search' is gone\n")
    assert drivetrain("teams", "list", "--json").json == {"teams": []}


def test_what_something_belongs_to_stays(drivetrain: Terminal) -> None:
    drivetrain("teams", "create", "search")
    drivetrain("projects", "create", "web", "--team", "search")
    outcome = drivetrain("teams", "remove", "search")
    assert outcome.code == 1
    assert "is in use by project" in outcome.err


def test_one_name_is_given_once(drivetrain: Terminal) -> None:
    drivetrain("orgs", "create", "acme")
    outcome = drivetrain("orgs", "create", "acme")
    assert outcome.code == 1
    assert "there is a org 'acme' already" in outcome.err or "there is an org 'acme' already" in outcome.err


def test_users_show_what_they_may_do(drivetrain: Terminal) -> None:
    drivetrain("users", "create", "ada", "--email", "ada@example.com", "--scopes", "admin,usage")
    assert drivetrain("users", "list").out.splitlines()[1].split()[:5] == [
        "ada", "default", "ada@example.com", "admin,", "usage",
    ]  # fmt: skip


def test_every_list_is_json_too(drivetrain: Terminal) -> None:
    for kind in ("keys", "orgs", "teams", "projects", "users", "limits", "budgets", "prices"):
        assert json.loads(drivetrain(kind, "list", "--json").out) == {kind: []}
