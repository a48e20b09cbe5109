"""What rows come to is what adding them up by hand gives, whatever they are and whatever is asked."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from drivetrain.governance import Attempt, Rule
from drivetrain.store import DIMENSIONS, Store, UsageQuery, tables
from tests.unit.store.attempts import attempt

DAY_S = 86400
SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_micro_usd",
    "compute_micro_usd",
)
FIELDS = {"key": "key_id", "user": "user_id", "project": "project_id", "team": "team_id", "org": "org_id"}

names = st.sampled_from(["", "a", "b"])
instants = st.sampled_from([0.0, 1800.0, 3600.0, DAY_S - 0.001, float(DAY_S), DAY_S + 0.5, 20_000.75 * DAY_S])
rows = st.lists(
    st.fixed_dictionaries(
        dict.fromkeys((*FIELDS.values(), "model", "engine"), names)
        | {name: st.integers(0, 2**40) for name in SUMS}
        | {
            "started_s": instants,
            "outcome": st.sampled_from(["ok", "error", "cancelled", "absorbed", "rejected"]),
            "final": st.booleans(),
            "usage_estimated": st.booleans(),
        }
    ),
    max_size=12,
).map(lambda made: [attempt(number, **fields) for number, fields in enumerate(made)])
queries = st.builds(
    UsageQuery,
    group_by=st.lists(st.sampled_from(DIMENSIONS), unique=True, max_size=4).map(tuple),
    key=st.none() | names,
    team=st.none() | names,
    model=st.none() | names,
    since_s=st.none() | instants,
    until_s=st.none() | instants,
)
kindly = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fill(store: Store, filled: list[Attempt]) -> None:
    with store.writing() as connection:
        connection.execute(delete(tables.attempts))
        connection.execute(delete(tables.spending))
    way_in = store.rows()
    for some in (filled[:7], filled[5:]):  # two come twice
        assert list(way_in.insert(some)) == []
    way_in.close()


def is_asked_for(row: Attempt, query: UsageQuery) -> bool:
    exact = ((query.key, row.key_id), (query.team, row.team_id), (query.model, row.model))
    since_s = query.since_s if query.since_s is not None else row.started_s
    until_s = query.until_s if query.until_s is not None else row.started_s + 1
    return since_s <= row.started_s < until_s and all(wanted in (None, has) for wanted, has in exact)


def dimension(row: Attempt, name: str) -> str:
    if name == "day":
        return datetime.fromtimestamp(row.started_s, UTC).strftime("%Y-%m-%d")
    return str(getattr(row, FIELDS.get(name, name)))


def added_up(group: Iterable[Attempt]) -> dict[str, int]:
    group = list(group)
    requests = [row for row in group if row.final and row.outcome != "rejected"]
    return {
        "requests": len(requests),
        "rejected": sum(row.outcome == "rejected" for row in group),
        "errors": sum(row.outcome == "error" for row in requests),
        "cancelled": sum(row.outcome == "cancelled" for row in requests),
        "attempts": sum(row.engine != "" for row in group),
        "estimated": sum(row.usage_estimated for row in group),
        **{name: sum(getattr(row, name) for row in group) for name in SUMS},
    }


@kindly
@given(filled=rows, query=queries)
def test_usage_is_what_adding_up_gives(store: Store, filled: list[Attempt], query: UsageQuery) -> None:
    fill(store, filled)
    groups: dict[tuple[str, ...], list[Attempt]] = defaultdict(list)
    if not query.group_by:
        groups[()] = []
    for row in filled:
        if is_asked_for(row, query):
            groups[tuple(dimension(row, name) for name in query.group_by)].append(row)
    expected: list[dict[str, Any]] = [
        dict(zip(query.group_by, key, strict=True)) | added_up(groups[key]) for key in sorted(groups)
    ]
    assert msgspec.to_builtins(store.usage(query)) == expected


@kindly
@given(
    subject=st.sampled_from(sorted(FIELDS)),
    filled=rows,
    pair=st.tuples(instants, instants),
    model=st.none() | names,
)
def test_what_was_spent_is_what_usage_costs(
    store: Store, subject: str, filled: list[Attempt], pair: tuple[float, float], model: str | None
) -> None:
    fill(store, filled)
    from_s, until_s = sorted(pair)
    rule = Rule(id=f"{subject}:a:B1", owner="", resource="money", amount=1, per="month", model=model)
    whose: dict[str, Any] = {subject: "a", "model": model}
    (row,) = store.usage(UsageQuery(since_s=from_s, until_s=until_s, **whose))
    assert store.spent(rule, from_s, until_s) == row.cost_micro_usd


@kindly
@given(filled=rows, limit=st.integers(1, 5))
def test_reading_on_gives_every_row_once(store: Store, filled: list[Attempt], limit: int) -> None:
    fill(store, filled)
    told: list[tuple[int, Attempt]] = []
    while page := store.after(told[-1][0] if told else 0, limit):
        told.extend(page)
    assert [row for _, row in told] == filled
    assert all(one < other for (one, _), (other, _) in itertools.pairwise(told))
