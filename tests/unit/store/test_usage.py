"""Questions to the ledger: which rows, what they come to, and what a budget has spent. The same on both databases."""

from pathlib import Path

import msgspec
import pytest

from drivetrain.governance import Attempt, Rule
from drivetrain.store import DIMENSIONS, AttemptQuery, Store, UsageQuery
from tests.unit.store.attempts import attempt, kept

pytestmark = pytest.mark.anyio

DAY_S = 86400.0
NOON_S = 20_000 * DAY_S + DAY_S / 2  # 2024-10-04 in UTC
ADA = {"key_id": "KA", "user_id": "UA", "project_id": "PA", "team_id": "TA", "org_id": "O"}
BOB = {"key_id": "KB", "user_id": "UB", "project_id": "PB", "team_id": "TB", "org_id": "O"}
ROWS = [
    attempt(1, started_s=NOON_S, prompt_tokens=10, cached_tokens=4, completion_tokens=5, cost_micro_usd=100, **ADA),
    attempt(2, started_s=NOON_S, final=False, outcome="absorbed", engine="remote", status=502, **ADA),
    attempt(3, request_id="req_2", position=2, started_s=NOON_S + 1, prompt_tokens=7, cost_micro_usd=20,
            compute_micro_usd=3, usage_estimated=True, **ADA),
    attempt(4, started_s=NOON_S + DAY_S / 2, model="other", outcome="error", status=502, reasoning_tokens=2,
            completion_tokens=3, cache_write_tokens=9, cost_micro_usd=3, **BOB),
    attempt(5, started_s=NOON_S + DAY_S, outcome="cancelled", status=499, cost_micro_usd=4, **BOB),
    attempt(6, started_s=NOON_S + DAY_S, engine="", outcome="rejected", status=429, **BOB),
]  # fmt: skip
NOTHING = {
    "requests": 0, "rejected": 0, "errors": 0, "cancelled": 0, "attempts": 0, "estimated": 0, "prompt_tokens": 0,
    "cached_tokens": 0, "cache_write_tokens": 0, "completion_tokens": 0, "reasoning_tokens": 0, "cost_micro_usd": 0,
    "compute_micro_usd": 0,
}  # fmt: skip


@pytest.fixture
async def filled(store: Store, tmp_path: Path) -> Store:
    await kept(store, tmp_path / "state", ROWS)
    return store


def numbers(rows: list[Attempt]) -> list[int]:
    return [int(row.id[-4:]) for row in rows]


def usage(store: Store, query: UsageQuery) -> list[dict[str, object]]:
    """Rows as JSON tells them, without what is 0."""
    rows: list[dict[str, object]] = msgspec.to_builtins(store.usage(query))
    return [{name: value for name, value in row.items() if value != 0} for row in rows]


async def test_a_query_gives_the_newest_rows_first_and_only_what_it_asks_for(filled: Store) -> None:
    assert filled.attempts(AttemptQuery()) == ROWS[::-1]
    assert numbers(filled.attempts(AttemptQuery(limit=2))) == [6, 5]
    assert numbers(filled.attempts(AttemptQuery(request_id="req_2"))) == [3, 2]
    assert numbers(filled.attempts(AttemptQuery(model="other"))) == [4]
    assert numbers(filled.attempts(AttemptQuery(engine="local", outcome="ok"))) == [3, 1]
    assert numbers(filled.attempts(AttemptQuery(key="KB", since_s=NOON_S + DAY_S))) == [6, 5]
    assert numbers(filled.attempts(AttemptQuery(since_s=NOON_S + 1, until_s=NOON_S + DAY_S))) == [4, 3]
    for whose in (AttemptQuery(user="UB"), AttemptQuery(project="PB"), AttemptQuery(team="TB")):
        assert numbers(filled.attempts(whose)) == [6, 5, 4]
    assert len(filled.attempts(AttemptQuery(org="O"))) == 6


async def test_rows_are_told_in_the_order_of_their_numbers_after_one_of_them(filled: Store) -> None:
    told = filled.after(0, 4)
    assert [row for _, row in told] == ROWS[:4]
    assert [row for _, row in filled.after(told[-1][0], 100)] == ROWS[4:]
    assert filled.after(told[-1][0] + 2, 100) == []


