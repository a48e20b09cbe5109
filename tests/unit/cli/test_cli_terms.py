"""`drivetrain terms`: what a key, a team and the others lay down about their requests."""

import pytest

from tests.unit.cli.kit import Terminal


def test_terms_are_set_changed_and_lifted_one_by_one(house: Terminal) -> None:
    words = "terms set --key ci --connect 0.25s --first-token 5s --idle 10s --total 2m --queue-timeout 3s"
    told = (
        "key 'ci': connection within 0.25 s, first token within 5 s, pause within 10 s, answer within 120 s,"
        " wait within 3 s\n"
    )
    assert house.type(words) == (0, "", told)
    assert house.type("terms set --key ci --idle none --total none --connect none --queue-size 0") == (
        0,
        "",
        "key 'ci': first token within 5 s, wait within 3 s, none may wait\n",
    )
    assert house.type(
        "terms set --key ci --first-token none --queue-timeout none --queue-size 3 --on-disconnect drain"
    ) == (0, "", "key 'ci': 3 may wait, on disconnect drain\n")
    assert house.type("terms set --key ci --queue-size none --on-disconnect none") == (0, "", "key 'ci': nothing\n")
    assert house.type("terms list --json").json == {"terms": []}


def test_terms_of_everybody_are_listed(house: Terminal) -> None:
    house.type("terms set --org default --on-disconnect estimate")
    house.type("terms set --team search --queue-size 2")
    house.type("terms set --key ci --first-token 5s")
    assert [line.rstrip() for line in house.type("terms list").out.splitlines()] == [
        "BINDS           TERMS",
        "org 'default'   on disconnect estimate",
        "team 'search'   2 may wait",
        "key 'ci'        first token within 5 s",
    ]
    [only] = house.type("terms list --key ci --json").json["terms"]
    assert (only["owner"], only["subject"], only["version"]) == ("key 'ci'", "key", 2)
    assert (only["first_token_s"], only["idle_s"], only["queue_size"]) == (5.0, None, None)
    house.type("keys revoke ci")
    assert [one["owner"] for one in house.type("terms list --json").json["terms"]] == ["org 'default'", "team 'search'"]


def test_terms_are_shown_with_the_key_that_they_bind_and_go_with_it(house: Terminal) -> None:
    house.type("terms set --key ci --total 60s")
    house.type("terms set --team search --queue-size 0")
    house.type("keys rotate ci")
    lines = house.type("keys show ci").out.splitlines()
    assert [line for line in lines if line.startswith("terms of")] == [
        "terms of   key 'ci': answer within 60 s",
        "terms of   team 'search': none may wait",
    ]
    shown = house.type("keys show ci --json").json
    assert [one["owner"] for one in shown["terms_of"]] == ["key 'ci'", "team 'search'"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("terms set --idle 1s", "say whom it binds with one of --key, --user, --project, --team, --org; none of"),
        ("terms set --key ci --team search --idle 1s", "2 of them given"),
        ("terms set --key ci", "no term is named"),
        ("terms set --key ci --idle 0s", "'0s' does not fit; write a time such as 30s, 5m or 0.25s, or `none`"),
        ("terms set --key ci --idle 5", "'5' does not fit; write a time"),
        ("terms set --key ci --queue-size -1", "'-1' does not fit; write a number from 0 to 999999, or `none`"),
        ("terms set --key ci --on-disconnect never", "'never' is not one of 'estimate', 'drain', 'free', 'none'"),
        ("terms set --key ci --total 400d", "terms.total_s 34560000.0 of a key: expected `float` <= 31536000.0"),
    ],
)
def test_wrong_usage_lays_nothing_down(house: Terminal, words: str, message: str) -> None:
    outcome = house.type(words)
    assert (outcome.code, outcome.out) in ((2, ""), (1, ""))
    assert message in outcome.err
    assert house.type("terms list --json").json == {"terms": []}
