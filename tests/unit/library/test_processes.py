"""Several processes may use one home, and any of them may be killed at any time."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from drivetrain.config.schema import Downloads
from drivetrain.errors import ModelNotFound
from drivetrain.library import Library
from tests.fakes.registries import Registry, Site
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

MEGABYTE = 2**20
WEIGHTS = tiny_gguf(10 * MEGABYTE)
NUMBER = re.compile(r"^\d+$(?=\n)", re.MULTILINE)
PULL = """
import anyio, sys
from pathlib import Path
from drivetrain.config.schema import Downloads
from drivetrain.library import Library

async def main():
    library = Library(Path(sys.argv[1]), Downloads(ollama=sys.argv[2]), lambda notice: None, part_bytes=2**20)
    async for status in library.pull("tiny"):
        print(status.status if status.completed is None else status.completed, flush=True)

anyio.run(main)
"""


@asynccontextmanager
async def registry_of_tiny() -> AsyncIterator[Site]:
    registry = Registry()
    registry.publish("library/tiny:latest", {"model": WEIGHTS})
    async with registry.serving() as site:
        yield site


@asynccontextmanager
async def pulling(home: Path, site: Site) -> AsyncIterator[anyio.abc.Process]:
    """Another process that pulls."""
    process = await anyio.open_process([sys.executable, "-c", PULL, str(home), site.url], stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


async def output(process: anyio.abc.Process) -> str:
    assert process.stdout is not None
    return b"".join([piece async for piece in process.stdout]).decode()


async def test_a_pull_that_was_killed_is_incomplete_and_goes_on(home: Path) -> None:
    async with registry_of_tiny() as site:
        site.faults.gate = anyio.Event()
        async with pulling(home, site) as process:
            assert process.stdout is not None
            text = ""
            with anyio.fail_after(30):
                while max(map(int, NUMBER.findall(text)), default=0) < 1.5 * MEGABYTE:
                    text += (await process.stdout.receive()).decode()
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        library = Library(home, Downloads(ollama=site.url), lambda notice: None, part_bytes=MEGABYTE)
        assert list(library.list()) == []
        (unfinished,) = library.unfinished()
        assert (unfinished.id, unfinished.total) == ("tiny:latest", len(WEIGHTS))
        with pytest.raises(ModelNotFound, match=r"its download is incomplete .* drivetrain pull tiny"):
            library.lookup("tiny")
        site.faults.gate = None
        async for _ in library.pull("tiny"):
            pass
    assert Path(library.lookup("tiny").weights or "").read_bytes() == WEIGHTS


async def test_two_processes_share_one_download(home: Path) -> None:
    async with registry_of_tiny() as site, pulling(home, site) as one, pulling(home, site) as other:
        with anyio.fail_after(60):
            texts = [await output(process) for process in (one, other)]
            assert [await process.wait() for process in (one, other)] == [0, 0]
        assert site.sent_bytes < 1.1 * len(WEIGHTS)
    for text in texts:
        assert text.splitlines()[-1] == "success"
    library = Library(home, Downloads(), lambda notice: None)
    assert Path(library.lookup("tiny").weights or "").read_bytes() == WEIGHTS
