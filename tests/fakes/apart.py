"""A fake engine in a process of its own, which can be killed, stopped and started again at the same place.

`python -m tests.fakes.apart PORT` is that process: it reads on standard input how it is to behave from now on.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.fakes.manners import openai_frames
from tests.fakes.replies import Raw, Reply, Stream, Whole
from tests.fakes.upstream import FakeUpstream
from tests.listening import free_port

PATH = "/v1/chat/completions"
PACE_S = 0.004  # between the frames of a healthy one
WORDS = tuple(f" word-{n}" for n in range(12))
FRAMES = openai_frames("chat.completion.chunk", WORDS)
SAID = "".join(WORDS)  # by a healthy one
START_S = 30.0


def _stream(pause_s: float = PACE_S) -> Reply:
    return Stream(frames=FRAMES, pause_s=pause_s)


BEHAVIOURS: dict[str, Reply] = {
    "well": _stream(),
    "slow": _stream(10 * PACE_S),
    "broken": Whole(status=500, body={"error": {"message": "out of order", "type": "server_error"}}),
    "truncated": Stream(frames=FRAMES, pause_s=PACE_S, cut_after=sum(map(len, FRAMES[:5])), then="close"),
    "half-open": Raw(then="half_close"),
    "silent": Raw(then="stall"),
}


class Apart:
    """Such a process, as the test that started it sees it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.apart", str(self.port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(START_S):
            assert await self._answer() == "ready"

    async def behave(self, how: str) -> int:
        """From now on. Returns how many requests it has had so far."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{how}\n".encode())
        return int(await self._answer())

    async def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def apart() -> AsyncGenerator[Apart, None]:
    engine = Apart()
    await engine.start()
    try:
        yield engine
    finally:
        await engine.kill()


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with FakeUpstream(port=port) as upstream:
        upstream.script(PATH, BEHAVIOURS["well"])
        _say("ready")
        refusing = False
        while order := (await orders.readline()).decode().strip():
            if order == "refuse":
                upstream.refuse()
                upstream.drop_connections()
            elif order != "tell":
                upstream.script(PATH, BEHAVIOURS[order])
                if refusing:
                    await upstream.listen()
            refusing = order == "refuse" or (refusing and order == "tell")
            _say(str(sum(request.path == PATH for request in upstream.requests)))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