def test_no_rows_come_to_nothing(store: Store) -> None:
    assert msgspec.to_builtins(store.usage(UsageQuery())) == [NOTHING]
    assert store.usage(UsageQuery(group_by=("key",))) == []


async def test_a_request_counts_once_however_many_attempts_it_took(filled: Store) -> None:
    assert usage(filled, UsageQuery()) == [
        {
            "requests": 4,
            "rejected": 1,
            "errors": 1,
            "cancelled": 1,
            "attempts": 5,
            "estimated": 1,
            "prompt_tokens": 17,
            "cached_tokens": 4,
            "cache_write_tokens": 9,
            "completion_tokens": 8,
            "reasoning_tokens": 2,
            "cost_micro_usd": 127,
            "compute_micro_usd": 3,
        }
    ]


async def test_groups_are_told_in_order_with_what_they_are_grouped_by(filled: Store) -> None:
    def shares(*group_by: str) -> list[tuple[object, ...]]:
        query = UsageQuery(group_by=msgspec.convert(group_by, type=UsageQuery.__annotations__["group_by"]))
        rows = [msgspec.to_builtins(row) for row in filled.usage(query)]
        assert all(set(row) == {*group_by, *NOTHING} for row in rows)
        return [(*(row[name] for name in group_by), row["requests"], row["cost_micro_usd"]) for row in rows]

    assert shares("key") == [("KA", 2, 120), ("KB", 2, 7)]
    assert shares("model") == [("other", 1, 3), ("smollm2:135m", 3, 124)]
    assert shares("day") == [("2024-10-04", 2, 120), ("2024-10-05", 2, 7)]
    assert shares("key", "day") == [("KA", "2024-10-04", 2, 120), ("KB", "2024-10-05", 2, 7)]
    assert shares("outcome") == [
        ("absorbed", 0, 0), ("cancelled", 1, 4), ("error", 1, 3), ("ok", 2, 120), ("rejected", 0, 0)
    ]  # fmt: skip
    assert shares("engine") == [("", 0, 0), ("local", 4, 127), ("remote", 0, 0)]
    assert [row[:5] for row in shares("user", "project", "team", "org")] == [
        ("UA", "PA", "TA", "O", 2), ("UB", "PB", "TB", "O", 2)
    ]  # fmt: skip
    assert len(shares(*DIMENSIONS)) == 5


async def test_usage_can_be_asked_for_a_part(filled: Store) -> None:
    assert usage(filled, UsageQuery(key="KA", since_s=NOON_S + 1)) == [
        {"requests": 1, "attempts": 1, "estimated": 1, "prompt_tokens": 7, "cost_micro_usd": 20, "compute_micro_usd": 3}
    ]
    assert usage(filled, UsageQuery(team="TB", until_s=NOON_S + DAY_S, group_by=("model",))) == [
        {"model": "other", "requests": 1, "errors": 1, "attempts": 1, "cache_write_tokens": 9, "completion_tokens": 3,
         "reasoning_tokens": 2, "cost_micro_usd": 3}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rule_id", "model", "spent"),
    [
        ("key:KA:B1", None, 120),
        ("key:KB:B1", None, 7),
        ("key:KB:B1", "other", 3),
        ("user:UA:B1", None, 120),
        ("project:PB:B1", None, 7),
        ("team:TB:B1", "smollm2:135m", 4),
        ("org:O:B1", None, 127),
        ("org:else:B1", None, 0),
        ("policy:default:smollm2:135m:money:month", None, 124),
        ("policy:default:other:money:month", "other", 3),
    ],
)
async def test_a_budget_has_spent_what_its_rows_cost(
    filled: Store, rule_id: str, model: str | None, spent: int
) -> None:
    rule = Rule(id=rule_id, owner="", resource="money", amount=1, per="month", model=model)
    assert filled.spent(rule, 0.0, NOON_S + 2 * DAY_S) == spent


async def test_a_budget_has_spent_only_what_began_in_its_time(filled: Store) -> None:
    rule = Rule(id="org:O:B1", owner="", resource="money", amount=1, per="day")
    assert filled.spent(rule, NOON_S + 1, NOON_S + DAY_S) == 23
    assert filled.spent(rule, NOON_S + DAY_S, NOON_S + 2 * DAY_S) == 4
