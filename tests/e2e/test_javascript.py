"""The official JavaScript clients, unmodified, each by a script that runs under Node."""

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.servers import MODEL, Server

pytestmark = pytest.mark.anyio

SCRIPTS = Path(__file__).with_name("javascript")
LIMIT_S = 300.0


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.parametrize(("script", "tests"), [("openai.mjs", 10), ("ollama.mjs", 9)])
async def test_every_test_of_the_script_passes(drivetrain: Server, script: str, tests: int) -> None:
    assert (SCRIPTS / "node_modules" / "openai").is_dir(), f"run: npm ci --prefix {SCRIPTS}"
    process = await asyncio.create_subprocess_exec(
        "node",
        "--test-reporter=tap",
        SCRIPTS / script,
        cwd=SCRIPTS,
        env={**os.environ, "DRIVETRAIN_URL": drivetrain.url, "DRIVETRAIN_MODEL": MODEL},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            told = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, told
    assert re.findall(r"^# (pass|fail|skipped) (\d+)$", told, re.MULTILINE) == [
        ("pass", str(tests)),
        ("fail", "0"),
        ("skipped", "0"),
    ]
