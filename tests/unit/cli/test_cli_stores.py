"""The commands on governance do the same on a store of either kind, which the configuration of the home names."""

import json

import pytest

from drivetrain.store import Store
from tests.unit.cli.kit import Terminal
from tests.unit.cli.rows import attempt


@pytest.fixture
def home(drivetrain: Terminal, store_url: str) -> Terminal:
    drivetrain.home.mkdir()
    (drivetrain.home / "drivetrain.yaml").write_text(f"store: {{url: {json.dumps(store_url)}}}\n")
    return drivetrain


def test_from_a_key_to_what_it_cost(home: Terminal, store: Store) -> None:
    home.type("teams create search")
    key = home.type("keys create --name ci --team search --models chat --json").json
    home.type("limits set --key ci --requests-per-minute 60")
    home.type("budgets set --team search --usd 1 --per total")
    home.type("prices set chat --input 0.15 --output 0.60")
    team = home.type("teams list --json").json["teams"][0]["id"]
    whose = {"key_id": key["id"], "project_id": key["project"], "team_id": team}
    rows = store.rows()
    rows.insert([attempt(request_id="req_7", cost_micro_usd=250_001, prompt_tokens=3, **whose)])
    rows.close()

    used = home.type("usage --by key,team,day --json").json
    assert used["requests"] == 1
    assert {name: used["rows"][0][name] for name in ("key_name", "team_name", "day", "cost_micro_usd")} == {
        "key_name": "ci",
        "team_name": "search",
        "day": "2026-11-30",
        "cost_micro_usd": 250_001,
    }
    assert home.type("budgets list --json").json["budgets"][0]["spent"] == 250_001
    assert home.type("trace req_7").out.splitlines()[-1].split() == ["0", "ms", "settled", "$0.250001"]


def test_a_key_is_rotated_and_revoked_and_the_audit_is_whole(home: Terminal) -> None:
    home.type("keys create --name ci")
    home.type("keys rotate ci --grace 1h")
    home.type("keys revoke ci")
    assert home.type("keys list --json").json == {"keys": []}
    verdict = home.type("audit verify --json").json
    assert (verdict["whole"], verdict["lines"]) == (True, 8)
    assert [one["action"] for one in home.type("audit --kind key --json").json["changes"]] == [
        "create", "rotate", "rotate", "revoke", "revoke",
    ]  # fmt: skip


def test_an_earlier_configuration_comes_back(home: Terminal, store: Store) -> None:
    file = home.home / "drivetrain.yaml"
    first = file.read_text()
    store.keep_config(first, actor="start", at_s=0.0)
    file.write_text(first + "server: {port: 9090}\n")
    assert home.type("config rollback 1").code == 0
    assert file.read_text() == first
    assert home.type("config revisions --json").json["present"] == 3


def test_a_store_that_is_away_is_one_line(drivetrain: Terminal) -> None:
    drivetrain.home.mkdir()
    (drivetrain.home / "drivetrain.yaml").write_text('store: {url: "postgresql://a:secret@127.0.0.1:1/none"}\n')
    outcome = drivetrain("usage")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("Error: cannot open the store postgresql://a:***@127.0.0.1:1/none: ")
    assert len(outcome.err.splitlines()) == 1
