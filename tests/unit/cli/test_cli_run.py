"""`drivetrain run`: one prompt, one answer, and nothing but the answer on standard output."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.kit import Play, Terminal
from tests.unit.cli.standin import Answer

LAST = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 2_000_000_000,
    "load_duration": 500_000_000,
    "prompt_eval_count": 10,
    "prompt_eval_duration": 500_000_000,
    "eval_count": 4,
    "eval_duration": 1_000_000_000,
}


def said(*texts: str, thinking: str = "") -> Answer:
    frames = (
        [{"message": {"role": "assistant", "content": "", "thinking": thinking}, "done": False}] if thinking else []
    )
    frames += [{"message": {"role": "assistant", "content": text}, "done": False} for text in texts]
    return 200, [*frames, {"model": "m", "message": {"role": "assistant", "content": ""}, **LAST}]


def test_the_answer_is_told_as_it_comes_and_ends_its_line(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /api/chat": said("Hel", "lo \u2028\u0085", "wörld 🌍")})

    assert drivetrain("run", "m", "say", "hello") == (0, "Hello \u2028\u0085wörld 🌍\n", "")
    assert server.asked == [
        (
            "POST /api/chat",
            {"model": "m", "messages": [{"role": "user", "content": "say hello"}], "options": {}, "stream": True},
        )
    ]


def test_everything_that_shapes_an_answer_is_sent(drivetrain: Terminal, play: Play, tmp_path: Path) -> None:
    server = play({"POST /api/chat": said("{}")})
    (tmp_path / "p.png").write_bytes(b"png")
    flags = ["--system", "Be brief.", "--format", "json", "--effort", "high", "--keepalive", "10m"]
    flags += ["--set", "temperature=0", "--set", "stop=END", "--image", str(tmp_path / "p.png")]
    drivetrain("run", *flags, "m", "hi")

    assert {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi", "images": [base64.b64encode(b"png").decode()]},
        ],
        "options": {"temperature": 0.0, "stop": ["END"]},
        "format": "json",
        "think": "high",
        "keep_alive": "10m",
        "stream": True,
    } == server.asked[0][1]


def test_piped_text_comes_before_the_prompt(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /api/chat": said("ok")})
    drivetrain("run", "m", "Sum it up.", piped="a long text\n")
    assert server.asked[0][1]["messages"][0]["content"] == "a long text\n\nSum it up."


def test_without_a_word_the_model_is_loaded_only(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /api/chat": (200, {"done": True, "done_reason": "load"})})
    assert drivetrain("run", "m") == (0, "", "")
    assert server.asked[0][1]["messages"] == []


def test_thinking_goes_to_standard_error(drivetrain: Terminal, play: Play) -> None:
    play({"POST /api/chat": said("4", thinking="two and two")})
    assert drivetrain("run", "m", "2+2").out == "4\n"
    assert "two and two" in drivetrain("run", "m", "2+2").err
    assert drivetrain("run", "m", "2+2", "--hide-thinking") == (0, "4\n", "")


def test_verbose_tells_the_timings(drivetrain: Terminal, play: Play) -> None:
    play({"POST /api/chat": said("hi")})
    assert drivetrain("run", "m", "hi", "--verbose").err.splitlines() == [
        "total duration: 2.000 s",
        "load duration:  0.500 s",
        "prompt:         10 tokens in 0.500 s, 20.00 tokens/s",
        "answer:         4 tokens in 1.000 s, 4.00 tokens/s",
    ]


def test_json_is_one_whole_answer(drivetrain: Terminal, play: Play) -> None:
    play({"POST /api/chat": said("a", "b", thinking="t")})
    outcome = drivetrain("run", "m", "hi", "--json")

    assert outcome.json == {"model": "m", "message": {"role": "assistant", "content": "ab", "thinking": "t"}, **LAST}
    assert outcome.err == ""


def test_a_model_that_is_missing_is_pulled_first(drivetrain: Terminal, play: Play) -> None:
    there: list[str] = []

    def chat(body: Any) -> Answer:
        return said("hi") if there else (404, {"error": 'model "m" not found'})

    def pull(body: Any) -> Answer:
        there.append(body["pull"])
        return 200, [{"status": "pulling manifest"}, {"status": "success"}]

    play({"POST /api/chat": chat, "POST /v1/models": pull})

    assert drivetrain("run", "m", "hello") == (0, "hi\n", "pulling manifest\nsuccess\n")
    assert there == ["m"]


def test_a_model_that_cannot_be_pulled_is_not_found(drivetrain: Terminal, play: Play) -> None:
    play(
        {
            "POST /api/chat": (404, {"error": 'model "m" not found'}),
            "POST /v1/models": (500, {"error": {"message": "pull model manifest: file does not exist"}}),
        }
    )
    assert drivetrain("run", "m", "hi") == (
        3,
        "",
        'Error: model "m" not found, and it cannot be pulled: pull model manifest: file does not exist '
        "(the server answered 500)\n",
    )


def test_an_answer_that_breaks_off_is_a_failure(drivetrain: Terminal, play: Play) -> None:
    frames: Any = said("Hel")[1]
    play({"POST /api/chat": (200, frames[:-1])})
    assert drivetrain("run", "m", "hi") == (1, "Hel\n", "Error: the server broke off in the middle of the answer\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "temperature"], "--set takes NAME=VALUE, got 'temperature'"),
        (["--set", "temprature=1"], "there is no parameter 'temprature'; did you mean 'temperature'?"),
        (["--set", "top_k=many"], "invalid integer value [many] of parameter top_k"),
        (["--format", "yaml"], "a format is `json` or a JSON schema, got 'yaml'"),
        (["--format", "[1]"], "a JSON schema is an object, got '[1]'"),
    ],
)
def test_flags_that_mean_nothing_are_refused(drivetrain: Terminal, flags: list[str], message: str) -> None:
    assert (2, "", f"Error: {message}\n") == drivetrain("run", "m", "hi", *flags)


def test_a_schema_is_sent_as_it_is(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /api/chat": said("{}")})
    drivetrain("run", "m", "hi", "--format", json.dumps({"type": "object"}))
    assert server.asked[0][1]["format"] == {"type": "object"}
