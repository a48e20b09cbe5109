"""Engines come and go; the pool tells each change once, however it was noticed, and learns from requests."""

from collections.abc import Sequence
from contextlib import aclosing

import pytest

from drivetrain.config.schema import Breaker as Rules
from drivetrain.config.schema import Engine, Policy, Route, Target, Timeouts
from drivetrain.errors import (
    BadRequest,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    LoadFailed,
)
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.account import worked
from drivetrain.gateway.member import MOST_MODELS, Member
from drivetrain.gateway.meter import Meter
from drivetrain.gateway.pool import Pool
from drivetrain.router import Candidate
from drivetrain.types import Health, Notice, Usage
from tests.fakes.engine import ANSWER, HELLO, ROLE, NoHost, ScriptedEngine, Step, ask, gateway_over

pytestmark = pytest.mark.anyio

UP = Health(live=True, ready=True, message="version 1, models loaded: 2")
DOWN = Health(live=False, ready=False, message="connection refused")


class Watched:
    """A pool with one engine, and what it told."""

    def __init__(self) -> None:
        self.told: list[Notice] = []
        self.pool = Pool(NoHost(), self.told.append)
        self.engine = ScriptedEngine("box")
        self.member = Member("box", Engine(kind="scripted"), self.engine)
        self.pool.members["box"] = self.member

    async def probe(self, health: Health) -> None:
        self.engine.state = health
        await self.pool.probe(self.member)


async def test_the_first_probe_tells_how_an_engine_is_and_the_next_only_what_changed() -> None:
    watched = Watched()
    for health in (UP, UP, DOWN, DOWN, UP):
        await watched.probe(health)
    assert watched.told == [
        Notice(name="engine.up", engine="box"),
        Notice(name="engine.down", engine="box", error="connection refused"),
        Notice(name="engine.up", engine="box"),
    ]


async def test_an_engine_that_a_request_found_away_is_told_to_be_down() -> None:
    watched = Watched()
    await watched.probe(UP)
    watched.member.lost("no route to host")
    await watched.probe(DOWN)
    assert [notice.name for notice in watched.told] == ["engine.up", "engine.down"]


async def test_an_engine_that_answers_but_takes_no_requests_says_why() -> None:
    watched = Watched()
    await watched.probe(Health(live=True, ready=False, message="it refused our api_key (401)"))
    assert watched.told == [Notice(name="engine.up", engine="box", error="it refused our api_key (401)")]


# --- what requests tell -----------------------------------------------------------------------------------------------

CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


USUAL = Rules()


def member(clock: Clock, rules: Rules = USUAL) -> Member:
    return Member("box", Engine(kind="scripted"), ScriptedEngine("box"), rules, clock)


def begun(box: Member, model: str = "m") -> Meter:
    meter = Meter(Candidate(engine="box", model=model, why=""), 1)
    box.begins(meter)
    return meter


def attempt(box: Member, *, worked: bool | None, model: str = "m", first_s: float | None = None) -> None:
    meter = begun(box, model)
    if worked:
        meter.first_token_s, meter.reported = first_s or 0.5, Usage(prompt=244, completion=1)
    box.ends(meter, worked=worked)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, True),
        (EngineFailed("broke off"), False),
        (EngineTimeout("no first token"), False),
        (EngineUnavailable("refused"), False),
        (EngineOverloaded("busy"), None),
        (LoadFailed("no room for this model"), None),
        (BadRequest("a caller's mistake"), None),
        (DeadlineExceeded("the caller's own time is over"), None),
        (GeneratorExit(), None),
    ],
)
def test_what_an_attempt_tells_of_its_engine(error: BaseException | None, verdict: bool | None) -> None:
    assert worked(error) is verdict


async def test_work_in_hand_is_counted_until_it_ends_however_it_ends() -> None:
    box = member(Clock())
    meters = [begun(box) for _ in range(3)]
    assert box.standing("m").outstanding == 3
    for meter, verdict in zip(meters, (True, False, None), strict=True):
        box.ends(meter, worked=verdict)
    assert box.standing("m").outstanding == 0


async def test_an_engine_that_keeps_failing_is_set_aside_though_its_probes_are_fine() -> None:
    clock = Clock()
    box = member(clock, Rules(failures=3, open_s=10.0))
    for _ in range(3):
        attempt(box, worked=False)
        box.found(UP)
    assert (box.standing().ready, box.standing().state) == (True, "open")
    clock.now_s += 10.0
    assert box.standing().state == "trial"


async def test_a_trial_has_succeeded_with_its_first_token() -> None:
    clock = Clock()
    box = member(clock, Rules(failures=1, open_s=10.0))
    attempt(box, worked=False)
    clock.now_s += 10.0
    trial = begun(box)
    assert box.standing().state == "trying"
    trial.first_token_s = 0.2
    assert box.standing().state == "closed"
    box.ends(trial, worked=False)  # it broke off later: one failure like any other
    assert box.standing().state == "open"


async def test_a_trial_that_breaks_off_after_its_first_token_opens_it_again_for_longer() -> None:
    clock = Clock()
    box = member(clock, Rules(failures=3, open_s=10.0))
    told: list[str] = []
    box.tell = told.append
    for _ in range(3):
        attempt(box, worked=False)
    for pause_s in (10.0, 20.0, 40.0):
        clock.now_s += pause_s - 0.1
        assert box.standing().state == "open"
        clock.now_s += 0.1
        trial = begun(box)
        trial.first_token_s = 0.2
        assert box.standing().state == "closed"
        box.ends(trial, worked=False)
        assert box.standing().state == "open"
    assert told == ["engine.set_aside", *["engine.taken_back", "engine.set_aside"] * 3]


