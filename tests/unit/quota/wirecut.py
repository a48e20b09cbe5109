"""A way to Redis that a test can make slow, or cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Way:
    """A TCP proxy on loopback."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.delay_s = 0.0  # of what the server says
        self._carrying = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Break what is connected, and let nobody connect."""
        assert self._server is not None
        self._server.close()
        for _ in range(10):  # what was just accepted is connected soon
            await asyncio.sleep(0)
        while self._carrying:
            self._abort()
            await asyncio.sleep(0)
        self._abort()
        await asyncio.sleep(0)

    def _abort(self) -> None:
        while self._writers:
            self._writers.pop().transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._carrying += 1
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(back)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, back, slow=False))
                tasks.create_task(self._pump(there, writer, slow=True))
        except OSError:
            writer.close()
        finally:
            self._carrying -= 1

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool) -> None:
        loop = asyncio.get_running_loop()
        due_s = 0.0  # nothing overtakes what was said before
        with suppress(OSError):
            while data := await reader.read(65_536):
                due_s = max(due_s + 1e-6, loop.time() + (self.delay_s if slow else 0.0))
                loop.call_at(due_s, writer.write, data)
        loop.call_at(due_s + 1e-6, writer.close)


@asynccontextmanager
async def way_to(port: int) -> AsyncIterator[Way]:
    way = Way(port)
    await way.open()
    try:
        yield way
    finally:
        await way.cut()
