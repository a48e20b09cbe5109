"""What stands between callers and servers in tests: a load balancer that looks which servers are ready, and a way that
takes its time, or leads nowhere."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

import httpx2

LOOK_S = 0.05


class Passing(ABC):
    """Takes TCP connections on loopback and passes on what comes on them. Whoever inherits says where to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @abstractmethod
    async def _target(self) -> str:
        """The URL that the next connection leads to, once it can be said."""

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            host, _, port = (await self._target()).rpartition("//")[2].rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, back))
                    group.create_task(self._pump(there, writer))
            finally:
                back.close()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.close()


class Way(Passing):
    """To one address. What passes takes `delay_s` in each direction; a `vanished` one takes connections and says
    nothing, as a network does that loses every packet."""

    def __init__(self, url: str, delay_s: float = 0.0) -> None:
        super().__init__()
        self._to = url
        self.delay_s = delay_s
        self._there = asyncio.Event()
        self._there.set()

    def vanish(self) -> None:
        self._there.clear()

    async def _target(self) -> str:
        await self._there.wait()
        return self._to

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In order, each piece so long after it came."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(pieces, writer))
            data = b"start"
            while data:
                try:
                    data = await reader.read(65_536)
                except OSError:
                    data = b""
                pieces.put_nowait((loop.time() + self.delay_s, data))

    async def _deliver(self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await pieces.get()
            if (rest_s := due_s - loop.time()) > 0:
                await asyncio.sleep(rest_s)
            await self._there.wait()
            if not data:
                break
            writer.write(data)
        with suppress(OSError):
            writer.write_eof()


@asynccontextmanager
async def way_to(url: str, delay_s: float = 0.0) -> AsyncGenerator[Way, None]:
    way = Way(url, delay_s)
    await way.open()
    try:
        yield way
    finally:
        await way.close()


class Balancer(Passing):
    """Takes each new connection to the next server that is ready, as its `/readyz` said last. Where each answers may
    change at any time."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self._patience_s = patience_s
        self.servers: dict[str, str] = {}  # by a name: where it answers
        self.ready: set[str] = set()  # names
        self._turn = 0

    async def run(self) -> None:
        """Look at each again and again. One that says so, or says nothing at all, is not ready; a slow one is."""
        async with (
            httpx2.AsyncClient(timeout=self._patience_s, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for name in self.servers:
                group.create_task(self._look(client, name))

    async def _look(self, client: httpx2.AsyncClient, name: str) -> None:
        while True:
            url = self.servers[name]
            try:
                ready = (await client.get(f"{url}/readyz")).status_code == 200
            except httpx2.HTTPError:
                ready = False
            if url == self.servers[name]:
                (self.ready.add if ready else self.ready.discard)(name)
            await asyncio.sleep(LOOK_S)

    async def _target(self) -> str:
        while not self.ready:
            await asyncio.sleep(LOOK_S)
        self._turn += 1
        names = sorted(self.ready & self.servers.keys())
        return self.servers[names[self._turn % len(names)]]


@asynccontextmanager
async def balanced(servers: Mapping[str, str], patience_s: float = 30.0) -> AsyncGenerator[Balancer, None]:
    """Over these servers, as soon as all of them are ready. One that says nothing for `patience_s` is not."""
    balancer = Balancer(patience_s)
    balancer.servers.update(servers)
    await balancer.open()
    looking = asyncio.create_task(balancer.run())
    try:
        async with asyncio.timeout(30):
            while balancer.ready != servers.keys():
                await asyncio.sleep(LOOK_S)
        yield balancer
    finally:
        looking.cancel()
        await balancer.close()
