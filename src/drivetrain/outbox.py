"""What connections have to say in one turn of the event loop, said together.

A write wakes whoever reads it, often on a processor that has gone to sleep meanwhile, and waits until that is under
way. Of several in a row only the first has to. Where few requests are under way there is nobody to go with: what they
write goes at once.
"""

from asyncio import AbstractEventLoop, WriteTransport
from typing import Final

CROWD: Final = 6  # requests under way, from which on it is worth while to wait for each other
TOGETHER: Final = 4  # more would make the first wait for the work of too many others


class Outbox:
    """Holds writes until the end of the turn at most. Whoever closes a transport flushes first, or they are lost."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[WriteTransport, bytes]] = []

    def post(self, loop: AbstractEventLoop, transport: WriteTransport, data: bytes, *, under_way: int) -> None:
        """Send it at the end of this turn at the latest, after all that was posted before.

        `under_way`: how many requests are.
        """
        waiting = self._waiting
        if not waiting:
            if under_way < CROWD:
                if not transport.is_closing():
                    transport.write(data)
                return
            loop.call_soon(self.flush)
        waiting.append((transport, data))
        if len(waiting) == TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Send it all now, but for what belongs to a transport that has been closed."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)

    def holds(self, transport: WriteTransport) -> bool:
        """Whether something of it is still to be sent."""
        return any(held is transport for held, _ in self._waiting)
