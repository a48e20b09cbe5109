"""`drivetrain explain`: a dry run, as a table and as JSON."""

from typing import Any

from tests.unit.cli.kit import Play, Terminal

FAST: dict[str, Any] = {
    "engine": "fast",
    "model": "llama",
    "tier": 0,
    "weight": 2,
    "region": "",
    "position": 1,
    "state": "able",
    "outstanding": 3,
    "load": 1.5,
    "expected_s": 2.25,
    "micro_usd": None,
    "score": 5.625,
    "why": "tier 0, load 1.5",
}
OUT = {**FAST, "engine": "out", "weight": 0, "position": None, "expected_s": None, "load": 0.0, "why": "weight 0"}
ANSWER: dict[str, Any] = {
    "model": "chat",
    "prompt_tokens": 4000,
    "output_tokens": 256,
    "choices": [
        {"model": "chat", "policy": "default", "arm": "", "candidates": [FAST, OUT]},
        {"model": "small", "policy": "cheap", "arm": "", "candidates": [{**FAST, "engine": "spare"}]},
    ],
    "total_s": 3600.0,
    "retries": 2,
    "retries_left": 10,
}


def test_the_candidates_are_shown_in_the_order_in_which_they_would_be_asked(drivetrain: Terminal, play: Play) -> None:
    play({"GET /v1/explain?model=chat&prompt_tokens=4000": (200, ANSWER)})
    lines = drivetrain("explain", "chat", "--prompt-tokens", "4000").out.splitlines()

    assert lines[:2] == [
        "a prompt of 4000 tokens and an answer of 256, done within 3600 s",
        "up to 2 further attempts; 10 are left for all requests of this minute",
    ]
    assert lines[3] == "chat, policy default"
    assert lines[4].split() == ["#", "ENGINE", "MODEL", "TIER", "STATE", "LOAD", "EXPECTED", "SCORE", "WHY"]
    assert lines[5].split() == [
        "1",
        "fast",
        "llama",
        "0",
        "able",
        "1.5",
        "2.25",
        "s",
        "5.62",
        "tier",
        "0,",
        "load",
        "1.5",
    ]
    assert lines[6].split() == ["-", "out", "llama", "0", "able", "0", "-", "5.62", "weight", "0"]
    assert lines[8] == "fallback small, policy cheap"


def test_json_is_what_the_server_said(drivetrain: Terminal, play: Play) -> None:
    play({"GET /v1/explain?model=chat": (200, ANSWER)})
    assert drivetrain("explain", "chat", "--json").json == ANSWER


def test_an_unknown_model_is_missing(drivetrain: Terminal, play: Play) -> None:
    play({"GET /v1/explain?model=nope": (404, {"error": {"message": "model 'nope' not found"}})})
    outcome = drivetrain("explain", "nope")
    said = "'nope' is neither a request of the ledger nor a model: model 'nope' not found"
    assert (outcome.code, outcome.err) == (3, f"Error: {said}\n")


def test_what_is_known_of_the_request_is_told_and_regions_and_prices_are_shown(
    drivetrain: Terminal, play: Play
) -> None:
    seen = {**FAST, "region": "eu", "micro_usd": 1200.0}
    answer = {**ANSWER, "choices": [{"model": "chat", "policy": "default", "arm": "", "candidates": [seen]}]}
    play({"GET /v1/explain?model=chat&tools=true&region=eu&session=s1&within_ms=2500": (200, answer)})
    told = drivetrain("explain", "chat", "--tools", "--region", "eu", "--session", "s1", "--within", "2.5")
    lines = told.out.splitlines()
    assert lines[4].split()[-4:] == ["SCORE", "REGION", "COST", "WHY"]
    assert lines[5].split()[-7:] == ["5.62", "eu", "$0.0012", "tier", "0,", "load", "1.5"]


REQUEST = "req_01M8P1EBFWJE1D086R00000011"
ROW = {"position": 1, "model": "chat", "engine": "slow", "engine_model": "llama", "outcome": "absorbed", "status": 503}
MADE: dict[str, Any] = {
    "request_id": REQUEST,
    "model": "chat",
    "received_s": 1_767_225_600.0,
    "then": [
        {**ROW, "why": "engine_unavailable"},
        {**ROW, "position": 2, "engine": "fast", "outcome": "ok", "status": 200, "why": "tier 0, load 1.5"},
    ],
    "now": ANSWER,
}


