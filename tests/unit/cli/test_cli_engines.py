"""`drivetrain engines`: what hinders an engine is told, and one can be taken out of service and put back."""

from typing import Any

import pytest

from drivetrain.store import Store, drains
from tests.unit.cli.kit import Play, Terminal

CONFIG = """
engines:
  box: {kind: openai, url: "http://10.0.0.7:1"}
  gpu: {kind: vllm, discover: {dns: "gpu.local:8000"}}
"""


@pytest.fixture(autouse=True)
def home(drivetrain: Terminal) -> None:
    drivetrain.home.mkdir(exist_ok=True)
    (drivetrain.home / "drivetrain.yaml").write_text(CONFIG)


def engine(name: str, **more: Any) -> dict[str, Any]:
    health = {"live": True, "ready": True, "awake": True, "message": "", **more.pop("health", {})}
    usual = {"kind": "openai", "url": "http://a", "loaded": [], "outstanding": 0, "drained": False, "breaker": "closed"}
    return {"name": name, "family": name.partition("@")[0], "health": health, **usual, **more}


def out(drivetrain: Terminal) -> list[str]:
    store = Store.open("sqlite:///state/drivetrain.db", drivetrain.home)
    try:
        with store.reading() as connection:
            return sorted(drains.drained(connection))
    finally:
        store.close()


def test_what_hinders_an_engine_is_told(drivetrain: Terminal, play: Play) -> None:
    data = [
        engine("a"),
        engine("b", breaker="trial"),
        engine("c", drained=True, outstanding=2, breaker="open"),
        engine("d", drained=True, health={"running": 3, "waiting": 1}),
        engine("e", health={"ready": False, "message": "it sleeps"}),
        engine("f", breaker="open", health={"live": False, "ready": False, "message": "connection refused"}),
    ]
    play({"GET /v1/engines": (200, {"data": data})})
    told = [line.split("http://a")[1].strip(" -") for line in drivetrain("engines").out.splitlines()[1:]]
    assert told == [
        "ready",
        "set aside after failures",
        "drained, 2 at work",
        "drained, 4 at work",
        "live: it sleeps",
        "down: connection refused",
    ]


def test_an_engine_or_an_instance_is_taken_out_and_put_back_whether_a_server_runs_or_not(drivetrain: Terminal) -> None:
    for name in ("box", "gpu", "gpu@10.0.0.5:8000"):
        assert drivetrain("engines", "drain", name) == (0, "", "")
    assert out(drivetrain) == ["box", "gpu", "gpu@10.0.0.5:8000"]
    assert drivetrain("engines", "resume", "gpu", "--json").json == {"name": "gpu", "drained": False}
    assert out(drivetrain) == ["box", "gpu@10.0.0.5:8000"]
    assert "drain" in drivetrain("audit", "--kind", "engine").out


@pytest.mark.parametrize("name", ["bix", "box@10.0.0.5:8000", "@a"])
def test_a_name_that_is_none_is_refused(drivetrain: Terminal, name: str) -> None:
    outcome = drivetrain("engines", "drain", name)
    assert (outcome.code, outcome.err) == (
        3,
        f"Error: there is no engine {name!r}; there are box, gpu, local, and instances NAME@HOST:PORT of some\n",
    )


def test_wait_comes_back_when_every_instance_knows_of_it_and_is_idle(drivetrain: Terminal, play: Play) -> None:
    steps = [
        [engine("gpu@a"), engine("gpu@b", drained=True)],
        [engine("gpu@a", drained=True, outstanding=1), engine("gpu@b", drained=True)],
        [engine("gpu@a", drained=True, health={"running": 1}), engine("gpu@b", drained=True)],
        [engine("gpu@a", drained=True), engine("gpu@b", drained=True), engine("box", outstanding=9)],
    ]
    server = play({"GET /v1/engines": lambda _: (200, {"data": steps.pop(0)})})
    assert drivetrain("engines", "drain", "gpu", "--wait") == (0, "", "")
    assert steps == []
    assert len(server.asked) == 4


def test_wait_does_not_wait_for_ever(drivetrain: Terminal, play: Play) -> None:
    play({"GET /v1/engines": (200, {"data": [engine("box", drained=True, outstanding=1)]})})
    outcome = drivetrain("engines", "drain", "box", "--wait", "--timeout", "1s")
    assert (outcome.code, outcome.err) == (1, "Error: after 1 s there is still work at box\n")
