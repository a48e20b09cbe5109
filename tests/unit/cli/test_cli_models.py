"""Commands on models send what the API takes, and show what it answers."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.kit import Play, Terminal

TAGS = {
    "models": [
        {"name": "smollm2:135m", "digest": "ab" * 32, "size": 144_811_456, "modified_at": "2020-01-01T00:00:00Z"},
        {"name": "org/other:q4", "digest": "", "size": 5, "modified_at": "never"},
    ]
}
PULLED = [
    {"status": "pulling manifest"},
    *({"status": "pulling abc", "digest": "sha256:abc", "total": 200, "completed": done} for done in (0, 5, 100, 200)),
    {"status": "success"},
]


def test_list_shows_a_table(drivetrain: Terminal, play: Play) -> None:
    play({"GET /api/tags": (200, TAGS)})
    shown = drivetrain("list").out.splitlines()

    assert shown[:1] == ["NAME           ID             SIZE     MODIFIED"]
    assert "smollm2:135m   abababababab   145 MB" in shown[1]
    assert shown[1].endswith(" weeks ago")
    assert shown[2] == "org/other:q4   -              5 B      -"


def test_list_in_json_is_what_the_api_answers(drivetrain: Terminal, play: Play) -> None:
    play({"GET /api/tags": (200, TAGS)})
    assert drivetrain("ls", "--json").json == TAGS
    assert {"models": TAGS["models"][1:]} == drivetrain("list", "org/", "--json").json


def test_pull_tells_each_status_once_and_each_tenth_of_a_transfer(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /v1/models": (200, PULLED)})
    outcome = drivetrain("pull", "smollm2:135m")

    assert server.asked == [("POST /v1/models", {"pull": "smollm2:135m", "stream": True})]
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [
        "pulling manifest",
        "pulling abc: 0% of 200 B",
        "pulling abc: 50% of 200 B",
        "pulling abc: 100% of 200 B",
        "success",
    ]


def test_pull_in_json_is_a_line_for_each_frame(drivetrain: Terminal, play: Play) -> None:
    play({"POST /v1/models": (200, PULLED)})
    outcome = drivetrain("pull", "a", "--json")

    assert (len(PULLED), "") == (len(outcome.out.splitlines()), outcome.err)
    assert outcome.out.splitlines()[-1] == '{"status":"success"}'


def test_pull_under_another_name(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /v1/models": (200, PULLED)})
    assert drivetrain("pull", "https://x/y.gguf", "--name", "mine").code == 0
    assert server.asked == [("POST /v1/models", {"pull": "https://x/y.gguf", "stream": True, "name": "mine"})]
    assert drivetrain("pull", "a", "b", "--name", "mine").code == 2


def test_pull_of_a_path_means_the_path_here(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /v1/models": (200, PULLED)})
    drivetrain("pull", "./x.gguf")
    assert str(Path("x.gguf").absolute()) == server.asked[0][1]["pull"]


def test_a_pull_that_breaks_off_is_a_failure(drivetrain: Terminal, play: Play) -> None:
    play({"POST /v1/models": (200, PULLED[:2])})
    outcome = drivetrain("pull", "a")
    assert (
        outcome.code,
        outcome.err.splitlines()[-1],
    ) == (1, "Error: the server broke off after 'pulling abc'; try again")


def test_an_error_inside_a_stream_is_a_failure(drivetrain: Terminal, play: Play) -> None:
    play({"POST /v1/models": (200, [*PULLED[:1], {"error": "disk full"}])})
    outcome = drivetrain("pull", "a")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, "Error: disk full")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "/nowhere.gguf does not exist", "code": "not_found"}, 3),
        ({"message": "there is none", "code": "model_not_found"}, 3),
        ({"message": "no room", "code": "storage_full"}, 1),
        ("pull model manifest: file does not exist (model not found)", 3),
    ],
)
def test_what_is_not_found_inside_a_stream_is_so_for_the_command(
    drivetrain: Terminal, play: Play, error: Any, code: int
) -> None:
    play({"POST /v1/models": (200, [*PULLED[:1], {"error": error}])})
    assert drivetrain("pull", "a").code == code


def test_pull_from_a_registry_without_tls(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /v1/models": (200, PULLED)})
    assert drivetrain("pull", "http://x/t/m", "--insecure").code == 0
    assert server.asked == [("POST /v1/models", {"pull": "http://x/t/m", "stream": True, "insecure": True})]


def test_rm_deletes_what_is_there_and_tells_what_is_not(drivetrain: Terminal, play: Play) -> None:
    there = {"a": (200, b""), "c": (200, b"")}
    server = play(
        {"DELETE /api/delete": lambda body: there.get(body["model"], (404, {"error": "model 'b' not found"}))}
    )
    outcome = drivetrain("rm", "a", "b", "c")

    assert [body["model"] for _, body in server.asked] == ["a", "b", "c"]
    assert outcome == (3, "deleted 'a'\ndeleted 'c'\n", "Error: model 'b' not found\n")


def test_cp_and_import_and_push(drivetrain: Terminal, play: Play, tmp_path: Path) -> None:
    weights = tmp_path / "w.gguf"
    weights.touch()
    server = play(
        {
            "POST /api/copy": (200, b""),
            "POST /v1/models": (201, {"id": "mine", "object": "model"}),
            "POST /api/push": (200, [{"status": "pushing manifest"}, {"status": "success"}]),
        }
    )

    assert drivetrain("cp", "a", "b").out == "copied 'a' to 'b'\n"
    assert drivetrain("import", str(weights), "--name", "mine", "--json").json == {"id": "mine", "object": "model"}
    assert drivetrain("push", "host/team/a", "--insecure").code == 0
    assert [
        ("POST /api/copy", {"source": "a", "destination": "b"}),
        ("POST /v1/models", {"import": str(weights), "name": "mine", "link": False}),
        ("POST /api/push", {"model": "host/team/a", "insecure": True, "stream": True}),
    ] == server.asked


def test_import_refuses_a_path_that_is_not_there(drivetrain: Terminal) -> None:
    outcome = drivetrain("import", "/nowhere/x.gguf", "--name", "mine")
    assert outcome == (3, "", "Error: there is no file or folder '/nowhere/x.gguf'\n")


def test_show_fits_a_screen(drivetrain: Terminal, play: Play) -> None:
    answer = {
        "details": {"format": "gguf", "family": "llama", "parameter_size": "134.52M", "quantization_level": "Q8_0"},
        "model_info": {"general.architecture": "llama", "llama.context_length": 8192, "llama.embedding_length": 576},
        "capabilities": ["completion", "tools"],
        "parameters": 'stop                           "<|im_end|>"\ntemperature                    0.2',
        "system": "Be brief.",
        "license": "Apache\nLicense\nVersion 2.0",
        "template": "{{ .Prompt }}",
    }
    play({"POST /api/show": (200, answer)})

    assert (
        drivetrain("show", "m").out
        == """\
  Model
    architecture         llama
    parameters           134.52M
    context length       8192
    embedding length     576
    quantization         Q8_0
    format               gguf

  Capabilities
    completion
    tools

  Parameters
    stop                 "<|im_end|>"
    temperature          0.2

  System
    Be brief.

  License
    Apache
    License
