"""The figures as a page, and its charts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.figures import processor, today
from sim import chart

COLUMNS = (
    ("first token p50 s", "{:.2f}"),
    ("first token p95 s", "{:.1f}"),
    ("first token p99 s", "{:.1f}"),
    ("whole answer p50 s", "{:.1f}"),
    ("whole answer p95 s", "{:.0f}"),
    ("$ per 1,000 requests", "{:.2f}"),
    ("cached %", "{:.1f}"),
    ("own region %", "{:.0f}"),
)
MORE = (
    ("fairness in the rush", "{:.3f}"),
    ("modest refused in the rush %", "{:.2f}"),
    ("urgent first token p95 in the rush s", "{:.1f}"),
    ("imbalance", "{:.2f}"),
    ("refused %", "{:.2f}"),
    ("failed %", "{:.2f}"),
    ("broken off %", "{:.2f}"),
    ("retries %", "{:.2f}"),
    ("decisions a second", "{:,.0f}"),
)
CHARTS = {
    "latency": "first token p95 s",
    "fairness": "fairness in the rush",
    "modest": "modest refused in the rush %",
    "cost": "$ per 1,000 requests",
}
OVER_THE_DAY = "sim-day.svg"
LEGEND = """
First token and whole answer are counted from when the request came to the gateway, the line at its door and the way to
another region (150 ms) included. The rush is the hour in which one tenant sends {rush} requests; the modest are all
others of its class. Fairness: Jain's index over the tenants of that class, of what each got over its max-min share of
what all got, weighted by that share. Urgent: of class interactive. Imbalance: how busy the slots of the busiest one
were over the mean of all. Refused: the line at the door was full, or the wait over a minute. Failed: no engine after
three attempts. Broken off: the engine died or hung within the answer. Decisions a second: of processor time, on one
core. Random, round robin, least outstanding and two choices respect weights and probes; the others are the router's.
"""


def write(folder: Path, about: Mapping[str, str], found: Mapping[str, Mapping[str, object]]) -> None:
    """`found`: by strategy, its `figures` and, `by part` of the day, first tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {name: _numbers(each["figures"]) for name, each in found.items()}
    for name, what in CHARTS.items():
        values = {strategy: each[what] for strategy, each in figures.items()}
        chart.bars(folder / f"sim-{name}.svg", what, values)
    parts = {name: list(_numbers(each["by part"]).values()) for name, each in found.items()}
    title = "first token p95 s, through the day"
    chart.lines(folder / OVER_THE_DAY, title, "24 parts of the day", parts)
    (folder / "sim.md").write_text(page(about, figures))


def _numbers(values: object) -> Mapping[str, float]:
    if not isinstance(values, Mapping):
        raise TypeError("figures are by name")
    return values


def page(about: Mapping[str, str], figures: Mapping[str, Mapping[str, float]]) -> str:
    told = "; ".join(f"{name} {value}" for name, value in about.items() if name != "rush")
    return "\n\n".join(
        (
            f"# Strategies of routing, simulated, {today()}",
            f"Written by `bench/simulator.py` on {processor()}. {told}.",
            table(COLUMNS, figures),
            table(MORE, figures),
            LEGEND.format(rush=about["rush"]).strip(),
            f"![First tokens through the day]({OVER_THE_DAY})",
            *(f"![{what}](sim-{name}.svg)" for name, what in CHARTS.items()),
            "",
        )
    )


def table(columns: tuple[tuple[str, str], ...], figures: Mapping[str, Mapping[str, float]]) -> str:
    head = f"| strategy | {' | '.join(name for name, _ in columns)} |"
    rule = "|".join(("", " --- ", *(" --: " for _ in columns), ""))
    rows = [
        f"| {strategy} | {' | '.join(form.format(each[name]) for name, form in columns)} |"
        for strategy, each in figures.items()
    ]
    return "\n".join((head, rule, *rows))
