"""The targets of a model in the groups that are asked one after the other, worked out once and kept."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from drivetrain.config.schema import Target
from drivetrain.router.ring import Ring
from drivetrain.router.wish import Wish


class Group:
    """Targets among which nothing but the moment decides. `near` ones are of the region that was asked for."""

    __slots__ = ("_ring", "bounds", "far", "near", "preferred", "targets", "tier")

    def __init__(
        self, targets: Sequence[Target], *, preferred: bool, near: "Group | None" = None, far: "Group | None" = None
    ) -> None:
        self.targets = targets
        self.tier = targets[0].tier
        self.preferred = preferred
        self.bounds = list(accumulate(target.weight for target in targets))
        self.near, self.far = near, far  # both, or neither
        self._ring: Ring | None = None

    @property
    def ring(self) -> Ring:
        if self._ring is None:
            self._ring = Ring(self.targets)
        return self._ring


class Roster:
    """Of targets that never change, with the regions of their engines."""

    __slots__ = ("_groups", "_names", "_regions", "targets")

    def __init__(self, targets: Sequence[Target], region: Callable[[Target], str]) -> None:
        self.targets = targets
        self._regions = {id(target): region(target) for target in targets}
        self._names = frozenset(self._regions.values())
        self._groups: dict[tuple[tuple[str, ...], int | None, str], Sequence[Group]] = {}

    def near(self, target: Target, region: str) -> bool:
        return not region or self._regions.get(id(target)) == region

    def groups(self, wish: Wish, region: str) -> Sequence[Group]:
        """Those in rotation, the ones to be asked first in front."""
        if region not in self._names:
            region = ""  # nobody is near
        key = (wish.engines, wish.tier, region)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._grouped(wish, region)
        return found

    def _grouped(self, wish: Wish, region: str) -> Sequence[Group]:
        ranked: dict[tuple[bool, int], list[Target]] = {}
        for target in self.targets:
            if target.weight:
                ranked.setdefault(rank(target, wish), []).append(target)
        return tuple(self._group(ranked[key], region, preferred=not key[0]) for key in sorted(ranked))

    def _group(self, targets: Sequence[Target], region: str, *, preferred: bool) -> Group:
        near = [target for target in targets if self.near(target, region)]
        if len(near) in (0, len(targets)):
            return Group(targets, preferred=preferred)
        far = [target for target in targets if not self.near(target, region)]
        return Group(
            targets,
            preferred=preferred,
            near=Group(near, preferred=preferred),
            far=Group(far, preferred=preferred),
        )


def rank(target: Target, wish: Wish) -> tuple[bool, int]:
    """Less is asked earlier: whether no rule prefers it, and its tier."""
    return not wish.prefers(target), target.tier
