"""What a sink's far end has to offer, and how it answers."""

from collections.abc import Mapping
from typing import Protocol

from drivetrain.sinks.batches import Batch
from drivetrain.types import Value


class Taken(Value, frozen=True, kw_only=True):
    """The batch is out, now or already before. `place`: where the next one goes."""

    place: str = ""


class Moved(Value, frozen=True, kw_only=True):
    """The batch is not out, and its place takes no more: to be sent again to another `place`."""

    place: str


class Refused(Value, frozen=True, kw_only=True):
    """None of the batch is out, and rows in it never will be: seq → why. Without a seq: it was not told which rows."""

    rows: Mapping[int, str] = {}
    why: str = ""


Answer = Taken | Moved | Refused


class Target(Protocol):
    """One sink's far end. What may be better later is raised, as `DrivetrainError` or `OSError`, and tried again."""

    async def prepare(self, place: str) -> str:
        """Be ready to take a batch: where it is to go. `place` is where the last one went, "" for the first.

        Called before every batch that is new, never between two tries of one.
        """

    async def send(self, batch: Batch) -> Answer:
        """Take a batch. It may be one that was taken before: then it is to be recognised, as well as the target can."""

    async def aclose(self) -> None:
        """Let go of connections."""
