"""How a step of a request's life is told to people, in a line."""

from collections.abc import Mapping
from typing import Any

from drivetrain.cli.amounts import dollars
from drivetrain.cli.moments import brief
from drivetrain.store.timeline import Step

COSTLY = ("prompt_tokens", "completion_tokens", "cost_micro_usd")
TRIED = ("attempt", "shadow")


def line(step: Step) -> tuple[str, str, str]:
    """When, what, and what there is to say of it."""
    name = f"{step.name} {step.attempt}" if step.name in TRIED else step.name
    return brief(step.at_s), name, _words(step)


def _words(step: Step) -> str:
    facts = step.facts
    match step.name:
        case "received":
            return f"{facts['dialect']}, model {facts['model']}"
        case "queued":
            return f"waited {brief(facts['queued_s'])}"
        case "reserved":
            return dollars(facts["reserved_micro_usd"])
        case "attempt" | "shadow":
            place = f" in {facts['region']}" if "region" in facts else ""
            arm = f", {facts['rollout']}" if "rollout" in facts else ""
            prompt = f", prompt {facts['prompt_version']}" if "prompt_version" in facts else ""
            why = f": {facts['why']}" if "why" in facts else ""
            version = f" ({facts['model_version']})" if "model_version" in facts else ""
            return f"{facts['engine']}{place}, model {facts['engine_model']}{version}{arm}{prompt}{why}"
        case "settled":
            return dollars(facts["cost_micro_usd"])
        case _:
            return _ending(facts)


def _ending(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    said = [f"{facts['status']} {facts['why']}"] if "why" in facts else [str(facts["outcome"])]
    if any(facts.get(name) for name in COSTLY):  # of what failed there is usually nothing
        said += [_tokens(facts), dollars(facts["cost_micro_usd"])]
        said += [] if facts["price_id"] else ["no price"]
    return ", ".join(said)


def _tokens(facts: Mapping[str, Any]) -> str:
    cached = f" ({facts['cached_tokens']} cached)" if facts["cached_tokens"] else ""
    reasoning = f" ({facts['reasoning_tokens']} reasoning)" if facts["reasoning_tokens"] else ""
    about = "about " if facts["estimated"] else ""
    return f"{about}{facts['prompt_tokens']}{cached} + {facts['completion_tokens']}{reasoning} tokens"
