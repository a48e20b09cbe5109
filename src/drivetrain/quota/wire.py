"""One connection to Redis that all calls share: they go out as they come, answers come in the same order, and each call
has a deadline. Whoever calls never waits longer, whatever the server or the network does."""

import asyncio
import hashlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files

import redis.asyncio as aioredis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

BACKOFF_S = (0.05, 1.0)  # between tries to connect: first, and at most
CONNECT_S = 2.0
SCRIPTS = ("beat", "board", "renew", "reserve", "seed", "settle")
SILENCE_S = 5.0  # after so long beyond a deadline without any answer the connection is taken for dead
STALL_TURNS = 6  # of the event loop after a deadline: what has arrived while it was busy with other things is in time

log = logging.getLogger("drivetrain.quota")


class Away(Exception):
    """No answer, or none in time."""


class Script:
    """A Lua script of this package."""

    def __init__(self, name: str) -> None:
        here = files("drivetrain.quota")
        self.text = (here / "counts.lua").read_text() + (here / f"{name}.lua").read_text()
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()  # as EVALSHA wants it


@cache
def script(name: str) -> Script:
    return Script(name)


class Call:
    """One script with its arguments. `late` gets an answer that nobody waits for any more."""

    __slots__ = ("answer", "argument", "keys", "late", "name", "sent", "text")

    def __init__(
        self, name: str, keys: Sequence[str], argument: bytes, late: Callable[[bytes], None] | None = None
    ) -> None:
        self.name = name
        self.keys = keys
        self.argument = argument
        self.late = late
        self.sent = False
        self.text = False  # the server does not know the script yet
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def packed(self) -> tuple[str | bytes | int, ...]:
        self.sent = True
        lua = script(self.name)
        known = ("EVAL", lua.text) if self.text else ("EVALSHA", lua.sha)
        return (*known, len(self.keys), *self.keys, self.argument)


class Wire:
    """Owns the connection while `run` runs. What is asked before it stands waits for it, as long as the deadline."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._pool = aioredis.ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=None,  # each call has its deadline
            socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
        )
        self._outbox: list[Call] = []
        self._pending: deque[Call] = deque()  # sent, and not answered
        self._wake = asyncio.Event()
        self._heard_s = 0.0  # the event loop's time at which something was answered, or asked while nothing was pending

    async def ask(
        self, name: str, keys: Sequence[str], argument: bytes, late: Callable[[bytes], None] | None = None
    ) -> bytes:
        """The answer of a script. Raises `Away`."""
        return await self.answered(Call(name, keys, argument, late))

    async def answered(self, call: Call) -> bytes:
        """Send it, and wait as long as the deadline. Raises `Away`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.deadline_s, _expire, loop, call.answer, STALL_TURNS)
        self.send(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            if call.late is not None and not call.answer.cancelled() and call.answer.exception() is None:
                call.late(call.answer.result())
            raise
        finally:
            timer.cancel()

    def send(self, call: Call) -> None:
        """Without waiting: its answer is set when it comes."""
        self._outbox.append(call)
        self._wake.set()

    async def last(self, calls: Sequence[Call]) -> None:
        """On a connection of their own, after `run` has ended."""
        connection = self._connection()
        try:
            await connection.connect()
            for call in calls:
                call.text = True
                await connection.send_packed_command(connection.pack_command(*call.packed()), check_health=False)
                _deliver(call, await connection.read_response(disable_decoding=True))
        except (RedisError, OSError) as error:
            log.debug("shared state: %s", error)
        finally:
            await connection.disconnect(nowait=True)

    async def run(self, keep: Callable[[], Awaitable[None]], lost: Callable[[], object]) -> None:
        """Connect, and again whenever the connection breaks, which `lost` is told; `keep` runs along with each. Until
        cancelled."""
        wait_s = BACKOFF_S[0]
        while True:
            connection = self._connection()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await connection.connect()
                    await self._load(connection)
                wait_s = BACKOFF_S[0]
                await self._serve(connection, keep)
            except MovedError as error:
                self._pool.connection_kwargs.update(host=error.host, port=error.port)
            except (RedisError, OSError, TimeoutError) as error:
                log.debug("shared state: %s", error)
                lost()
            finally:
                self._break()
                await connection.disconnect(nowait=True)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, BACKOFF_S[1])

    async def _load(self, connection: AbstractConnection) -> None:
        """Scripts the server does not know would overtake each other."""
        texts = [script(name).text for name in SCRIPTS]
        await connection.send_packed_command(connection.pack_commands(("SCRIPT", "LOAD", text) for text in texts))
        for _ in texts:
            await connection.read_response()

    def _connection(self) -> AbstractConnection:
        made: AbstractConnection = self._pool.make_connection()
        return made

    async def _serve(self, connection: AbstractConnection, keep: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(connection))
                tasks.create_task(self._read(connection))
                tasks.create_task(self._give_up_silence())
                tasks.create_task(_until_done(keep))
        except ExceptionGroup as group:
            broken, defects = group.split((RedisError, OSError))
            if defects is not None or broken is None:
                raise
            first = broken.exceptions[0]
        raise first

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            calls = [call for call in self._outbox if not call.answer.done()]
            self._outbox.clear()
            if calls:
                if not self._pending:
                    self._heard_s = asyncio.get_running_loop().time()
                self._pending.extend(calls)
                packed = connection.pack_commands([call.packed() for call in calls])
                await connection.send_packed_command(packed, check_health=False)

    async def _read(self, connection: AbstractConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                answer = await connection.read_response(disable_decoding=True, timeout=math.inf)
                self._heard_s = loop.time()
            except NoScriptError:
                self._with_its_text(self._pending.popleft())
            except MovedError:
                raise
            except ResponseError as error:
                _fail(self._pending.popleft(), f"the shared state answered {error}")
            else:
                _deliver(self._pending.popleft(), answer)

    async def _give_up_silence(self) -> None:
        """A network that loses every packet breaks no connection."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENCE_S / 4)
            if self._pending and loop.time() - self._heard_s > SILENCE_S + self.deadline_s:
                raise Broken("the shared state does not answer")

    def _with_its_text(self, call: Call) -> None:
        call.text = True
        self.send(call)

    def _break(self) -> None:
        calls = [*self._pending, *self._outbox]
        self._pending.clear()
        self._outbox.clear()
        for call in calls:
            _fail(call, "no connection to the shared state")


async def _until_done(keep: Callable[[], Awaitable[None]]) -> None:
    await keep()


def _deliver(call: Call, answer: bytes) -> None:
    if not call.answer.done():
        call.answer.set_result(answer)
    elif call.late is not None:
        call.late(answer)


def _fail(call: Call, why: str) -> None:
    if not call.answer.done():
        call.answer.set_exception(Away(why))


def _expire(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[bytes], turns: int) -> None:
    if answer.done():
        return
    if turns:
        loop.call_soon(_expire, loop, answer, turns - 1)
    else:
        answer.set_exception(Away("no answer of the shared state in time"))
