"""`drivetrain limits` and `drivetrain budgets`: how much, for whom, and what is spent."""

import pytest

from drivetrain.cli.budgets import window
from drivetrain.governance import Budget
from tests.unit.cli.kit import Terminal
from tests.unit.cli.rows import attempt, fill


def test_limits_of_a_key(house: Terminal) -> None:
    words = "limits set --key ci --requests-per-minute 60 --tokens-per-day 1_000_000 --concurrency 4"
    assert house.type(words) == (0, "", "3 set, 0 lifted\n")
    rows = [line.rsplit("   ", 1)[0].rstrip() for line in house("limits", "list").out.splitlines()]
    assert rows == [
        "BINDS      LIMIT                      MODEL   ON LOSS",
        "key 'ci'   60 requests per minute     all     share",
        "key 'ci'   1,000,000 tokens per day   all     share",
        "key 'ci'   4 requests at once         all     share",
    ]


def test_a_limit_that_is_set_again_is_changed(house: Terminal) -> None:
    house("limits", "set", "--team", "search", "--requests-per-minute", "60", "--tokens-per-minute", "1000")
    house("limits", "set", "--team", "search", "--requests-per-minute", "100", "--on-loss", "closed")
    limits = house("limits", "list", "--json").json["limits"]
    assert [(one["owner"], one["resource"], one["amount"], one["on_loss"]) for one in limits] == [
        ("team 'search'", "requests", 100, "closed"),
        ("team 'search'", "tokens", 1000, "share"),
    ]


def test_a_limit_for_one_model_is_another_one(house: Terminal) -> None:
    house("limits", "set", "--key", "ci", "--concurrency", "8")
    house("limits", "set", "--key", "ci", "--concurrency", "2", "--model", "chat")
    limits = house("limits", "list", "--json").json["limits"]
    assert [(one["amount"], one["model"]) for one in limits] == [(8, None), (2, "chat")]


def test_a_limit_is_lifted_by_name_or_removed_by_id(house: Terminal) -> None:
    house("limits", "set", "--key", "ci", "--concurrency", "8", "--requests-per-day", "10")
    assert house("limits", "set", "--key", "ci", "--concurrency", "none") == (0, "", "0 set, 1 lifted\n")
    [left] = house("limits", "list", "--json").json["limits"]
    assert house("limits", "remove", left["id"]).code == 0
    assert house("limits", "list", "--json").json == {"limits": []}
    assert house("limits", "remove", left["id"]).code == 3


def test_a_list_can_be_of_one_only(house: Terminal) -> None:
    house("limits", "set", "--key", "ci", "--concurrency", "8")
    house("limits", "set", "--team", "search", "--concurrency", "16")
    found = house("limits", "list", "--team", "search", "--json").json["limits"]
    assert [one["owner"] for one in found] == ["team 'search'"]


def test_what_binds_a_key_is_shown_with_it(house: Terminal) -> None:
    house("limits", "set", "--key", "ci", "--concurrency", "8")
    house("budgets", "set", "--team", "search", "--usd", "50", "--per", "month", "--zone", "Europe/Berlin")
    house("limits", "set", "--org", "default", "--requests-per-day", "10")
    house("keys", "rotate", "ci")  # its limits go with it
    lines = house("keys", "show", "ci").out.splitlines()
    assert [line.split("by   ")[1] for line in lines if line.startswith("bound")] == [
        "key 'ci': 8 requests at once",
        "org 'default': 10 requests per day",
        "team 'search': $50.00 per month of Europe/Berlin",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "limits set --concurrency 1",
            "say whom it binds with one of --key, --user, --project, --team, --org; none of",
        ),
        ("limits set --key ci --team search --concurrency 1", "2 of them given"),
        ("limits set --key ci", "no limit is named"),
        ("limits set --key ci --concurrency 0", "'0' is no limit; write a number from 1, or `none` to lift it"),
        ("limits set --key ci --concurrency x", "'x' is no limit"),
        ("budgets set --key ci --usd 0.0000001 --per day", "'0.0000001' has more than 6 decimals"),
        ("budgets set --key ci --usd 5 --per year", "'year' is not one of 'hour', 'day', 'week', 'month', 'total'"),
        ("budgets set --key ci --usd 5 --per day --zone Mars", "time zone 'Mars' is not known here"),
    ],
)
def test_wrong_usage_changes_nothing(house: Terminal, words: str, message: str) -> None:
    outcome = house.type(words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert house("limits", "list", "--json").json["limits"] == house("budgets", "list", "--json").json["budgets"] == []


def test_a_budget_tells_what_is_spent_of_it(house: Terminal) -> None:
    assert house("budgets", "set", "--team", "search", "--usd", "1", "--per", "total") == (
        0,
        "",
        "team 'search': $1.00 in total\n",
    )
    team = house("teams", "list", "--json").json["teams"][0]["id"]
    fill(house.home, [attempt(team_id=team, cost_micro_usd=250_001), attempt(cost_micro_usd=5)])

    [told] = house("budgets", "list", "--json").json["budgets"]
    assert (told["owner"], told["amount"], told["spent"], told["anew"]) == ("team 'search'", 1_000_000, 250_001, None)
    cells = house("budgets", "list").out.splitlines()[1].split("   ")
    assert [cell.strip() for cell in cells if cell.strip()][:-1] == [
        "team 'search'", "$1.00 in total", "all", "$0.250001", "$0.749999", "never",
    ]  # fmt: skip


def test_budgets_of_several_times_stand_side_by_side(house: Terminal) -> None:
    house.type("budgets set --team search --usd 50 --per month")
    house.type("budgets set --team search --usd 40 --per month --soft")
    house.type("budgets set --team search --usd 5 --per day --rolling")
    house.type("budgets set --team search --usd 60 --per month")
    found = house("budgets", "list", "--json").json["budgets"]
    assert [(one["amount"], one["per"], one["hard"], one["rolling"]) for one in found] == [
        (60_000_000, "month", True, False),
        (40_000_000, "month", False, False),
        (5_000_000, "day", True, True),
    ]
    house("budgets", "remove", *(one["id"] for one in found[:2]))
    assert len(house("budgets", "list", "--json").json["budgets"]) == 1


def test_a_window_is_that_of_the_calendar_or_the_last_hours() -> None:
    now_s = 1_796_040_000.0  # 2026-11-30 12:00 UTC
    month = Budget(id="", subject="key", subject_id="", amount=1, per="month", zone="Europe/Berlin")
    rolling = Budget(id="", subject="key", subject_id="", amount=1, per="day", rolling=True)
    assert window(month, now_s) == (1_793_487_600.0, 1_796_079_600.0)  # from and until midnight in Berlin, 23:00 UTC
    assert window(rolling, now_s) == (now_s - 86_400, float("inf"))