async def test_after_a_whole_answer_a_trial_that_breaks_off_is_one_failure_like_any_other() -> None:
    clock = Clock()
    box = member(clock, Rules(failures=2, open_s=10.0))
    for _ in range(2):
        attempt(box, worked=False)
    clock.now_s += 10.0
    trial = begun(box)
    trial.first_token_s = 0.2
    assert box.standing().state == "closed"
    attempt(box, worked=True)
    box.ends(trial, worked=False)
    assert box.standing().state == "closed"


async def test_a_trial_that_was_given_up_before_its_first_token_leaves_the_place_to_the_next() -> None:
    clock = Clock()
    box = member(clock, Rules(failures=1, open_s=10.0))
    attempt(box, worked=False)
    clock.now_s += 10.0
    attempt(box, worked=None)
    assert box.standing().state == "trial"
    trial = begun(box)
    trial.first_token_s = 0.2
    box.ends(trial, worked=None)
    assert box.standing().state == "closed"


async def test_an_engine_that_asked_to_be_left_alone_is_until_then() -> None:
    clock = Clock()
    box = member(clock)
    box.not_before_s = clock.now_s + 5.0
    assert (box.standing().wait_s, box.standing().able) == (5.0, False)
    clock.now_s += 5.0
    assert (box.standing().wait_s, box.standing().able) == (0.0, True)


async def test_an_engine_that_a_probe_finds_again_takes_up_work_slowly() -> None:
    clock = Clock()
    box = member(clock, Rules(slow_start_s=30.0))
    box.lost("connection refused")
    box.found(UP)
    clock.now_s += 15.0
    assert box.standing().share == 0.5
    box.found(UP)
    clock.now_s += 15.1
    assert box.standing().share == 1.0


async def test_an_engine_that_only_requests_find_away_waits_out_its_pause() -> None:
    clock = Clock()
    box = member(clock, Rules(failures=1, open_s=10.0))
    attempt(box, worked=False)
    box.lost("it answered 503")
    box.found(UP)
    assert (box.standing().ready, box.standing().state) == (True, "open")
    box.found(DOWN)
    box.found(UP)
    assert box.standing().state == "trial"


async def test_each_model_of_an_engine_has_its_own_speed() -> None:
    box = member(Clock())
    for _ in range(5):
        attempt(box, worked=True, model="small", first_s=0.5)
        attempt(box, worked=True, model="large", first_s=5.0)
    small, large = box.standing("small").speed, box.standing("large").speed
    assert small is not None
    assert large is not None
    assert [small.prompt_s, large.prompt_s] == pytest.approx([0.001, 0.01])
    assert box.standing("other").speed is None


async def test_only_so_many_models_of_an_engine_are_remembered() -> None:
    box = member(Clock())
    for number in range(MOST_MODELS + 1):
        for _ in range(5):
            attempt(box, worked=True, model=str(number))
    assert box.standing("0").speed is None
    assert box.standing("1").speed is not None


async def test_new_rules_hold_for_engines_that_stay() -> None:
    pool = Pool(NoHost(), lambda notice: None)
    engines = {"box": Engine(kind="ollama", url="http://127.0.0.1:1")}
    pool.open(engines)
    kept = pool.members["box"]
    assert pool.open(engines, Rules(failures=1)) == []
    attempt(kept, worked=False)
    assert pool.members["box"] is kept
    assert kept.standing().state == "open"
    await pool.aclose()


async def test_a_target_whose_engine_is_gone_is_not_ready() -> None:
    pool = Pool(NoHost(), lambda notice: None)
    assert not pool.standing(Target(engine="gone", model="m")).ready


# --- a whole pool -----------------------------------------------------------------------------------------------------

SILENT: Sequence[Step] = ([ROLE], 3600.0)


def pool_of(*scripts: Sequence[Step]) -> tuple[Gateway, list[ScriptedEngine]]:
    """Equal engines, each with its script, and a short wait for the first token."""
    engines = [ScriptedEngine(f"box-{n}", script) for n, script in enumerate(scripts)]
    route = Route(targets=tuple(Target(engine=engine.name, model="m") for engine in engines))
    gateway, _ = gateway_over(*engines, route=route, policy=Policy(timeouts=Timeouts(first_token_s=0.02)))
    return gateway, engines


async def answered(gateway: Gateway, times: int) -> int:
    found = 0
    for _ in range(times):
        async with aclosing(gateway.generate(ask(), CALL)) as batches:
            found += HELLO in [event async for events in batches for event in events]
    return found


@pytest.mark.parametrize("broken", [SILENT, (EngineFailed("500"),), (EngineTimeout("half-open TCP"),)])
async def test_one_of_three_that_fails_is_set_aside_and_no_caller_notices(broken: Sequence[Step]) -> None:
    gateway, engines = pool_of(broken, ANSWER, ANSWER)
    assert await answered(gateway, 300) == 300
    assert len(engines[0].asked) == 5  # as many failures as set it aside
    assert gateway.pool.members["box-0"].standing().state == "open"


async def test_a_lone_engine_with_a_third_of_errors_keeps_its_traffic() -> None:
    engine = ScriptedEngine("box", (EngineFailed("500"),))
    gateway, _ = gateway_over(engine)
    for number in range(60):
        engine.play(ANSWER if number % 3 else (EngineFailed("500"),))
        try:
            await answered(gateway, 1)
        except DrivetrainError:
            continue
    assert len(engine.asked) >= 60


async def test_a_callers_mistakes_set_nobody_aside() -> None:
    gateway, engines = pool_of((BadRequest("no such parameter"),), (BadRequest("no such parameter"),))
    for _ in range(50):
        with pytest.raises(BadRequest):
            await answered(gateway, 1)
    assert {engine.name: gateway.pool.members[engine.name].standing().state for engine in engines} == {
        "box-0": "closed",
        "box-1": "closed",
    }
