"""The models in memory: loaded on demand, shared, kept alive, evicted, restarted. Owns every worker process.

Each model has one owner task, from the wish to load it until its memory is free: only that task starts and stops its
worker. Requests take a lease, and wait for the owner. Nothing is decided on what was read before an `await`.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from drivetrain.engines import Host
from drivetrain.engines._http import Upstream
from drivetrain.engines.expertstream import native
from drivetrain.engines.llamacpp import settings
from drivetrain.engines.llamacpp.flow import Flow
from drivetrain.engines.llamacpp.process import Worker
from drivetrain.engines.llamacpp.resident import Resident, Running
from drivetrain.engines.llamacpp.shells import Shells
from drivetrain.engines.llamacpp.sockets import PAGE, Sockets
from drivetrain.engines.llamacpp.ways import Limits, Way, inspect, tuned, ways
from drivetrain.errors import BadRequest, Busy, DrivetrainError, EngineFailed, EngineUnavailable, LoadFailed
from drivetrain.types import ModelSpec, Notice

STEP_S: Final = 0.5  # how often a caller who waits hears that he is not forgotten
ROOM_WAIT_S: Final = 30.0  # how long a load waits for requests where nothing says when others have to make room
FOR_EVER_S: Final = -1.0
IDLE_S: Final = 3600.0  # a long prompt on a slow machine is silent for long; policies have shorter limits
STEADY_S: Final = 60.0  # a worker that lived so long did not crash on starting
MAX_BACK_OFF_S: Final = 30.0
SHARE: Final = "experts.share"  # the file by which workers that stream divide memory among themselves

log = logging.getLogger("drivetrain.engines.llamacpp")


class Crashes(msgspec.Struct, frozen=True):
    """In a row, of one model's workers."""

    count: int
    last_s: float  # monotonic

    @property
    def back_off_s(self) -> float:
        """After the first crash the next request starts a new worker; then pauses double."""
        return 0.0 if self.count < 2 else min(2.0 ** (self.count - 2), MAX_BACK_OFF_S)


class Abandoned(EngineUnavailable):
    """Whoever waited for a model to come has gone, before others had to leave for it."""


class NotStreamed(LoadFailed):
    """A model could not be loaded with its experts streamed; perhaps it can without."""

    def __init__(self, message: str, *, reason: str = "", **members: Any) -> None:
        super().__init__(message, **members)
        self.reason = reason


