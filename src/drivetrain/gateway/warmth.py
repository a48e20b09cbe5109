"""Whether an engine has been warmed since it came. Pure: probes tell what they found, `residence` that it is done."""

from msgspec.structs import replace

from drivetrain.types import Health

WARMING = "it is being warmed up"


class Warmth:
    """Of one engine instance. Each time that it comes, new or again, is a round."""

    def __init__(self) -> None:
        self.round = 0  # 0: it has not come yet
        self._warmed = 0  # the last round in which it was warmed
        self._there = False

    @property
    def cold(self) -> bool:
        return self._warmed != self.round

    def expect(self, health: Health, *, needed: bool) -> Health:
        """How an engine that no probe has seen yet shows: one that has to be warmed first takes no requests."""
        return replace(health, ready=False, message=WARMING) if needed and not self.round else health

    def judge(self, found: Health, *, needed: bool) -> Health:
        """What a probe found, as others are to see it."""
        if found.live and not self._there:
            self.round += 1
        self._there = found.live
        if not found.ready or not self.cold:
            return found
        if not needed:  # it takes requests, and is not taken out for what is wanted of it later
            self._warmed = self.round
            return found
        return replace(found, ready=False, message=WARMING)

    def warmed(self, round: int) -> None:
        """It has been, in this round; which counts for nothing if it has gone and come back since."""
        self._warmed = round
