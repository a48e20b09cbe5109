"""The targets of a model in the groups that are asked one after the other, worked out once and kept."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from drivetrain.config.schema import Target
from drivetrain.router.fit import unable
from drivetrain.router.ring import Ring
from drivetrain.router.standing import ORDINARY, Facts, Traits
from drivetrain.router.wish import Wish

MOST = 64  # groups of those who can answer that are remembered: one for each kind of request

_Needs = tuple[
    bool, bool, int
]  # tools, images, and how many of the contexts are too short; as far as somebody lacks it


class Group:
    """Targets among which nothing but the moment decides, at least one. Where a region was asked for that only some
    are of, those are `near`; if others can answer than could, one part may be gone."""

    __slots__ = ("_ring", "bounds", "far", "near", "targets", "those", "whole")

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        near: "Group | None" = None,
        far: "Group | None" = None,
        whole: "Group | None" = None,
    ) -> None:
        """`whole`: the group that these are the able ones of."""
        self.targets = targets
        self.bounds = list(accumulate(float(target.weight) for target in targets))  # whole numbers, all of them
        self.near, self.far = near, far
        self.whole = whole or self
        self.those = frozenset(map(id, targets)) if whole is not None else None  # None: everybody of it
        self._ring: Ring | None = None

    @property
    def ring(self) -> Ring:
        if self._ring is None:
            self._ring = Ring(self.targets)
        return self._ring

    def of(self, able: Callable[[Target], bool]) -> "Group | None":
        """The able ones of it; itself, if that is all of them."""
        found = [target for target in self.targets if able(target)]
        if len(found) in (0, len(self.targets)):
            return self if found else None
        near = self.near.of(able) if self.near is not None else None
        far = self.far.of(able) if self.far is not None else None
        return Group(found, near=near, far=far, whole=self.whole)


class Roster:
    """Of targets that never change. What their engines can do, and which of them are up, holds until it is `renewed`;
    where their engines are, for ever."""

    __slots__ = (
        "_able",
        "_blind",
        "_contexts",
        "_groups",
        "_look",
        "_names",
        "_toolless",
        "_up",
        "note",
        "targets",
        "traits",
        "version",
    )

    def __init__(
        self,
        targets: Sequence[Target],
        traits: Callable[[Target], Traits] = lambda target: ORDINARY,
        up: Callable[[Target], bool] = lambda target: True,
        note: Callable[[Target], str] = lambda target: "",
    ) -> None:
        """`up`: whether an engine may be ready; one that is not is left out at once, and one that is gets looked at.
        `note`: what else the record has to say of an engine, in words."""
        self.targets = targets
        self._look = traits
        self._up = up
        self.note = note
        self._groups: dict[tuple[tuple[str, ...], int | None, str], Sequence[Group]] = {}
        self.renew()
        self._names = frozenset(each.region for each in self.traits.values())

    def renew(self, version: int = 0) -> None:
        """Something of the engines has changed; `version` tells one state of them from another."""
        self.traits = {id(target): self._look(target) for target in self.targets}
        known = self.traits.values()
        self._toolless = any(each.capabilities and "tools" not in each.capabilities for each in known)
        self._blind = any(each.capabilities and "vision" not in each.capabilities for each in known)
        self._contexts = sorted({each.context for each in known if each.context is not None})
        self._able: dict[tuple[tuple[str, ...], int | None, str, _Needs], Group | None] = {}
        self.version = version

    def near(self, target: Target, region: str) -> bool:
        return not region or self.traits[id(target)].region == region

    def groups(self, wish: Wish, region: str) -> Sequence[Group]:
        """Those in rotation, the ones to be asked first in front."""
        key = (wish.engines, wish.tier, self._known(region))
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._grouped(wish, key[2])
        return found

    def _known(self, region: str) -> str:
        """Where nobody is near, nobody is far either."""
        return region if region in self._names else ""

    def first(self, wish: Wish, facts: Facts) -> Group | None:
        """The group to be asked first, without those who are not up or cannot do what is asked; None: all are."""
        needs = (
            self._toolless and facts.tools,
            self._blind and facts.images,
            bisect_left(self._contexts, facts.prompt_tokens + facts.limit),
        )
        key = (wish.engines, wish.tier, self._known(facts.region), needs)
        try:
            return self._able[key]
        except KeyError:
            if len(self._able) >= MOST:
                self._able.clear()
            found = self._able[key] = self._found(wish, facts)
            return found

    def _found(self, wish: Wish, facts: Facts) -> Group | None:
        def able(target: Target) -> bool:
            return self._up(target) and not unable(facts, self.traits[id(target)])

        return next((found for group in self.groups(wish, facts.region) if (found := group.of(able))), None)

    def _grouped(self, wish: Wish, region: str) -> Sequence[Group]:
        ranked: dict[tuple[bool, int], list[Target]] = {}
        for target in self.targets:
            if target.weight:
                ranked.setdefault(rank(target, wish), []).append(target)
        return tuple(self._group(ranked[key], region) for key in sorted(ranked))

    def _group(self, targets: Sequence[Target], region: str) -> Group:
        near = [target for target in targets if self.near(target, region)]
        if len(near) in (0, len(targets)):
            return Group(targets)
        far = [target for target in targets if not self.near(target, region)]
        return Group(targets, near=Group(near), far=Group(far))


def rank(target: Target, wish: Wish) -> tuple[bool, int]:
    """Less is asked earlier: whether no rule prefers it, and its tier."""
    return not wish.prefers(target), target.tier
