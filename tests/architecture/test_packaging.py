"""What is shipped: nothing but the package, and it works where there is no source tree."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import drivetrain
from tests.e2e.servers import MODEL, add_small_model, serving

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "drivetrain"
UV = Path(sys.executable).with_name("uv")
SHIPPED = (r".+\.py", r"py\.typed", r"store/schema\.sql")  # below the package
DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
SDIST = (
    r"src/drivetrain/.+",
    r"README\.md",
    r"CHANGELOG\.md",
    r"LICENSE",
    r"pyproject\.toml",
    r"PKG-INFO",
    r"\.gitignore",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a source distribution, and a wheel made from that."""
    out = tmp_path_factory.mktemp("dist")
    words: tuple[str | Path, ...] = ("-m", "build", "--no-isolation", "--outdir", out, ROOT)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`drivetrain`, installed from the wheel with what it asks for, into an environment of its own."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    pins = venv.parent / "pins.txt"
    pins.write_text("\n".join(re.findall(r"^\S+==\S+(?: ;[^\\\n]+)?", (ROOT / "requirements.lock").read_text(), re.M)))
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    python = venv / "bin" / "python"
    words = ("pip", "install", "--quiet", "--compile-bytecode", "--python", python, "--constraint", pins)
    subprocess.run([UV, *words, wheel], check=True)
    return python.with_name("drivetrain")


def strangers(names: Iterable[str], known: Iterable[str]) -> list[str]:
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in known)]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    info = f"drivetrain-{drivetrain.__version__}.dist-info/"
    names = zipfile.ZipFile(wheel).namelist()
    known = [f"drivetrain/{pattern}" for pattern in SHIPPED] + [re.escape(info + name) for name in DIST_INFO]
    assert strangers(names, known) == []  # a `.pth` file would run at every start of Python, a test is not for users
    assert {name for name in names if name.startswith("drivetrain/")} == {
        f"drivetrain/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_source_distribution_holds_no_more_than_it_needs(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert strangers(names, SDIST) == []


def test_the_wheel_installs_the_command_and_the_engines(wheel: Path) -> None:
    points = zipfile.ZipFile(wheel).read(f"drivetrain-{drivetrain.__version__}.dist-info/entry_points.txt").decode()
    assert points == (
        "[console_scripts]\n"
        "drivetrain = drivetrain.cli:main\n\n"
        "[drivetrain.engines]\n"
        "llama-server = drivetrain.engines.openai:OpenAI\n"
        "llamacpp = drivetrain.engines.llamacpp:LlamaCpp\n"
        "ollama = drivetrain.engines.ollama:Ollama\n"
        "openai = drivetrain.engines.openai:OpenAI\n"
        "sglang = drivetrain.engines.openai:OpenAI\n"
        "vllm = drivetrain.engines.openai:OpenAI\n"
    )


def test_the_installed_command_tells_its_version(command: Path, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run([command, "--version"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert said.stdout.split()[-1] == drivetrain.__version__


@pytest.mark.anyio
async def test_the_installed_server_answers_with_a_real_model(command: Path, tmp_path: Path) -> None:
    add_small_model(tmp_path)
    async with serving(tmp_path, command=command, environ={"PYTHONPATH": ""}) as server:
        assert await server.get("/healthz") == {"status": "ok", "version": drivetrain.__version__}
        question = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        answer = (await server.post("/v1/chat/completions", question)).json()
    assert answer["choices"][0]["message"]["content"]
