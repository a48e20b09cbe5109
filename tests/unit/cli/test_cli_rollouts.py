"""`drivetrain rollouts`, `drivetrain experiments` and `drivetrain prompts`, on the store of a home."""

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import pytest

from tests.fakes.weights import tiny_gguf
from tests.unit.cli.kit import Terminal
from tests.unit.cli.standin import StandIn

CONFIG = """
engines:
  old: {kind: openai, url: "http://127.0.0.1:1"}
  new: {kind: openai, url: "http://127.0.0.1:2"}
models:
  chat: {targets: [{engine: old, model: m}]}
"""


@pytest.fixture
def house(drivetrain: Terminal) -> Terminal:
    drivetrain.home.mkdir()
    (drivetrain.home / "drivetrain.yaml").write_text(CONFIG)
    return drivetrain


def test_a_rollout_from_its_beginning_to_its_end(house: Terminal) -> None:
    words = (
        "rollouts create Chat:latest --to new/org/name --stages shadow,10,100 --least 1m --requests 5 --compare exact"
    )
    one = house.type(f"{words} --guard cost=2 --guard errors=none --parameter temperature=0.5 --json").json
    assert one["model"] == "chat"
    assert one["arms"][1]["targets"][0]["model"] == "org/name"
    assert one["arms"][1]["parameters"] == {"temperature": 0.5}
    assert [(stage["percent"], stage["shadow"], stage["least_s"]) for stage in one["stages"]] == [
        (0.0, True, 60.0),
        (10.0, False, 60.0),
        (100.0, False, 60.0),
    ]
    assert (one["guards"]["cost"], one["guards"]["errors"], one["shadow"]["compare"]) == (2, None, "exact")
    told = house.type("rollouts advance chat --why 'it is good'")
    assert told == (0, "", f"rollout {one['id']} of chat: gone on, stage 2 of 3, 10 %\n")
    [line] = house("rollouts", "list").out.splitlines()[1:]
    assert [word.strip() for word in line.split("   ")][:3] == ["chat", "running", "2 of 3, 10 %"]
    assert "new/org/name, temperature=0.5" in line
    shown = house("rollouts", "show", "chat").out
    assert "stage 2 of 3, 10 %: hold, 0 of 5 requests answered at the new arm" in shown
    assert "cost: nothing seen (allowed: 2 times it)" in shown
    assert shown.splitlines()[-1].endswith("advance   running   2       it is good")
    assert house("rollouts", "rollback", one["id"]).err.endswith("rolled back, everybody is at the baseline\n")
    assert house("rollouts", "list", "--json").json == {"rollouts": []}
    assert [each["state"] for each in house("rollouts", "list", "--all", "--json").json["rollouts"]] == ["rolled_back"]
    assert house("rollouts", "remove", one["id"]).code == 0
    assert house("rollouts", "show", one["id"]).code == 3


def test_pause_and_resume(house: Terminal) -> None:
    house.type("rollouts create chat --to new/m")
    assert house("rollouts", "pause", "chat").code == 0
    assert house("rollouts", "advance", "chat").err.endswith("is paused; resume it, then advance it\n")
    assert house("rollouts", "resume", "chat").err.endswith("running again, stage 1 of 4, 1 %\n")


def test_a_rollout_may_be_written_in_a_file(house: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "rollout.yaml"
    path.write_text("arms: [{name: now}, {name: then, settings: {n_ctx: 8192}}]\nstages: [{percent: 100}]\n")
    one = house("rollouts", "create", "chat", "--file", str(path), "--json").json
    assert one["arms"][1] == {"name": "then", "settings": {"n_ctx": 8192}}
    told = house("rollouts", "create", "chat", "--file", str(path), "--stages", "50,100")
    assert (told.code, "--file says all of it" in told.err) == (2, True)


def test_the_model_of_the_command_counts_also_where_a_file_names_another(house: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "rollout.yaml"
    path.write_text("model: other\narms: [{name: now}, {name: then, settings: {n_ctx: 8192}}]\nshares: [1, 1]\n")
    assert house("experiments", "create", "Chat", "--file", str(path), "--json").json["model"] == "chat"


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("rollouts create chat", 2, "nothing is new: name it with --to"),
        ("rollouts create chat --to new", 2, "--to 'new': write ENGINE/MODEL"),
        ("rollouts create chat --to gone/m", 1, "engine 'gone' is not configured; there are local, new, old"),
        ("rollouts create chat --to new/m --stages 1,many", 2, "'many' is neither a percent nor `shadow`"),
        ("rollouts create chat --to new/m --stages 50", 1, "the last one has 50 percent"),
        ("rollouts create chat --to new/m --guard speed=1", 2, "there is no guard 'speed'; there are errors"),
        ("rollouts create chat --to new/m --guard errors=many", 2, "errors='many': a number, or none"),
        ("rollouts create chat --prompt brief@1", 1, "there is no prompt 'brief@1'"),
        ("rollouts show chat", 3, "there is no rollout 'chat'"),
        ("experiments create chat", 2, "an experiment needs an arm beside the baseline"),
        ("prompts show brief", 3, "there is no prompt 'brief'"),
    ],
)
def test_what_cannot_be_is_told(house: Terminal, words: str, code: int, problem: str) -> None:
    outcome = house.type(words)
    assert (outcome.code, outcome.out) == (code, "")
    assert problem in outcome.err


