"""`make run`, as a newcomer sees it: what it prints can be pasted, and works."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "first_run.py"
LIMIT_S = 180.0
LAST_LINE = "The server runs until Ctrl-C."


class Run:
    """The program at work, and what it has printed."""

    def __init__(self, process: Process, home: Path, printed: str) -> None:
        self.process = process
        self.home = home
        self.printed = printed

    def example(self, heading: str) -> str:
        """What stands under a heading, up to the next empty line."""
        found = re.search(rf"^# {heading}.*\n((?:.+\n)+)", self.printed, re.MULTILINE)
        assert found, self.printed
        return found[1]


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Run, None]:
    home = tmp_path_factory.mktemp("first") / "home"
    async with started(home) as process:
        yield Run(process, home, await _printed(process))


@asynccontextmanager
async def started(home: Path) -> AsyncGenerator[Process, None]:
    words = (SCRIPT, "--home", home, "--port", "0")
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE, env=environ)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _printed(process: Process) -> str:
    assert process.stdout
    text = ""
    async with asyncio.timeout(LIMIT_S):
        while LAST_LINE not in text:
            line = await process.stdout.readline()
            assert line, text
            text += line.decode()
    return text


async def output_of(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE)
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().strip()


async def test_it_shows_the_address_and_one_real_answer(run: Run) -> None:
    told = json.loads((run.home / "state" / "server.json").read_text())
    assert f"Drivetrain answers at {told['url']}\n" in run.printed
    asked, _, answer = run.example("And one real answer").partition("\n")
    assert asked.startswith("> ")
    assert len(answer.split()) >= 3


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_its_example_for_curl_works(run: Run) -> None:
    answer = json.loads(await output_of("sh", "-c", f"{run.example('curl').strip()} --silent --fail"))
    assert answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("package", ["openai", "ollama"])
async def test_its_examples_for_python_work(run: Run, package: str) -> None:
    assert await output_of(sys.executable, "-c", run.example(f"Python, the `{package}` package"))


async def test_ctrl_c_ends_it_and_its_server(run: Run) -> None:
    server = await server_of(run.home)
    run.process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(run.process.wait(), LIMIT_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def test_its_server_ends_with_it_however_it_ends(tmp_path: Path) -> None:
    async with started(tmp_path) as process:
        server = await server_of(tmp_path)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), LIMIT_S)
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def server_of(home: Path) -> int:
    """The server's process, once it answers."""
    file = home / "state" / "server.json"
    async with asyncio.timeout(LIMIT_S):
        while not file.exists():
            await asyncio.sleep(0.02)
    return int(json.loads(file.read_text())["pid"])
