"""An engine from somebody's package: installed, it keeps the contract and answers callers.

The package is the example of `docs/how-to/write-an-engine.md`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from ollama import AsyncClient
from openai import AsyncOpenAI

from tests.e2e.servers import COMMAND, Server, serving

pytestmark = pytest.mark.anyio

PACKAGE = Path(__file__).parents[2] / "examples" / "drivetrain-engine-echo"
UV = Path(sys.executable).with_name("uv")
CONFIG = "engines:\n  parrot: {kind: echo, pause_s: 0.001}\n"
TOLD = "Polly wants a cracker 🦜"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as its users get it, beside our environment instead of in it."""
    target = tmp_path_factory.mktemp("site")
    words = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([UV, *words, "--target", target, PACKAGE], check=True)
    return target


@pytest.fixture(scope="module")
async def echoing(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server, None]:
    async with serving(tmp_path_factory.mktemp("home"), CONFIG, environ={"PYTHONPATH": str(installed)}) as server:
        await server.until("/v1/models", lambda answer: [model["id"] for model in answer["data"]] == ["echo"])
        yield server


def test_its_own_tests_pass_with_the_contract_among_them(installed: Path, tmp_path: Path) -> None:
    shutil.copy(PACKAGE / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


async def test_it_answers_through_the_openai_api(echoing: Server) -> None:
    async with AsyncOpenAI(base_url=f"{echoing.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": TOLD}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TOLD
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 5


async def test_it_answers_through_the_ollama_api(echoing: Server) -> None:
    async with AsyncClient(echoing.url) as client:
        answer = await client.chat("echo", [{"role": "user", "content": TOLD}])
    assert (answer.message.content, answer.done_reason, answer.eval_count) == (TOLD, "stop", 5)


async def test_its_instance_is_listed_with_its_kind(echoing: Server) -> None:
    engines = {engine["name"]: engine for engine in (await echoing.get("/v1/engines"))["data"]}
    assert (engines["parrot"]["kind"], engines["parrot"]["health"]["ready"]) == ("echo", True)
    assert engines["parrot"]["models"] == ["echo"]


def test_a_setting_that_it_refuses_keeps_the_server_from_starting(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "drivetrain.yaml").write_text("engines:\n  parrot: {kind: echo, volume: 11}\n")
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    words = ("serve", "--home", tmp_path, "--port", "0")
    done = subprocess.run([COMMAND, *words], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    wrong = "2:32: engines.parrot.options.volume: is not known to this kind of engine; known: pause_s"
    assert f"{tmp_path / 'drivetrain.yaml'}:{wrong}" in done.stderr


def test_without_the_package_its_kind_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "drivetrain.yaml").write_text(CONFIG)
    done = subprocess.run([COMMAND, "config", "check", "--home", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "'echo'" in done.stderr + done.stdout