class Fleet:
    def __init__(self, name: str, host: Host, *, limits: Limits, load_timeout_s: float) -> None:
        self.name = name
        self._host = host
        self._limits = limits
        self._load_timeout_s = load_timeout_s
        self._state = host.home / "state"
        self._sockets = Sockets(self._state)
        self._shells = Shells(self._state, host.lookup)
        self._room = asyncio.Lock()  # who makes room does so alone
        self._owners: set[asyncio.Task[None]] = set()
        self._crashes: dict[str, Crashes] = {}
        self.closed = False
        self.residents: dict[str, Resident] = {}

    def lease(self, model: str, options: Mapping[str, Any], keep_alive_s: float | None) -> "Lease":
        """A claim on the model with these options. Raises `ModelNotFound`, and `BadRequest` for an option."""
        spec = self._host.lookup(model)
        keep_s = self._host.default_keep_alive_s if keep_alive_s is None else keep_alive_s
        return Lease(self, spec, settings.chosen(options), FOR_EVER_S if self._host.pinned(spec.id) else keep_s)

    def claim(self, spec: ModelSpec, options: settings.Chosen, waited_s: float = 0.0) -> Resident | None:
        """The model as asked for, held, in whatever state; None if another form of it has to leave before, which may
        stay for a while as any model may. `waited_s`: for how long this has been asked for.

        Raises `EngineUnavailable` while its workers crash one after another.
        """
        found = self.residents.get(spec.id)
        if found is None:
            found = self._start(spec, options)
        elif not found.open:
            return None
        elif not found.serves(spec, options):
            if self._may_leave(found, waited_s):
                found.retire()
            return None
        found.hold()
        return found

    def _may_leave(self, found: Resident, waited_s: float) -> bool:
        """For another form of the same model, which is pinned if this one is."""
        if self._host.pinned(found.id):
            return True
        try:
            ids = self._host.evictions([found.standing()], need_bytes=1, budget_bytes=0, waited_s=waited_s)
        except Busy:
            return False
        return found.id in ids

    async def retire(self, model: str) -> None:
        """Unload the model once its requests are done, and return when its memory is free."""
        found = self.residents.get(model)
        if found is not None:
            found.retire()
            await found.gone.wait()

    async def departure(self, model: str) -> None:
        """Wait a moment for the model to leave memory."""
        found = self.residents.get(model)
        if found is not None:
            await found.change(STEP_S)

    async def tidy(self) -> None:
        """Delete what models that have gone left on the disk. Cheap where there is nothing."""
        if files := self._shells.unwanted():
            await asyncio.to_thread(_delete, files)

    async def aclose(self) -> None:
        """Stop all workers, busy or not."""
        self.closed = True
        for owner in self._owners:
            owner.cancel()
        if self._owners:
            await asyncio.shield(asyncio.gather(*self._owners, return_exceptions=True))
        self._sockets.close()

    # --- the owner of a model -----------------------------------------------------------------------------------------

    def _start(self, spec: ModelSpec, options: settings.Chosen) -> Resident:
        self._refuse_if_unsteady(spec.id)
        resident = Resident(spec, {**settings.chosen(spec.settings), **options})
        self.residents[spec.id] = resident
        owner = asyncio.create_task(self._own(resident), name=f"owner of {spec.id}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        return resident

    def _refuse_if_unsteady(self, model: str) -> None:
        if self.closed:
            raise EngineUnavailable(f"engine {self.name!r} is closed")
        crashes = self._crashes.get(model)
        wait_s = crashes.last_s + crashes.back_off_s - time.monotonic() if crashes else 0.0
        if crashes and wait_s > 0:
            message = f"the worker of model {model!r} has crashed {crashes.count} times in a row"
            raise EngineUnavailable(f"{message}; its next start is in {wait_s:.0f} s", retry_after_s=wait_s)

    async def _own(self, resident: Resident) -> None:
        self._tell(resident, "model.loading")
        try:
            await self._run_somehow(resident, await self._measure(resident))
        except Abandoned:
            log.info("model %r was not loaded: whoever waited for it has gone", resident.id)
        except DrivetrainError as error:
            resident.failure = error
        finally:
            resident.state, resident.running = "leaving", None
            del self.residents[resident.id]
            self._tell_end(resident)
            resident.gone.set()
            resident.tell()

    async def _measure(self, resident: Resident) -> Sequence[Way]:
        spec = resident.spec
        try:
            found = await asyncio.to_thread(inspect, spec)
        except BadRequest as error:
            raise LoadFailed(f"model {spec.id!r} could not be loaded: {error.message}") from error
        limits = await asyncio.to_thread(tuned, self._limits, self._host.home)
        shell = self._shells.path(spec.weights or "")
        first, *others = ways(spec, resident.chosen, found, limits, shell=str(shell))
        missing = native.missing() if first.stream else None
        if missing is None:
            return (first, *others)
        if not others:
            raise LoadFailed(f"model {spec.id!r} could not be loaded: {missing}")
        self._tell_setback(resident, missing)
        return others

    async def _run_somehow(self, resident: Resident, found: Sequence[Way]) -> None:
        """By the first of the ways that works."""
        *before, last = found
        for way in before:
            try:
                return await self._run(resident, way)
            except NotStreamed as error:
                self._tell_setback(resident, error.reason)
        await self._run(resident, last)

    def _tell_setback(self, resident: Resident, reason: str) -> None:
        log.warning("model %r is not streamed, llama.cpp maps its file instead: %s", resident.id, reason)

    async def _make_room(self, resident: Resident) -> None:
        """Evict until the resident fits. Waits for those who may not leave yet, and for the requests of those who are
        leaving. Raises `Abandoned` if nobody waits for it any longer, `Busy` or `LoadFailed` if there is no room."""
        deadline = time.monotonic() + ROOM_WAIT_S
        while leaving := await self._leaving(resident, deadline):
            for other in leaving:
                other.retire()
            await asyncio.gather(*(other.gone.wait() for other in leaving))
        resident.counted = True

    async def _leaving(self, resident: Resident, deadline: float) -> list[Resident]:
        """Those who have to leave, as soon as it can be said. None: there is room."""
        while True:
            others = [other for other in self.residents.values() if other.counted]
            try:
                leaving = self._evictions(others, resident)
            except (Busy, LoadFailed) as error:
                if not _passes(error, others, late=time.monotonic() > deadline):
                    raise
                leaving = None
            if leaving != [] and not resident.active:
                raise Abandoned(f"nobody waits for model {resident.id!r} any longer")
            if leaving is not None:
                return leaving
            await asyncio.sleep(STEP_S / 5)

    def _evictions(self, others: list[Resident], resident: Resident) -> list[Resident]:
        ids = self._host.evictions(
            [other.standing() for other in others],
            need_bytes=resident.size_bytes,
            budget_bytes=self._limits.room_bytes,
            waited_s=time.monotonic() - resident.wanted_s,
        )
        return [self.residents[id] for id in ids]

    async def _run(self, resident: Resident, way: Way) -> None:
        """The life of one worker. Raises `NotStreamed` if it cannot stream, and another way may do."""
        resident.way, resident.counted, resident.state = way, False, "queued"
        async with self._room:
            await self._make_room(resident)
        socket = self._sockets.next()
        label = f"the worker of model {resident.id!r}"
        upstream = Upstream(f"unix:{socket}", label=label, first_byte_s=IDLE_S, idle_s=IDLE_S)
        worker = await Worker.spawn(socket, resident.tell)
        page = socket.with_suffix(PAGE)
        try:
            await self._load(resident, worker, way, page)
            flow = Flow(page) if way.stream else None
            resident.become(Running(resident.id, way.launch, worker, upstream, flow))
            self._tell(resident, "model.ready")
            await self._keep(resident, worker)
            self._tell(resident, "model.unloading")
        finally:
            resident.state = "leaving"
            resident.tell()
            await upstream.aclose()
            await worker.stop()
            page.unlink(missing_ok=True)

    async def _load(self, resident: Resident, worker: Worker, way: Way, page: Path) -> None:
        def on_progress(fraction: float) -> None:
            resident.fraction = fraction
            resident.tell()
            self._tell(resident, "model.loading", fraction=fraction)

        resident.state = "loading"
        if way.stream:
            await asyncio.to_thread(self._shells.claim, resident.id, way.stream.model)
        share = str(self._state / SHARE)
        try:
            async with asyncio.timeout(self._load_timeout_s):
                await worker.load(way.orders(str(worker.socket), resident.id, page=str(page), share=share), on_progress)
        except TimeoutError as error:
            message = f"was not loaded within {self._load_timeout_s:g} s; {worker.obituary()}"
            raise LoadFailed(f"model {resident.id!r} {message}") from error
        except LoadFailed as error:
            message = f"model {resident.id!r} could not be loaded: {error.message}"
            raise (NotStreamed(message, reason=worker.reason()) if way.stream else LoadFailed(message)) from error

    async def _keep(self, resident: Resident, worker: Worker) -> None:
        """Return when the model is to leave. Raises `EngineFailed` if its worker dies."""
        while not resident.due():
            if worker.exited.is_set():
                self._count_crash(resident)
                raise EngineFailed(f"model {resident.id!r}: {worker.obituary()}")
            idle_s = IDLE_S if resident.active else resident.expires_s - time.monotonic()
            await resident.change(max(0.0, min(idle_s, IDLE_S)))

    def _count_crash(self, resident: Resident) -> None:
        now = time.monotonic()
        before = self._crashes.get(resident.id)
        count = before.count + 1 if before and now - resident.ready_s < STEADY_S else 1
        self._crashes[resident.id] = Crashes(count, now)

    def _tell_end(self, resident: Resident) -> None:
        failure = resident.failure
        if failure is None:
            self._tell(resident, "model.unloaded")
        else:
            self._tell(resident, "model.failed", error=failure.message)

    def _tell(self, resident: Resident, name: str, *, fraction: float | None = None, error: str | None = None) -> None:
        self._host.notify(
            Notice(
                name=name,
                model=resident.id,
                engine=self.name,
                fraction=fraction,
                error=error,
                experts=resident.experts,
                at_s=time.time(),
            )
        )


class Lease:
    """A request's claim on a model. While the block is entered, the model does not leave memory."""

    def __init__(self, fleet: Fleet, spec: ModelSpec, options: settings.Chosen, keep_alive_s: float) -> None:
        self._fleet = fleet
        self._spec = spec
        self._options = options
        self._keep_alive_s = keep_alive_s
        self._resident: Resident | None = None
        self.waited_s = 0.0

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._resident is not None:
            self._resident.release(self._keep_alive_s)

    @property
    def fraction(self) -> float | None:
        return self._resident.fraction if self._resident is not None else None

    @property
    def queued(self) -> bool:
        """Others have to leave memory first."""
        return self._resident is None or self._resident.state == "queued"

    @property
    def alone(self) -> bool:
        """No other request needs the model now."""
        return self._resident is not None and self._resident.active == 1

    async def ready(self) -> Running:
        """The model, once it is in memory. Raises why it cannot be."""
        while (running := await self.step()) is None:
            pass
        return running

    async def step(self) -> Running | None:
        """The model if it is in memory; None after a moment if it is not yet: call again. Raises why it cannot be."""
        resident = self._resident
        if resident is None:
            resident = self._resident = self._fleet.claim(self._spec, self._options, self.waited_s)
        if resident is not None and resident.serving is not None:
            return resident.serving
        start_s = time.monotonic()
        if resident is None:
            await self._fleet.departure(self._spec.id)
        else:
            await resident.change(STEP_S)
        self.waited_s += time.monotonic() - start_s
        if resident is not None and resident.gone.is_set():
            self._resident = None
            if not resident.was_ready:
                raise _again(resident.failure)
        return None


def _passes(error: Busy | LoadFailed, others: Sequence[Resident], *, late: bool) -> bool:
    """Whether what stands in the way goes by itself: somebody is leaving, will have to, or has requests that end."""
    if any(not other.open for other in others):
        return True
    if isinstance(error, LoadFailed):
        return False
    return error.retry_after_s is not None or (not late and any(other.active for other in others))


def _again(failure: DrivetrainError | None) -> DrivetrainError:
    """An error that several callers are told: each gets his own, for a traceback grows where it is raised."""
    if failure is None:
        return EngineUnavailable("the model was unloaded while it was waited for")
    return type(failure)(failure.message, param=failure.param, retry_after_s=failure.retry_after_s)


def _delete(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
