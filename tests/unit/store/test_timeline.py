"""A request's life from its rows: what the caller got, and beside it what a shadow did."""

from drivetrain.governance import Attempt
from drivetrain.store.timeline import life, steps, told

CAME_S = 1_796_040_000.0


def attempt(**fields: object) -> Attempt:
    usual = {
        "id": "1",
        "request_id": "req_1",
        "position": 1,
        "started_s": CAME_S + 0.1,
        "received_s": CAME_S,
        "dialect": "openai.chat",
        "model": "chat",
        "engine": "box",
        "engine_model": "m",
        "stream": False,
        "outcome": "ok",
        "status": 200,
        "total_s": 0.2,
        "cost_micro_usd": 7,
        "key_id": "K1",
    }
    return Attempt(**{**usual, **fields})  # type: ignore[arg-type]  # of many types


SHADOW = attempt(
    id="2",
    started_s=CAME_S + 0.4,
    engine="new box",
    outcome="error",
    status=502,
    why="engine_failed",
    cost_micro_usd=900,
    rollout="R1:candidate:shadow",
)


def test_a_shadow_is_told_and_is_neither_how_the_request_ended_nor_what_it_cost() -> None:
    found = life([SHADOW, attempt(rollout="R1:baseline")])
    assert (found.outcome, found.status, found.cost_micro_usd, found.key_id) == ("ok", 200, 7, "K1")
    assert [(step.name, round(step.at_s, 3)) for step in found.steps] == [
        ("received", 0.0),
        ("admitted", 0.0),
        ("attempt", 0.1),
        ("last token", 0.3),
        ("settled", 0.3),
        ("shadow", 0.4),
        ("failed", 0.6),
    ]
    assert [row.id for row in found.attempts] == ["1", "2"]


def test_which_side_of_a_rollout_answered_with_which_prompt_is_told() -> None:
    row = attempt(rollout="R1:new", prompt_version="greet@2", model_version="v3")
    (tried,) = [step for step in steps([row]) if step.name == "attempt"]
    found = [tried.facts[name] for name in ("rollout", "prompt_version", "model_version")]
    assert found == ["R1:new", "greet@2", "v3"]


def test_of_a_request_that_only_a_shadow_is_left_of_this_is_told() -> None:
    assert life([SHADOW]).outcome == "error"


def test_for_json_there_are_milliseconds() -> None:
    assert told(steps([attempt()]))[2] == {
        "at_ms": 100.0,
        "step": "attempt",
        "attempt": 1,
        "engine": "box",
        "engine_model": "m",
    }
