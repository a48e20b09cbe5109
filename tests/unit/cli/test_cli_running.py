"""Commands on what runs."""

from typing import Any

import pytest

from drivetrain.cli.running import _processor
from tests.unit.cli.kit import Play, Terminal

LOADED: dict[str, Any] = {
    "models": [
        {
            "name": "a:1b",
            "digest": "cd" * 32,
            "size": 2_000_000_000,
            "size_vram": 1_500_000_000,
            "context_length": 4096,
            "expires_at": "2999-01-01T00:00:00Z",
        },
        {"name": "b:1b", "digest": "", "size": 10, "expires_at": "2020-01-01T00:00:00Z"},
    ]
}


def test_ps_shows_what_is_in_memory(drivetrain: Terminal, play: Play) -> None:
    play({"GET /api/ps": (200, LOADED)})
    lines = drivetrain("ps").out.splitlines()

    assert lines[1] == "a:1b   cdcdcdcdcdcd   2 GB   25%/75% CPU/GPU   4096      forever"
    assert lines[2].startswith("b:1b   -              10 B   100% CPU          -         ")
    assert drivetrain("ps", "--json").json == LOADED


def test_load_brings_models_into_memory_and_tells_where(drivetrain: Terminal, play: Play) -> None:
    answer = {"id": "a:1b", "object": "model", "loaded": ["local", "box"]}
    server = play({"POST /v1/models/a:1b/load": (200, answer)})
    assert drivetrain("load", "a:1b").out == "a:1b is in memory at local, box\n"
    assert drivetrain("load", "a:1b", "--keep-alive", "30m", "--json").json == answer
    assert [body for _, body in server.asked] == [{}, {"keep_alive": "30m"}]


def test_ps_shows_how_experts_fare_where_a_model_streams(drivetrain: Terminal, play: Play) -> None:
    experts = {"resident_bytes": 3_000_000_000, "total_bytes": 8_000_000_000, "hit_rate": 0.939, "wait_share": 0.2}
    streamed, other = {**LOADED["models"][0], "size_vram": 0, "experts": experts}, LOADED["models"][1]
    play({"GET /api/ps": (200, {"models": [streamed, other]})})
    headings, first, second = drivetrain("ps").out.splitlines()

    assert headings.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "EXPERTS", "UNTIL"]
    assert first.endswith("100% CPU    4096      3 GB of 8 GB, 94% hits, 20% waiting   forever")
    assert second.startswith("b:1b   -              10 B   100% CPU    -         -      ")


def test_ps_starts_no_server_to_say_that_nothing_is_loaded(drivetrain: Terminal) -> None:
    assert drivetrain("ps", "--json").json == {"models": []}
    assert not drivetrain.home.exists()


@pytest.mark.parametrize(
    ("total", "on_gpu", "shown"),
    [(100, 0, "100% CPU"), (100, 100, "100% GPU"), (100, 70, "30%/70% CPU/GPU"), (0, 0, "100% CPU")],
)
def test_where_a_models_memory_is(total: int, on_gpu: int, shown: str) -> None:
    assert shown == _processor(total, on_gpu)


def test_stop_asks_for_no_more_time_in_memory(drivetrain: Terminal, play: Play) -> None:
    server = play({"POST /api/generate": (200, {"done": True, "done_reason": "unload"})})

    assert drivetrain("stop", "a", "b") == (0, "", "")
    assert [("POST /api/generate", {"model": name, "keep_alive": 0, "stream": False}) for name in "ab"] == server.asked


def test_engines_shows_kind_health_and_loaded_models(drivetrain: Terminal, play: Play) -> None:
    answer = {
        "data": [
            {
                "name": "local",
                "kind": "llamacpp",
                "url": None,
                "health": {"live": True, "ready": True, "message": ""},
                "loaded": [{"model": {"id": "a:1b"}, "address": "http://127.0.0.1:1"}, {"model": {"id": "b"}}],
            },
            {
                "name": "box-1",
                "kind": "ollama",
                "url": "http://10.0.0.7:11434",
                "health": {"live": False, "ready": False, "message": "connection refused"},
                "loaded": [],
            },
        ]
    }
    play({"GET /v1/engines": (200, answer)})

    assert drivetrain("engines").out.splitlines() == [
        "NAME    KIND       URL                     HEALTH                     LOADED",
        "local   llamacpp   -                       ready                      a:1b, b",
        "box-1   ollama     http://10.0.0.7:11434   down: connection refused   -",
    ]
    assert answer == drivetrain("engines", "--json").json
