"""What a worker does itself and what it hands to the owner; and how the owner's answer comes through."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.config.schema import Engine, Limits, Policy, Target
from drivetrain.gateway import Gateway
from drivetrain.gateway.pool import Member
from drivetrain.rollouts.plan import Arm, Plan, Rollout, Shadow, Stage
from drivetrain.server.exchange import Exchange
from drivetrain.server.relay import Relay
from drivetrain.server.routing import Routes
from tests.fakes.engine import ScriptedEngine, gateway_over, route_to
from tests.unit.server.tape import asking

pytestmark = pytest.mark.anyio
FAR, NEAR = ScriptedEngine("far"), ScriptedEngine("near")


class Worker(Relay):
    """Notes what it would have forwarded."""

    async def forward(self, exchange: Exchange) -> None:
        await exchange.respond(200, b"owner")


def gateway(**how: Any) -> Gateway:
    """With two engines, of which `near` is embedded."""
    made, _ = gateway_over(FAR, NEAR, **how)
    made.pool.members["near"] = Member("near", Engine(kind="llamacpp"), NEAR)
    return made


async def who_answers(model: str, behind: Gateway, *, counts: bool = False) -> str:
    async def ours(exchange: Exchange) -> None:
        await exchange.respond(200, b"worker")

    routes = Routes()
    routes.add("POST", "/v1/chat/completions", ours, scope="inference")
    relay = Worker(Path("/nowhere"), behind, counts=counts)
    table = relay.table(routes, frozenset({"/v1/chat/completions"}))
    exchange, tape = asking("POST", "/v1/chat/completions", body=msgspec.json.encode({"model": model}))
    exchange.max_body_bytes = 1000
    route = table.find("POST", exchange.path)
    assert route is not None
    await route.handler(exchange)
    await relay.aclose()
    return tape.body.decode()


async def test_what_may_come_to_the_embedded_engine_is_the_owners() -> None:
    routes = {
        "far": route_to(FAR),
        "near": route_to(NEAR),
        "both": route_to(FAR, NEAR),
        "spared": route_to(FAR, fallbacks=["near"]),
        "gone": route_to(FAR, fallbacks=["nobody"]),
    }
    behind = gateway(routes=routes)
    answered = {model: await who_answers(model, behind) for model in (*routes, "unknown")}
    assert answered == {"far": "worker"} | dict.fromkeys(("near", "both", "spared", "gone", "unknown"), "owner")


async def test_what_an_arm_of_a_rollout_may_bring_to_the_embedded_engine_is_the_owners() -> None:
    new = Arm(name="new", targets=(Target(engine="near", model="m"),))
    rollout = Rollout(id="R", model="far", arms=(Arm(name="baseline"), new), stages=(Stage(percent=1.0),))
    behind = gateway(routes={"far": route_to(FAR)}, plan=lambda: Plan(rollouts={"far": rollout}))
    assert await who_answers("far", behind) == "owner"


@pytest.mark.parametrize(("counts", "answered"), [(False, "owner"), (True, "worker")])
async def test_what_is_counted_is_the_owners_unless_all_count_in_one_place(counts: bool, answered: str) -> None:
    behind = gateway(routes={"far": route_to(FAR)}, policy=Policy(limits=Limits(concurrency=4)))
    assert await who_answers("far", behind, counts=counts) == answered


@pytest.mark.parametrize(("counts", "answered"), [(False, "owner"), (True, "worker")])
async def test_so_is_what_copies_are_made_of(counts: bool, answered: str) -> None:
    """They have a budget, and so many at once."""
    arms = (Arm(name="baseline"), Arm(name="new"))
    stages = (Stage(percent=0.0, shadow=True), Stage(percent=100.0))
    rollout = Rollout(id="R", model="far", arms=arms, stages=stages, shadow=Shadow())
    behind = gateway(routes={"far": route_to(FAR)}, plan=lambda: Plan(rollouts={"far": rollout}))
    assert await who_answers("far", behind, counts=counts) == answered


async def test_the_owners_headers_come_through_once() -> None:
    exchange, tape = asking("GET", "/v1/models", {b"origin": b"http://localhost"})
    exchange.extra.append((b"access-control-allow-origin", b"http://localhost"))
    theirs = [(b"content-type", b"text/plain"), (b"content-length", b"2"), *exchange.extra]
    await exchange.relay(200, theirs)
    await exchange.send_body(b"ok", more=False)
    assert tape.written.count(b"access-control-allow-origin: http://localhost\r\n") == 1
    assert tape.body == b"ok"
