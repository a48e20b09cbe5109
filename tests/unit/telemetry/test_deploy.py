"""The dashboard and the alert rules in deploy/ ask for metrics that exist, by labels that they have."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from drivetrain.telemetry.exposition import Collected

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "drivetrain.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
CASES = DEPLOY / "prometheus" / "alerts.test.yaml"

# Labels whose values come from closed or bounded sets; `le` is the bound of a histogram's bucket.
BOUNDED = {
    "model",
    "engine",
    "dialect",
    "outcome",
    "status_class",
    "kind",
    "resource",
    "status",
    "sink",
    "version",
    "le",
}
SCRAPED = {"job", "instance"}  # what Prometheus itself adds
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

SELECTOR = re.compile(r"\b(drivetrain_\w+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"\s*')
GROUPED = re.compile(r"\b(?:by|without|ignoring|on)\s*\(([^)]*)\)")


def exposed() -> Mapping[str, set[str]]:
    """Every name that a scrape has, with its labels."""
    known = {"up": set[str]()}
    for family in Collected([], "").collect():
        labels = set(family._labelnames)  # type: ignore[attr-defined] # said nowhere else
        for suffix in SUFFIXES[family.type]:
            known[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return known


EXPOSED = exposed()


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Where each question to Prometheus stands, and the question."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


QUERIES = list(queries())


@pytest.mark.parametrize(("place", "query"), QUERIES)
def test_a_query_asks_for_metrics_and_labels_that_exist(place: str, query: str) -> None:
    selectors = SELECTOR.findall(query)
    assert selectors, "asks for nothing of ours"
    for name, matchers in selectors:
        asked = set(MATCHER.findall(matchers))
        assert MATCHER.sub("", matchers).strip(", ") == ""
        assert asked <= EXPOSED[name] | SCRAPED, name
    labels = {label.strip() for group in GROUPED.findall(query) for label in group.split(",")}
    assert labels <= set.union(*(EXPOSED[name] for name, _ in selectors)) | SCRAPED


@pytest.mark.parametrize(("place", "query"), QUERIES)
def test_a_query_is_well_formed(place: str, query: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', query)
    for opening, closing in ("()", "[]", "{}"):
        assert bare.count(opening) == bare.count(closing)
    for name in re.findall(r"(?:rate|increase)\((\w+)", bare):  # of what only rises
        assert name.endswith(("_total", "_bucket", "_sum", "_count")), name


def test_no_metric_has_a_label_without_a_bound() -> None:
    assert set().union(*EXPOSED.values()) <= BOUNDED


def test_an_alert_tells_what_happened_and_what_it_means() -> None:
    assert len(rules()) == len({rule["alert"] for rule in rules()})
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(rule["annotations"].values())


def test_an_alert_speaks_of_labels_that_its_query_keeps() -> None:
    for rule in rules():
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        kept = {label.strip() for group in GROUPED.findall(rule["expr"]) for label in group.split(",")}
        whole = not re.search(r"\b(sum|min|max|histogram_quantile)\b", rule["expr"])
        labels = set.union(*(EXPOSED[name] for name, _ in SELECTOR.findall(rule["expr"])))
        assert named <= (labels | SCRAPED if whole else kept), rule["alert"]


def test_every_figure_that_calls_for_a_hand_has_an_alert() -> None:
    watched = " ".join(rule["expr"] for rule in rules())
    for name in (
        "engine_up",
        "store_away",
        "shared_state_away",
        "ledger_backlog_rows",
        "ledger_lost_rows",
        "quota_refusals_total",
        "keys_refused_total",
        "sink_lag_seconds",
        "sink_dead_letters_total",
        "cost_micro_usd_total",
    ):
        assert f"drivetrain_{name}" in watched


def test_the_rules_fire_when_they_should() -> None:
    """Prometheus' own tool decides. Every rule has its case, whether the tool is here or not."""
    tested = CASES.read_text()
    assert {rule["alert"] for rule in rules() if rule["alert"] not in tested} == set()
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, which comes with Prometheus, is not on the path")
    done = subprocess.run([promtool, "test", "rules", str(CASES)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_the_prometheus_that_is_chosen() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "model", "engine"]
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
