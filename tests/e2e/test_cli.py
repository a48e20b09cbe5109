"""The command line with real servers and a real model: with one that runs, and without."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.servers import COMMAND, MODEL, Server, add_small_model, serving, small_model
from tests.unit.cli.screen import CTRL_C, CTRL_D, Screen

pytestmark = pytest.mark.anyio

SHORT = ("--set", "num_predict=8", "--set", "temperature=0", "--set", "num_ctx=512")
LIMIT_S = 120.0


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@asynccontextmanager
async def started(home: Path, *words: str) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        COMMAND, *words, "--home", home, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def drivetrain_command(home: Path, *words: str) -> Outcome:
    async with started(home, *words) as process, asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_gone(pid: int, limit_s: float = 15.0) -> None:
    async with asyncio.timeout(limit_s):
        while alive(pid):
            await asyncio.sleep(0.02)


async def private_server(home: Path) -> int:
    """The process of the server that a command started for itself."""
    async with asyncio.timeout(LIMIT_S):
        while not (record := home / "state" / "server.json").exists():
            await asyncio.sleep(0.02)
    return int(json.loads(record.read_text())["pid"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the small model, where no server runs."""
    add_small_model(tmp_path)
    return tmp_path


# --- without a running server -----------------------------------------------------------------------------------------


async def test_a_newcomer_pulls_and_talks_without_a_server(tmp_path: Path) -> None:
    pulled = await drivetrain_command(tmp_path, "pull", MODEL)
    assert (pulled.code, pulled.out, pulled.err.splitlines()[-1]) == (0, "", "success")

    answer = await drivetrain_command(tmp_path, "run", MODEL, "Say hi.", *SHORT, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert (answer.json["message"]["role"], answer.json["done"]) == ("assistant", True)
    assert answer.json["message"]["content"]
    assert not (tmp_path / "state" / "server.json").exists()


async def test_run_pulls_what_is_missing(tmp_path: Path) -> None:
    answer = await drivetrain_command(tmp_path, "run", MODEL, "Say hi.", *SHORT)
    assert answer.code == 0
    assert answer.out.strip()
    assert answer.err.splitlines()[-1] == "success"


async def test_a_private_server_ignores_what_concerns_the_public_one(home: Path) -> None:
    (home / "drivetrain.yaml").write_text("server: {host: 0.0.0.0, port: 1, workers: 4, auth: on}")
    listed = await drivetrain_command(home, "list", "--json")
    assert (listed.code, [model["name"] for model in listed.json["models"]]) == (0, [MODEL])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_no_server_is_left_however_the_command_ends(home: Path, number: signal.Signals) -> None:
    async with started(home, "run", MODEL, "Write a very long story.", "--set", "num_predict=4000") as process:
        assert process.stdout
        pid = await private_server(home)
        async with asyncio.timeout(LIMIT_S):
            await process.stdout.read(1)
        process.send_signal(number)
        async with asyncio.timeout(LIMIT_S):
            code = await process.wait()
        await until_gone(pid)
    assert (130 if number == signal.SIGINT else -number) == code


# --- with a running server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server, None]:
    """A server of this module's own, as its tests change models."""
    home = tmp_path_factory.mktemp("cli")
    add_small_model(home)
    async with serving(home) as running:
        yield running


async def test_every_command_works_on_a_running_server(server: Server, tmp_path: Path) -> None:
    async def told(*words: str) -> Any:
        outcome = await drivetrain_command(server.home, *words, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.json

    assert (await told("run", MODEL, "Say hi.", *SHORT))["message"]["content"] != ""
    assert [model["name"] for model in (await told("ps"))["models"]] == [MODEL]
    loaded = [one["model"]["id"] for engine in (await told("engines"))["data"] for one in engine["loaded"]]
    assert loaded == [MODEL]
    assert "completion" in (await told("show", MODEL))["capabilities"]

    assert await told("cp", MODEL, "copy:latest") == {"source": MODEL, "destination": "copy:latest"}
    assert (await told("import", str(small_model()), "--name", "mine", "--link"))["id"] == "mine"
    names = {model["name"] for model in (await told("list"))["models"]}
    assert {MODEL, "copy:latest"} <= names
    assert any(name.startswith("mine") for name in names)

    assert await told("stop", MODEL) == {"stopped": MODEL}
    assert (await told("ps"))["models"] == []
    assert await told("rm", "copy:latest") == {"deleted": "copy:latest"}
    missing = await drivetrain_command(server.home, "rm", "copy:latest")
    assert (missing.code, len(missing.err.splitlines())) == (3, 1)


async def test_create_from_a_model_and_from_a_file(server: Server, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    for source, name in ((MODEL, "terse"), (str(small_model()), "from-file")):
        modelfile.write_text(f'FROM {source}\nPARAMETER temperature 0.25\nSYSTEM "Be brief."\n')
        created = await drivetrain_command(server.home, "create", name, "-f", str(modelfile))
        assert (created.code, created.err.splitlines()[-1]) == (0, "success")

        shown = (await drivetrain_command(server.home, "show", name, "--json")).json
        assert shown["system"] == "Be brief."
        assert "temperature                    0.25" in shown["parameters"]
        effective = (await drivetrain_command(server.home, "show", name, "--effective", "--json")).json["effective"]
        assert effective["parameters.temperature"]["value"] == 0.25
        assert effective["parameters.temperature"]["origin"].endswith("model.json")


async def test_a_model_that_does_not_exist_is_exit_code_3(server: Server) -> None:
    outcome = await drivetrain_command(server.home, "show", "nowhere/nothing")
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (3, "", 1)
    assert "nowhere/nothing" in outcome.err


async def test_a_chat_in_a_terminal_with_the_real_model(server: Server) -> None:
    words = [str(COMMAND), "run", MODEL, "--home", str(server.home), "--set", "num_ctx=512"]
    with Screen(words, os.environ) as screen:
        await asyncio.to_thread(screen.wait_for, ">>> ", LIMIT_S)
        screen.enter("Count from 1 to 1000, one number a line.")
        await asyncio.to_thread(screen.wait_for, "line.\n", LIMIT_S)
        await server.until("/v1/engines", _busy)
        screen.press(CTRL_C)
        await asyncio.to_thread(screen.wait_for, ">>> ", LIMIT_S)
        await server.until("/v1/engines", _idle)  # who stopped listening freed the model at once
        screen.enter("/set parameter num_predict 4")
        await asyncio.to_thread(screen.wait_for, ">>> ", LIMIT_S)
        screen.enter("Say hi.")
        told = await asyncio.to_thread(screen.wait_for, ">>> ", LIMIT_S)
        assert told.removeprefix("Say hi.").removesuffix(">>> ").strip()
        screen.press(CTRL_D)
        assert await asyncio.to_thread(screen.exit_code, LIMIT_S) == 0


def _busy(engines: Any) -> bool:
    return not _idle(engines)


def _idle(engines: Any) -> bool:
    return all(loaded["active"] == 0 for engine in engines["data"] for loaded in engine["loaded"])
