"""One worker process as its parent sees it: started, told what to load, watched, stopped. Its last words are kept."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from drivetrain.engines.llamacpp import worker
from drivetrain.errors import LoadFailed

TAIL_BYTES: Final = 4096
TAIL_LINES: Final = 12
LINE_BYTES: Final = 2**20  # of what llama.cpp tells about its state
STOP_GRACE_S: Final = 5.0
_STATE: Final = b"cmd_child_to_router:state:"
_READY: Final = worker.READY.encode()
_SHELL: Final = worker.SHELL.encode()
_STAMP = re.compile(r"^[\d.]+ [DIWE] ")  # of llama.cpp's log lines
_REASONS = tuple(
    map(re.compile, (r"error loading model: (.+)", r"(GGML_ASSERT.+)", r"worker: (.+)", r"^[\d.]+ E (.+)"))
)

OnProgress = Callable[[float], None]


class _Stage(msgspec.Struct):
    """How far loading has come: the value is that of the current one of the stages."""

    stages: tuple[str, ...] = ()
    current: str = ""
    value: float = 0.0


class _State(msgspec.Struct):
    state: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")


class Worker:
    """`spawn`, `load`, and `stop` at the end, whatever happens between. `exited` is set when the process is gone."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path, on_exit: Callable[[], None]) -> None:
        self._process = process
        self._on_exit = on_exit
        self.socket = socket
        self._tail = b""
        self._on_progress: OnProgress | None = None
        self._before = 0.0  # part of the load that is done when llama.cpp begins with its own
        self._ready = asyncio.Event()
        self.exited = asyncio.Event()
        self._attendant = asyncio.create_task(self._attend())

    @classmethod
    async def spawn(cls, socket: Path, on_exit: Callable[[], None]) -> "Worker":
        """A process that waits for its orders, and will serve at `socket`; `on_exit` is called when it has ended.
        Raises `LoadFailed` if the system has none to give."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                worker.__file__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C on the terminal is not meant for it
            )
        except OSError as error:
            raise LoadFailed(f"no worker process could be started: {error.strerror}") from error
        return cls(process, socket, on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load(self, orders: Mapping[str, Any], on_progress: OnProgress) -> None:
        """Return when the model is ready. Raises `LoadFailed` if the process ends instead: `reason` tells why."""
        self._on_progress = on_progress
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        stdin.write(json.dumps(orders).encode() + b"\n")
        ready, exited = (asyncio.ensure_future(event.wait()) for event in (self._ready, self.exited))
        try:
            await asyncio.wait((ready, exited), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            exited.cancel()
        if not self._ready.is_set():
            raise LoadFailed(f"{self.reason()}; {self.obituary()}")

    async def ended(self, within_s: float) -> bool:
        """Whether the process has ended, or does within this time."""
        try:
            async with asyncio.timeout(within_s):
                await self.exited.wait()
        except TimeoutError:
            return False
        return True

    def obituary(self) -> str:
        """How the process ended, and what it said last."""
        lines = self._last_lines()
        said = "; its last lines:\n" + "\n".join(lines) if lines else " and said nothing"
        return f"the worker {ending(self._process.returncode)}{said}"

    async def stop(self) -> None:
        """Ends the process: politely, then not. Returns when it is gone and its memory is free."""
        try:
            self._signal(signal.SIGTERM)
            async with asyncio.timeout(STOP_GRACE_S):
                await self.exited.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self.exited.wait()
        except asyncio.CancelledError:
            self._signal(signal.SIGKILL)
            await self.exited.wait()  # no longer than the system needs
            raise
        finally:
            self.socket.unlink(missing_ok=True)
        await self._attendant

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _attend(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear_log())
            group.create_task(self._hear_state())
            await self._process.wait()
        stdin = self._process.stdin
        if stdin is not None:
            stdin.close()
        self.exited.set()
        self._on_exit()

    async def _hear_log(self) -> None:
        stream = self._process.stderr
        while stream is not None and (data := await stream.read(2**16)):
            self._tail = (self._tail + data)[-TAIL_BYTES:]

    async def _hear_state(self) -> None:
        stream, rest = self._process.stdout, b""
        while stream is not None and (data := await stream.read(2**16)):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-LINE_BYTES:]
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        if line == _READY:
            self._ready.set()
        elif self._on_progress is None:
            return
        elif line.startswith(_STATE) and (done := fraction(line)) is not None:
            self._on_progress(self._before + (1 - self._before) * done)
        elif line.startswith(_SHELL):
            self._before = 0.5
            self._on_progress(self._before * float(line[len(_SHELL) :]))

    def _last_lines(self) -> list[str]:
        lines = self._tail.decode("utf-8", "replace").splitlines()
        return [_STAMP.sub("", line).strip() for line in lines if line.strip()][-TAIL_LINES:]

    def reason(self) -> str:
        """Why it ended while loading: the line that tells most, of those that are left."""
        lines = self._tail.decode("utf-8", "replace").splitlines()
        found = (match[1].strip() for reason in _REASONS for line in lines if (match := reason.search(line)))
        return next(found, "it ended while loading")


def fraction(line: bytes) -> float | None:
    """Of the whole load, from one line of llama.cpp's: it counts each of several stages from 0 to 1."""
    try:
        state = msgspec.json.decode(line[len(_STATE) :], type=_State)
        if state.state != "loading":
            return None
        stage = msgspec.json.decode(state.payload, type=_Stage)
    except msgspec.DecodeError:
        return None
    done = stage.stages.index(stage.current) if stage.current in stage.stages else 0
    return min(1.0, (done + stage.value) / max(len(stage.stages), 1))


def ending(code: int | None) -> str:
    if code is None:
        return "is still running"
    if code >= 0:
        return f"exited with code {code}"
    hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}" if -code in _SIGNALS else f"was ended by signal {-code}"


_SIGNALS = frozenset(signal.Signals)