"""
    )
    assert drivetrain("show", "m", "--part", "template").out == "{{ .Prompt }}\n"
    assert answer == drivetrain("show", "m", "--json").json


def test_show_effective_names_the_origin_of_each_setting(drivetrain: Terminal, play: Play) -> None:
    effective = {"settings.n_ctx": {"value": 4096, "origin": "/h/engines/local/engine.json"}}
    server = play({"GET /v1/models/org/m:7b?effective=true": (200, {"id": "org/m:7b", "effective": effective})})

    assert drivetrain("show", "org/m:7b", "--effective").out.splitlines() == [
        "SETTING          VALUE   FROM",
        "settings.n_ctx   4096    /h/engines/local/engine.json",
    ]
    assert [route for route, _ in server.asked] == ["GET /v1/models/org/m:7b?effective=true"]


def test_create_sends_the_files_that_the_server_lacks(drivetrain: Terminal, play: Play, tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(b"weights")
    (tmp_path / "Modelfile").write_text(
        'FROM ./w.gguf\nPARAMETER temperature 0.5\nSYSTEM "Be brief."\nMESSAGE user hi\n'
    )
    digest = f"sha256:{hashlib.sha256(b'weights').hexdigest()}"
    server = play(
        {
            f"HEAD /api/blobs/{digest}": (404, b""),
            f"POST /api/blobs/{digest}": (201, b""),
            "POST /api/create": (200, [{"status": "success"}]),
        }
    )

    assert drivetrain("create", "mine", "-f", str(tmp_path / "Modelfile")).code == 0
    assert [
        (f"HEAD /api/blobs/{digest}", None),
        (f"POST /api/blobs/{digest}", b"weights"),
        (
            "POST /api/create",
            {
                "model": "mine",
                "system": "Be brief.",
                "parameters": {"temperature": 0.5},
                "messages": [{"role": "user", "content": "hi"}],
                "stream": True,
                "files": {"w.gguf": digest},
            },
        ),
    ] == server.asked


def test_create_from_a_model_sends_its_name(drivetrain: Terminal, play: Play, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM smollm2:135m\nPARAMETER stop a\nPARAMETER stop b\n")
    server = play({"POST /api/create": (200, [{"status": "success"}])})

    assert drivetrain("create", "mine", "-f", str(tmp_path / "Modelfile"), "-q", "q4_K_M").code == 0
    assert server.asked[0][1] == {
        "model": "mine",
        "from": "smollm2:135m",
        "parameters": {"stop": ["a", "b"]},
        "quantize": "q4_K_M",
        "stream": True,
    }


def test_create_names_what_is_missing(drivetrain: Terminal, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM ./none.gguf\n")
    (tmp_path / "Broken").write_text("FORM x\n")

    assert drivetrain("create", "m", "-f", "Modelfil")[::2] == (
        3,
        "Error: there is no file 'Modelfil'; name the Modelfile with -f\n",
    )
    assert drivetrain("create", "m", "-f", str(tmp_path / "Broken")).code == 1