def test_prompts_have_versions_and_an_experiment_compares_them(house: Terminal) -> None:
    assert house("prompts", "add", "brief", piped="Be brief.\n").out == "brief@1\n"
    assert house("prompts", "add", "brief", piped="Be very  brief,\nplease.").out == "brief@2\n"
    assert house("prompts", "show", "brief@1").out == "Be brief.\n"
    assert house("prompts", "list").out.splitlines()[2].endswith("   Be very brief, please.")
    made = house.type("experiments create chat --prompt brief@1 --prompt brief@2 --shares 2,1,1 --json").json
    assert [(arm["name"], arm.get("prompt")) for arm in made["arms"]] == [
        ("baseline", None),
        ("brief-1", "brief@1"),
        ("brief-2", "brief@2"),
    ]
    assert made["shares"] == [2.0, 1.0, 1.0]
    assert "brief-2: 0 requests, 0 failed" in house("experiments", "report", "chat").out
    assert len(house("experiments", "list", "--json").json["experiments"]) == 1
    assert house("rollouts", "list", "--json").json == {"rollouts": []}
    assert house("experiments", "finish", "chat").err.endswith("finished, everybody is at the baseline\n")
    assert house("experiments", "remove", "chat").code == 0


def test_every_change_is_in_the_audit(house: Terminal) -> None:
    house("prompts", "add", "brief", piped="Be brief.")
    house.type("rollouts create chat --prompt brief@1")
    house("rollouts", "rollback", "chat", "--why", "no")
    changes = house("audit", "--json").json["changes"]
    assert [(change["kind"], change["action"]) for change in changes] == [
        ("prompt", "create"),
        ("rollout", "create"),
        ("rollout", "rollback"),
    ]


# --- beside engines that tell what they have --------------------------------------------------------------------------


class Lands(NamedTuple):
    drivetrain: Terminal
    box: StandIn
    gpu: StandIn

    def written(self, text: str) -> str:
        """A file's path."""
        path = self.drivetrain.home / "written.yaml"
        path.write_text(text)
        return str(path)


@pytest.fixture
def lands(drivetrain: Terminal, tmp_path: Path) -> Iterator[Lands]:
    """`box` has llama3:latest, `gpu` has org/name and Llama3, the library has mine:1b."""
    tags = [{"name": "llama3:latest", "model": "llama3:latest"}]
    names = [{"id": "org/name", "object": "model"}, {"id": "Llama3", "object": "model"}]
    with (
        StandIn(tmp_path / "box", {"GET /api/tags": (200, {"models": tags})}) as box,
        StandIn(tmp_path / "gpu", {"GET /v1/models": (200, {"object": "list", "data": names})}) as gpu,
    ):
        (drivetrain.home / "models" / "mine%3A1b").mkdir(parents=True)
        (drivetrain.home / "models" / "mine%3A1b" / "model.json").write_text("{}")
        (drivetrain.home / "models" / "mine%3A1b" / "w.gguf").write_bytes(tiny_gguf())
        (drivetrain.home / "drivetrain.yaml").write_text(
            f"engines: {{box: {{kind: ollama, url: '{box.url}'}}, gpu: {{kind: openai, url: '{gpu.url}'}}}}\n"
            "models: {Chat: {targets: [{engine: box, model: 'llama3:latest'}]}}\n"
        )
        yield Lands(drivetrain, box, gpu)


@pytest.mark.parametrize(
    ("spelled", "name"), [("chat:latest", "Chat"), ("MINE:1b", "mine:1b"), ("llama3", "llama3:latest")]
)
@pytest.mark.parametrize("kind", ["rollouts", "experiments"])
def test_it_is_of_the_name_that_requests_are_told_by(lands: Lands, kind: str, spelled: str, name: str) -> None:
    arms = lands.written("arms: [{name: now}, {name: then, parameters: {top_k: 1}}]")
    made = lands.drivetrain(kind, "create", spelled, "--file", arms, "--json")
    assert (made.code, made.err) == (0, "")
    assert made.json["model"] == name


