"""A vLLM server that sleeps while nobody needs it, and is woken before a request: asked while asleep, it would hang.

It has to be started with `--enable-sleep-mode` and VLLM_SERVER_DEV_MODE=1. Several of us may share it: before it is put
to sleep, its own metrics have to say that nobody else has work there, or had since we last looked.
"""

import asyncio
import logging
from types import TracebackType
from typing import Final

import msgspec

from drivetrain.dialects.openai import decode_error
from drivetrain.engines import gauges
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import call, look
from drivetrain.errors import DrivetrainError, EngineFailed, EngineUnavailable

STEP_S: Final = 0.5  # how often a caller who waits hears that he is not forgotten
POLL_S: Final = 0.1
WAKE_S: Final = 30.0  # how long it may take to wake once it has said that it will; then it is told again
LEAST_S: Final = 0.5  # between two looks whether it may sleep, however soon it is to
# By level: 1 keeps the weights in RAM, 2 keeps nothing and reads them again.
WAKE: Final = {
    1: (("/wake_up", b""),),
    2: (
        ("/wake_up?tags=weights", b""),
        ("/collective_rpc", b'{"method":"reload_weights"}'),
        ("/wake_up?tags=kv_cache", b""),
    ),
}

log = logging.getLogger("drivetrain.engines")


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class Naps:
    """Owns whether the server is awake. `need` it for every request."""

    def __init__(self, upstream: Upstream, *, level: int, idle_s: float) -> None:
        self.level = level
        self._upstream = upstream
        self._usual_s = idle_s
        self._idle_s = idle_s  # as the last request wished
        self._turn = asyncio.Lock()  # who puts it to sleep, or wakes it, does so alone
        self._waking: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._free = asyncio.Event()
        self._free.set()
        self._told = False  # that it cannot sleep
        self._done: float | None = None  # requests that the server had answered when we last looked
        self.needed = 0  # requests of ours that need it
        self.served = 0  # those that have found it awake: it does not fall asleep under them

    def need(self, keep_alive_s: float | None = None) -> "Need":
        """A claim on the server. It may sleep `keep_alive_s` after the last one; never, if that is negative."""
        return Need(self, self._usual_s if keep_alive_s is None else keep_alive_s)

    async def asleep(self) -> bool:
        """A server that was not started for this never is. Raises an `EngineError` if it cannot be asked."""
        body = await look(self._upstream, "/is_sleeping")
        if body is None:
            if not self._told:
                log.warning(
                    "%s cannot sleep: it needs --enable-sleep-mode, VLLM_SERVER_DEV_MODE=1", self._upstream.label
                )
            self._told = True
            return False
        self._told = False
        try:
            return msgspec.json.decode(body, type=_Sleeping).is_sleeping
        except msgspec.DecodeError as error:
            raise EngineFailed(f"it does not tell whether it sleeps: {error}") from error

    async def rest(self) -> None:
        """Put it to sleep as soon as nobody of us needs it."""
        while True:
            await self._free.wait()
            async with self._turn:
                if not self.needed:
                    return await self._sleep()

    async def aclose(self) -> None:
        self._cancel_timer()
        tasks = [task for task in (self._waking, self._resting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what a claim does --------------------------------------------------------------------------------------------

    def enter(self) -> None:
        self.needed += 1
        self._free.clear()
        self._cancel_timer()

    def leave(self, keep_alive_s: float) -> None:
        self.needed -= 1
        self._idle_s = keep_alive_s
        if not self.needed:
            self._free.set()
            self._done = None
            self._rest_later()

    async def woken(self) -> bool:
        """True once it is awake, False after a moment: ask again. Raises why it cannot be woken."""
        if self.served:
            return True
        waking = self._waking
        if waking is None or waking.done():
            waking = self._waking = asyncio.create_task(self._wake(), name="wake a server")
            waking.add_done_callback(_seen)
        await asyncio.wait({waking}, timeout=STEP_S)
        if not waking.done():
            return False
        if waking.cancelled():
            raise EngineUnavailable("the engine is closed")
        if isinstance(error := waking.exception(), DrivetrainError):
            raise type(error)(error.message, retry_after_s=error.retry_after_s)
        waking.result()
        return True

    # --- the server ---------------------------------------------------------------------------------------------------

    async def _wake(self) -> None:
        """As often as it takes: another of us may put it to sleep at this very moment."""
        async with self._turn:
            if not (asleep := await self.asleep()):
                return
            while asleep:
                for path, body in WAKE[self.level]:
                    await call(self._upstream, path, body, decode_error)
                asleep = await self._still_asleep()
            log.info("%s is awake", self._upstream.label)

    async def _still_asleep(self) -> bool:
        """Some versions answer before it is done."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WAKE_S
        while (asleep := await self.asleep()) and loop.time() < until_s:  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)
        return asleep

    def _rest_later(self, least_s: float = 0.0) -> None:
        """Two looks make an idle time: what the server did in between shows in its count."""
        self._cancel_timer()
        if self._idle_s >= 0:
            pause_s = max(self._idle_s / 2, least_s)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._begin_rest)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_rest(self) -> None:
        if self._resting is None or self._resting.done():
            self._resting = asyncio.create_task(self._rest_if_unused(), name="put a server to sleep")

    async def _rest_if_unused(self) -> None:
        async with self._turn:
            try:
                unused = await self._unused()
                if self.needed:
                    return
                if unused:
                    return await self._sleep()
            except DrivetrainError as error:
                log.warning("%s was not put to sleep: %s", self._upstream.label, error.message)
            self._rest_later(LEAST_S)

    async def _unused(self) -> bool:
        """Nobody has work there, and nobody had any since the last look."""
        page = await look(self._upstream, "/metrics") or b""  # without it, what we know has to do
        found, before = gauges.read(page), self._done
        self._done = found.done or 0.0
        return not found.running and not found.waiting and before == self._done

    async def _sleep(self) -> None:
        """Requests that came by another way meanwhile are finished first."""
        if not await self.asleep() and not self._told:
            await call(self._upstream, f"/sleep?level={self.level}&mode=wait", b"", decode_error)
            log.info("%s sleeps", self._upstream.label)


def _seen(waking: asyncio.Task[None]) -> None:
    """What went wrong is told to those who wait; if they have all gone, to nobody."""
    if not waking.cancelled():
        waking.exception()


class Need:
    """Use as a context around a request: `step` until it says that the server is awake, then ask it."""

    def __init__(self, naps: Naps, keep_alive_s: float) -> None:
        self._naps = naps
        self._keep_alive_s = keep_alive_s
        self._served = False

    def __enter__(self) -> "Need":
        self._naps.enter()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._served:
            self._naps.served -= 1
        self._naps.leave(self._keep_alive_s)

    async def step(self) -> bool:
        """As `Naps.woken`."""
        if not self._served and await self._naps.woken():
            self._served = True
            self._naps.served += 1
        return self._served

    async def awake(self) -> None:
        while not await self.step():
            pass
