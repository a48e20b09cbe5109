"""What a policy wants of a choice, for a request: its goal, who goes first, what is kept together. Pure."""

from typing import Literal

from drivetrain.config.schema import Goal, Routing, Target, When
from drivetrain.router.standing import Facts
from drivetrain.types import Value


class Wish(Value, frozen=True, kw_only=True):
    goal: Goal = "balanced"
    engines: tuple[str, ...] = ()  # whose targets go first
    tier: int | None = None  # whose targets go first
    rule: int = 0  # the one that says so, counted from 1
    affinity: Literal["none", "prefix", "session"] = "none"
    load_factor: float = 1.25  # times the mean load, that affinity may bring an engine to
    spill_factor: float = 2.0  # another region goes first if it is so many times sooner

    def prefers(self, target: Target) -> bool:
        """An engine that was discovered (`gpu@10.0.0.5:8000`) is meant by the name of all its like, too."""
        if self.tier is not None:
            return target.tier == self.tier
        engines = self.engines
        return not engines or target.engine in engines or target.engine.partition("@")[0] in engines


NOTHING = Wish()


def wish(routing: Routing, facts: Facts) -> Wish:
    """By the first rule that fits the request."""
    for number, rule in enumerate(routing.rules, 1):
        if fits(rule.when, facts):
            return Wish(
                goal=rule.goal or routing.goal,
                engines=rule.engines,
                tier=rule.tier,
                rule=number,
                affinity=routing.affinity,
                load_factor=routing.load_factor,
                spill_factor=routing.spill_factor,
            )
    return Wish(
        goal=routing.goal,
        affinity=routing.affinity,
        load_factor=routing.load_factor,
        spill_factor=routing.spill_factor,
    )


def fits(when: When, facts: Facts) -> bool:
    """Whether all that is said of a request is true of this one."""
    over, under, longest, deadline_s = (
        when.prompt_tokens_over,
        when.prompt_tokens_under,
        when.output_tokens_over,
        when.deadline_under_s,
    )
    return (
        (over is None or facts.prompt_tokens > over)
        and (under is None or facts.prompt_tokens < under)
        and (longest is None or facts.limit > longest)
        and (when.tools is None or facts.tools is when.tools)
        and (when.images is None or facts.images is when.images)
        and (when.schema is None or facts.schema is when.schema)
        and (not when.priority or facts.priority in when.priority)
        and (deadline_s is None or (facts.deadline_s is not None and facts.deadline_s < deadline_s))
    )
