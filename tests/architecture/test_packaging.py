"""What is shipped: nothing but the package, and it works where there is no source tree."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import drivetrain
from native import build as native
from tests.e2e.servers import MODEL, add_small_model, serving

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "drivetrain"
UV = Path(sys.executable).with_name("uv")
SHIPPED = (r".+\.py", r"py\.typed", r"quota/\w+\.lua", r"store/schema\.sql")  # below the package
# Made while the wheel is built: the streaming library, or why there is none.
BUILT = "drivetrain/engines/expertstream/libexpertstream.so"
EXCUSE = "drivetrain/engines/expertstream/not-built.txt"
DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
SDIST = (
    r"src/drivetrain/.+",
    r"native/build\.py",
    r"native/src/.+\.(?:cpp|hpp|h)",
    r"hatch_build\.py",
    r"README\.md",
    r"CHANGELOG\.md",
    r"LICENSE",
    r"pyproject\.toml",
    r"PKG-INFO",
    r"\.gitignore",
)


def build(out: Path, source: Path, *options: str, environ: Mapping[str, str] = {}) -> Path:
    words: tuple[str | Path, ...] = ("-m", "build", "--no-isolation", *options, "--outdir", out, source)
    settings = {**os.environ, "DRIVETRAIN_NATIVE_CACHE": str(native.CACHE), **environ}  # compiled here already
    done = subprocess.run([sys.executable, *words], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a source distribution, and a wheel made from that."""
    return build(tmp_path_factory.mktemp("dist"), ROOT)


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bare_wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source distribution where the C++ compiler does not work."""
    folder = tmp_path_factory.mktemp("bare")
    (archive,) = built.glob("*.tar.gz")
    subprocess.run(("tar", "-xf", archive, "-C", folder), check=True)
    (source,) = folder.iterdir()
    (found,) = build(folder / "dist", source, "--wheel", environ={"CXX": "false"}).glob("*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("fresh") / "venv")


@pytest.fixture(scope="module")
def bare_command(bare_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(bare_wheel, tmp_path_factory.mktemp("bare-fresh") / "venv")


def install(wheel: Path, venv: Path) -> Path:
    """`drivetrain`, installed from the wheel with what it asks for, into an environment of its own."""
    pins = venv.parent / "pins.txt"
    pins.write_text("\n".join(re.findall(r"^\S+==\S+(?: ;[^\\\n]+)?", (ROOT / "requirements.lock").read_text(), re.M)))
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    python = venv / "bin" / "python"
    words = ("pip", "install", "--quiet", "--compile-bytecode", "--python", python, "--constraint", pins)
    subprocess.run([UV, *words, wheel], check=True)
    return python.with_name("drivetrain")


def compiler() -> bool:
    try:
        return bool(native.compiler())
    except native.NoCompiler:
        return False


def strangers(names: Iterable[str], known: Iterable[str]) -> list[str]:
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in known)]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    info = f"drivetrain-{drivetrain.__version__}.dist-info/"
    names = zipfile.ZipFile(wheel).namelist()
    known = [f"drivetrain/{pattern}" for pattern in SHIPPED] + [re.escape(info + name) for name in DIST_INFO]
    made = {BUILT} if compiler() else {EXCUSE}
    assert (
        set(strangers(names, known)) == made
    )  # a `.pth` file would run at every start of Python; tests are not for users
    sources = {f"drivetrain/{path.relative_to(SOURCE).as_posix()}" for path in SOURCE.rglob("*") if path.is_file()}
    expected = {name for name in sources - {BUILT, EXCUSE} if not name.endswith(".pyc")} | made
    assert {name for name in names if name.startswith("drivetrain/")} == expected


def test_a_wheel_with_the_library_is_for_this_platform_and_any_python(wheel: Path) -> None:
    if not compiler():
        pytest.skip("there is no C++ compiler")
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", wheel.name)


def test_a_wheel_without_the_library_is_for_every_platform_and_tells_why(bare_wheel: Path) -> None:
    assert bare_wheel.name.endswith("-py3-none-any.whl")
    archive = zipfile.ZipFile(bare_wheel)
    assert BUILT not in archive.namelist()
    assert archive.read(EXCUSE).decode().startswith("the C++ compiler failed: ")


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


def say(*command: str | Path, cwd: Path) -> str:
    """What a command prints that finds no source tree."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=True).stdout


def test_the_installed_command_tells_its_version(command: Path, tmp_path: Path) -> None:
    assert say(command, "--version", cwd=tmp_path).split()[-1] == drivetrain.__version__


def test_the_installed_library_can_be_loaded(command: Path, tmp_path: Path) -> None:
    if not compiler():
        pytest.skip("there is no C++ compiler")
    code = "from drivetrain.engines.expertstream import native; print(native.missing(), native.version() != '')"
    assert say(command.with_name("python"), "-c", code, cwd=tmp_path) == "None True\n"


def test_without_the_library_all_else_is_there_and_the_reason_is_told(bare_command: Path, tmp_path: Path) -> None:
    assert say(bare_command, "--version", cwd=tmp_path).split()[-1] == drivetrain.__version__
    code = "from drivetrain.engines.expertstream import native; print(native.library_path(), native.missing())"
    said = say(bare_command.with_name("python"), "-c", code, cwd=tmp_path)
    assert said.startswith("None the streaming library was not built: the C++ compiler failed: ")
    assert said.endswith("; install a C++ compiler and reinstall drivetrain\n")


@pytest.mark.anyio
async def test_the_installed_server_answers_with_a_real_model(command: Path, tmp_path: Path) -> None:
    add_small_model(tmp_path)
    async with serving(tmp_path, command=command, environ={"PYTHONPATH": ""}) as server:
        assert await server.get("/healthz") == {"status": "ok", "version": drivetrain.__version__}
        question = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        answer = (await server.post("/v1/chat/completions", question)).json()
    assert answer["choices"][0]["message"]["content"]
