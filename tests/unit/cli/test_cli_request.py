"""`drivetrain trace REQUEST_ID`: a request's life, from the rows of its attempts."""

import pytest

from drivetrain.store import Body, Store
from drivetrain.store.timeline import steps
from tests.unit.cli.kit import Terminal
from tests.unit.cli.rows import CAME_S, attempt, fill

FAILED = attempt(
    request_id="req_2",
    position=1,
    started_s=CAME_S + 0.030,
    outcome="absorbed",
    status=502,
    why="engine_failed",
    total_s=0.010,
    final=False,
    queued_s=0.025,
    admitted_s=0.0255,
    reserved_micro_usd=12_000,
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
)
ANSWERED = attempt(
    request_id="req_2",
    position=2,
    started_s=CAME_S + 0.045,
    engine="box-2",
    model_version="v2",
    region="eu",
    why="tier 0, next by load 0",
    first_token_s=0.1,
    total_s=0.5,
    prompt_tokens=33,
    cached_tokens=12,
    completion_tokens=120,
    reasoning_tokens=20,
    cost_micro_usd=3_200,
    price_id="01M8P0YAE43YH3ZSWY00000000",
    queued_s=0.025,
    admitted_s=0.0255,
    reserved_micro_usd=12_000,
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
)


def test_a_request_that_failed_over_is_told_step_by_step(drivetrain: Terminal) -> None:
    fill(drivetrain.home, [ANSWERED, FAILED])
    outcome = drivetrain("trace", "req_2")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "request  req_2",
        "came     2026-11-30T12:00:00Z",
        "key      none: nobody had to show one",
        "model    chat, streamed",
        "ended    ok, 200",
        "cost     $0.0032",
        "trace    4bf92f3577b34da6a3ce929d0e0e4736",
        "",
        "AT        STEP          WHAT",
        "0 ms      received      openai.chat, model chat",
        "0.5 ms    queued        waited 25 ms",
        "25.5 ms   admitted",
        "25.5 ms   reserved      $0.012",
        "30 ms     attempt 1     box, model m:7b",
        "40 ms     failed        502 engine_failed",
        "45 ms     attempt 2     box-2 in eu, model m:7b (v2): tier 0, next by load 0",
        "145 ms    first token",
        "545 ms    last token    ok, 33 (12 cached) + 120 (20 reasoning) tokens, $0.0032",
        "545 ms    settled       $0.0032",
    ]


def test_in_json_there_are_all_numbers(drivetrain: Terminal) -> None:
    fill(drivetrain.home, [FAILED, ANSWERED])
    told = drivetrain("trace", "req_2", "--json").json
    assert (told["request_id"], told["outcome"], told["cost_micro_usd"], told["bodies"]) == ("req_2", "ok", 3_200, None)
    assert [(step["step"], step["at_ms"]) for step in told["timeline"]] == [
        ("received", 0.0),
        ("queued", 0.5),
        ("admitted", 25.5),
        ("reserved", 25.5),
        ("attempt", 30.0),
        ("failed", 40.0),
        ("attempt", 45.0),
        ("first token", 145.0),
        ("last token", 545.0),
        ("settled", 545.0),
    ]
    assert [row["engine"] for row in told["attempts"]] == ["box", "box-2"]


def test_a_request_that_was_refused_never_reached_an_engine(drivetrain: Terminal) -> None:
    fill(
        drivetrain.home,
        [attempt(engine="", engine_model="", outcome="rejected", status=429, why="rate_limit_exceeded")],
    )
    assert drivetrain("trace", "req_1").out.splitlines()[-3:] == [
        "0 ms   received   openai.chat, model chat",
        "0 ms   refused    429 rate_limit_exceeded",
        "0 ms   settled    $0.00",
    ]


def test_a_fallback_is_let_in_under_a_policy_of_its_own() -> None:
    second = attempt(position=2, started_s=CAME_S + 0.2, admitted_s=0.19, reserved_micro_usd=5)
    told = steps([attempt(admitted_s=0.001, outcome="absorbed", total_s=0.1, reserved_micro_usd=7), second])
    assert [(step.name, step.facts.get("reserved_micro_usd")) for step in told if step.name != "attempt"] == [
        ("received", None),
        ("admitted", None),
        ("reserved", 7),
        ("failed", None),
        ("admitted", None),
        ("reserved", 5),
        ("last token", None),
        ("settled", None),
    ]


def test_an_attempt_that_is_dearer_takes_more_aside() -> None:
    first = attempt(admitted_s=0.001, outcome="absorbed", total_s=0.1, reserved_micro_usd=7)
    second = attempt(admitted_s=0.001, position=2, started_s=CAME_S + 0.25, reserved_micro_usd=9)
    third = attempt(admitted_s=0.001, position=3, started_s=CAME_S + 0.5, reserved_micro_usd=9)
    reserved = [step for step in steps([first, second, third]) if step.name == "reserved"]
    assert [(step.at_s, step.facts["reserved_micro_usd"]) for step in reserved] == [(0.001, 7), (0.25, 9)]


def test_an_answer_that_broke_off_is_estimated(drivetrain: Terminal) -> None:
    row = attempt(outcome="cancelled", status=499, why="cancelled", completion_tokens=5, usage_estimated=True)
    fill(drivetrain.home, [row])
    assert "caller left   499 cancelled, about 0 + 5 tokens, $0.00, no price" in drivetrain("trace", "req_1").out


def test_a_row_of_an_older_version_does_not_tell_when_the_request_came(drivetrain: Terminal) -> None:
    fill(drivetrain.home, [attempt(received_s=0.0, total_s=0.25)])
    assert drivetrain("trace", "req_1", "--json").json["received"] == "2026-11-30T12:00:00Z"


def test_what_was_said_is_shown_where_it_was_kept(drivetrain: Terminal) -> None:
    fill(drivetrain.home, [attempt()])
    silent = drivetrain("trace", "req_1", "--bodies")
    assert silent.err == "\nwhat was said was not kept\n"

    into = Store.open("sqlite:///state/drivetrain.db", drivetrain.home).rows()
    into.keep([Body(request_id="req_1", at_s=CAME_S, delete_s=CAME_S * 2, request='{"a":1}', answer="Hello")])
    into.close()
    assert drivetrain("trace", "req_1").err == "\n--bodies shows what was said\n"
    assert drivetrain("trace", "req_1", "--bodies").out.endswith('--- request\n{"a":1}\n\n--- answer\nHello\n')
    assert drivetrain("trace", "req_1", "--json").json["bodies"]["answer"] == "Hello"


@pytest.mark.parametrize("words", [["trace", "req_9"], ["trace", "show", "req_9"], ["trace", "--json", "req_9"]])
def test_a_request_that_is_not_there_is_not_found(drivetrain: Terminal, words: list[str]) -> None:
    assert drivetrain(*words) == (
        3,
        "",
        f"Error: there is no request 'req_9' in the ledger of {drivetrain.home}; write the answer's "
        "x-request-id, which is on record when the request is over\n",
    )
