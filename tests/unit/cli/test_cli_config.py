"""`drivetrain config` needs no server: it tells what holds, where it comes from, and what is wrong."""

import json
from pathlib import Path

import pytest
import yaml

from drivetrain import config, engines
from tests.unit.cli.kit import Terminal


@pytest.fixture
def file(drivetrain: Terminal) -> Path:
    drivetrain.home.mkdir()
    path = drivetrain.home / "drivetrain.yaml"
    path.write_text("server: {port: 8080}\nengines: {e: {kind: openai, url: 'http://e', api_key: k-1}}\n")
    return path


def test_check_tells_that_a_file_is_valid_and_what_looks_odd(
    drivetrain: Terminal, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "options_of", lambda kind: None)  # as of a kind that does not tell its options
    file.write_text(file.read_text().replace("k-1", "k-1, wieght: 2"))
    odd = f"{file}:2:60: engines.e.wieght: is an option of the engine's kind; did you mean 'weight'?"
    assert drivetrain("config", "check") == (0, f"{file}: valid\n", f"Warning: {odd}\n")
    assert drivetrain("config", "check", "--json").json == {"valid": True, "file": str(file), "warnings": [odd]}


def test_check_lists_every_problem(drivetrain: Terminal, file: Path) -> None:
    file.write_text("server: {port: x}\nsever: {}\n")
    assert drivetrain("config", "check") == (
        2,
        "",
        "Error: 2 problems\n"
        f"  {file}:1:16: server.port: expected an integer from 0 to 65535, got 'x'\n"
        f"  {file}:2:1: sever: is not known here; did you mean 'server'?\n",
    )


def test_check_tells_problems_to_programs_as_well(drivetrain: Terminal, file: Path) -> None:
    file.write_text("server: {port: x}\n")
    outcome = drivetrain("config", "check", "--json")
    wrong = "expected an integer from 0 to 65535, got 'x'"
    assert outcome.json == {
        "valid": False,
        "file": str(file),
        "problems": [{"source": str(file), "line": 1, "column": 16, "path": "server.port", "message": wrong}],
    }
    assert (outcome.code, outcome.err) == (2, f"Error: {file}:1:16: server.port: {wrong}\n")


def test_check_knows_the_options_of_each_kind(drivetrain: Terminal, file: Path) -> None:
    file.write_text(
        "engines:\n"
        "  e: {kind: openai, url: 'http://e', wieght: 2, colour: red, headers: {a: 1}, idle_s: soon}\n"
        "  local: {kind: llamacpp, options: {memory_bytes: 4GB}}\n"
    )
    known = "ca_file, first_byte_s, headers, idle_s, keep_idle_s, priorities, sleep_idle_s, sleep_level"
    assert drivetrain("config", "check") == (
        2,
        "",
        "Error: 5 problems\n"
        f"  {file}:2:46: engines.e.options.wieght: is not known to this kind of engine; did you mean 'weight'?\n"
        f"  {file}:2:57: engines.e.options.colour: is not known to this kind of engine; known: {known}\n"
        f"  {file}:2:62: engines.e.options.headers: Expected `str`, got `int` - at `$[...]`: a mapping\n"
        f"  {file}:2:87: engines.e.options.idle_s: Expected `float`, got `str`: 'soon'\n"
        f"  {file}:3:51: engines.local.options.memory_bytes: Expected `int | null`, got `str`: '4GB'\n",
    )


def test_check_knows_the_kinds_that_are_installed(drivetrain: Terminal, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("engines: {e: {kind: opnai}}")
    outcome = drivetrain("config", "check", str(other))
    assert outcome.code == 2
    assert "no installed package offers engines of kind 'opnai'; did you mean 'openai'?" in outcome.err


def test_without_a_file_the_defaults_hold(drivetrain: Terminal) -> None:
    assert drivetrain("config", "check").out == f"no drivetrain.yaml in {drivetrain.home}: the defaults hold\n"


def test_show_is_yaml_without_secrets(drivetrain: Terminal, file: Path) -> None:
    shown = yaml.safe_load(drivetrain("config", "show").out)
    assert (shown["server"]["port"], shown["engines"]["e"]["api_key"]) == (8080, "***")
    assert drivetrain("config", "show", "--json").json == shown


def test_show_origin_names_the_place_of_each_value(
    drivetrain: Terminal, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVETRAIN_SERVER__HOST", "127.0.0.2")
    lines = [line.split() for line in drivetrain("config", "show", "--origin").out.splitlines()]

    assert lines[0] == ["SETTING", "VALUE", "FROM"]
    assert ["server.host", "127.0.0.2", "$DRIVETRAIN_SERVER__HOST"] in lines
    assert ["server.port", "8080", f"{file}:1:16"] in lines
    assert ["server.workers", "1", "default"] in lines
    assert ["engines.e.api_key", "***", f"{file}:2:55"] in lines
    told = drivetrain("config", "show", "--origin", "--json").json
    assert config.flat(told["config"]).keys() == told["origins"].keys()


def test_schema_is_the_schema(drivetrain: Terminal) -> None:
    assert drivetrain("config", "schema").json == json.loads(json.dumps(config.json_schema()))
