"""What a configuration wants of its models, wherever they are: in memory, for ever, with prompts read. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.config.schema import Policy, Target
from drivetrain.gateway.catalog import Entry
from drivetrain.policies.access import plain
from drivetrain.types import Value

FOR_EVER_S = -1.0


class Wish(Value, frozen=True, kw_only=True):
    """What one model at one engine is to have."""

    name: str  # public
    target: Target
    policy: Policy
    settings: Mapping[str, Any] = {}  # load time
    prompts: tuple[str, ...] = ()  # to be read
    pinned: bool = False
    preloaded: bool = False

    @property
    def first(self) -> bool:
        """It comes before the engine takes requests."""
        return self.policy.warm.load or bool(self.policy.warm.prompts)

    @property
    def keep_alive_s(self) -> float | None:
        return FOR_EVER_S if self.pinned else self.policy.keep_alive_s


def wishes(entries: Sequence[Entry], *, pinned: Sequence[Entry], preloaded: Sequence[Entry]) -> Sequence[Wish]:
    """What is wanted: of pinned models first, then of those that are loaded, in this order, then of those of `entries`
    that are warmed. A model is pinned under all names that lead to it."""
    pins = {place(target) for entry in pinned for target in entry.targets}
    loads = {place(target) for entry in preloaded for target in entry.targets}
    found: dict[tuple[Any, ...], Wish] = {}
    for entry in (*pinned, *preloaded, *entries):
        for target in entry.targets:
            where = place(target)
            wish = _wish(entry, target, pinned=where in pins, preloaded=where in loads)
            if target.weight and (wish.pinned or wish.preloaded or wish.first):
                found.setdefault((entry.name, *where, wish.prompts), wish)
    return tuple(found.values())


def _wish(entry: Entry, target: Target, *, pinned: bool, preloaded: bool) -> Wish:
    """A policy that has prompts read has the one read, too, that requests get which have none of their own."""
    policy, prompts, own = entry.policy, entry.policy.warm.prompts, entry.prompt
    if prompts and own is not None and "{" not in own.text and own.text not in prompts:
        prompts = (*prompts, own.text)
    settings = {**policy.settings, **entry.settings}
    return Wish(
        name=entry.name,
        target=target,
        policy=policy,
        settings=settings,
        prompts=prompts,
        pinned=pinned,
        preloaded=preloaded,
    )


def place(target: Target) -> tuple[str, str]:
    """Where a model is, by whatever spelling."""
    return target.engine, plain(target.model)