FILE = "arms: [{{name: now}}, {{name: then, targets: [{{engine: {}, model: {}}}]}}]"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("gpu/none", "engine 'gpu' has no model 'none'; it has Llama3, org/name"),
        ("local/none", "engine 'local' has no model 'none'; it has mine:1b"),
    ],
)
@pytest.mark.parametrize(
    "way", ["rollouts create Chat --to {0}", "rollouts create Chat --file {1}", "experiments create Chat --file {1}"]
)
def test_a_model_that_its_engine_has_not_is_told_however_it_is_written(
    lands: Lands, way: str, target: str, problem: str
) -> None:
    outcome = lands.drivetrain.type(way.format(target, lands.written(FILE.format(*target.split("/")))))
    assert (outcome.code, outcome.err) == (3, f"Error: {problem}\n")


@pytest.mark.parametrize("target", ["gpu/ORG/name", "local/mine:1B", "local/library/mine:1b"])
def test_a_model_that_its_engine_has_is_taken(lands: Lands, target: str) -> None:
    assert lands.drivetrain("rollouts", "create", "Chat", "--to", target).code == 0


def test_an_empty_library_is_told_as_such(lands: Lands) -> None:
    rmtree(lands.drivetrain.home / "models")
    outcome = lands.drivetrain.type("rollouts create Chat --to local/mine:1b")
    assert (outcome.code, outcome.err) == (3, "Error: engine 'local' has no model 'mine:1b'; it has none\n")


@pytest.mark.parametrize(
    ("spelled", "hint"),
    [("nomodel", "; known: Chat, llama3:latest, mine:1b, org/name"), ("mine:2b", "; did you mean 'mine:1b'?")],
)
def test_a_model_that_nobody_has_is_told_with_all_that_there_are(lands: Lands, spelled: str, hint: str) -> None:
    outcome = lands.drivetrain("rollouts", "create", spelled, "--to", "gpu/org/name")
    assert (outcome.code, outcome.err) == (3, f"Error: there is no model {spelled!r}{hint}\n")


@pytest.mark.parametrize(
    ("words", "box", "gpu"),
    [
        ("Chat --prompt brief@1", 0, 0),
        ("mine:1b --to local/mine:1b", 0, 0),
        ("mine:1b --to gpu/Llama3 --to gpu/org/name", 0, 1),
        ("llama3 --to gpu/Llama3 --to gpu/org/name", 1, 1),
    ],
)
def test_an_engine_is_asked_once_and_only_where_it_may_know(lands: Lands, words: str, box: int, gpu: int) -> None:
    lands.drivetrain("prompts", "add", "brief", piped="Be brief.")
    assert lands.drivetrain.type(f"rollouts create {words}").code == 0
    lists = [
        sum(line in ("GET /api/tags", "GET /v1/models") for line, _ in one.asked) for one in (lands.box, lands.gpu)
    ]
    assert lists == [box, gpu]


def test_an_engine_that_is_away_is_told_and_stops_nothing(lands: Lands) -> None:
    lands.gpu.play("GET /v1/models", (503, {"error": {"message": "starting"}}))
    outcome = lands.drivetrain.type("rollouts create new --to gpu/org/name --to gpu/org/name")
    assert (outcome.code, outcome.err.splitlines()[:2]) == (
        0,
        [
            "engine 'gpu' does not tell now whether it has 'org/name'",
            "model 'new' is not known here, and an engine that may have it could not be asked",
        ],
    )


@pytest.mark.parametrize(
    "text",
    [
        "arms: 5",
        "arms: [5, {name: x, targets: 7}]",
        "arms: [{name: now}, {name: then, targets: [gpu/none]}]",
        "arms: [{name: now}, {name: then, targets: [{engine: [gpu], model: none}]}]",
        "arms: [{name: now}, {name: then, targets: [{engine: gpu, model: 1}]}]",
        "arms: [{name: now}, {name: then, targets: [{engine: gpu}]}]",
        "arms: {then: {targets: [{engine: gpu, model: none}]}}",
    ],
)
@pytest.mark.parametrize("kind", ["rollouts", "experiments"])
def test_what_is_written_in_another_shape_is_told_by_its_reader(lands: Lands, kind: str, text: str) -> None:
    outcome = lands.drivetrain(kind, "create", "Chat", "--file", lands.written(text))
    assert (outcome.code, outcome.out) == (1, "")
    assert "arms" in outcome.err