def test_of_a_request_that_was_made_it_tells_what_was_chosen_then_and_what_would_be_now(
    drivetrain: Terminal, play: Play
) -> None:
    play({f"GET /admin/v1/explain/{REQUEST}?tools=true": (200, MADE)})
    lines = drivetrain("explain", REQUEST, "--tools").out.splitlines()
    assert lines[0] == f"{REQUEST}, model chat"
    assert lines[2] == "then, 2026-01-01T00:00:00Z, as the ledger has it"
    assert [line.split() for line in lines[3:6]] == [
        ["ATTEMPT", "MODEL", "ENGINE", "ITS", "MODEL", "OUTCOME", "WHY"],
        ["1", "chat", "slow", "llama", "absorbed", "503", "engine_unavailable"],
        ["2", "chat", "fast", "llama", "ok", "tier", "0,", "load", "1.5"],
    ]
    assert lines[7] == "now, for a request as long as it; what else it asked for is not on record, options tell it"
    assert lines[8:] == _dry(ANSWER, drivetrain, play)


def _dry(answer: Any, drivetrain: Terminal, play: Play) -> list[str]:
    play({"GET /v1/explain?model=chat": (200, answer)})
    return drivetrain("explain", "chat").out.splitlines()


def test_a_request_whose_model_is_no_more_has_no_now(drivetrain: Terminal, play: Play) -> None:
    play({f"GET /admin/v1/explain/{REQUEST}": (200, {**MADE, "now": None})})
    assert drivetrain("explain", REQUEST).out.splitlines()[-1] == "now there is no model 'chat'"
    assert drivetrain("explain", REQUEST, "--json").json == {**MADE, "now": None}


def test_an_unknown_request_is_missing(drivetrain: Terminal, play: Play) -> None:
    said = f"no request '{REQUEST}' in the ledger; it is there some seconds after its end"
    play({f"GET /admin/v1/explain/{REQUEST}": (404, {"error": {"message": said}})})
    outcome = drivetrain("explain", REQUEST)
    assert (outcome.code, outcome.err) == (3, f"Error: {said}\n")


def test_a_request_that_its_caller_named_is_told_of_as_well(drivetrain: Terminal, play: Play) -> None:
    play({"GET /admin/v1/explain/my%2Fjob%207?tools=true": (200, {**MADE, "request_id": "my/job 7"})})
    lines = drivetrain("explain", "my/job 7", "--tools").out.splitlines()
    assert lines[0] == "my/job 7, model chat"


def test_a_model_is_meant_before_a_request_of_the_same_name(drivetrain: Terminal, play: Play) -> None:
    play({"GET /v1/explain?model=chat": (200, ANSWER), "GET /admin/v1/explain/chat": (200, MADE)})
    assert drivetrain("explain", "chat", "--json").json == ANSWER


NO_SCOPE = (403, {"error": {"message": "key 'k' lacks the scope"}})


def test_a_key_for_models_alone_is_told_that_there_is_no_such_model(drivetrain: Terminal, play: Play) -> None:
    missing = (404, {"error": {"message": "model 'nope' not found"}})
    play({"GET /v1/explain?model=nope": missing, "GET /admin/v1/explain/nope": NO_SCOPE})
    outcome = drivetrain("explain", "nope")
    said = "model 'nope' not found, and whether it is a request cannot be told: key 'k' lacks the scope"
    assert (outcome.code, outcome.err) == (3, f"Error: {said}\n")


def test_a_key_for_the_ledger_alone_may_ask_of_a_request(drivetrain: Terminal, play: Play) -> None:
    play({f"GET /v1/explain?model={REQUEST}": NO_SCOPE, f"GET /admin/v1/explain/{REQUEST}": (200, MADE)})
    assert drivetrain("explain", REQUEST, "--json").json == MADE
    play({"GET /v1/explain?model=chat": NO_SCOPE})
    assert (drivetrain("explain", "chat").code, drivetrain("explain", "chat").err) == (
        1,
        "Error: key 'k' lacks the scope\n",
    )
