"""A drive that fails under a streamed model: one clear error to the request; the worker lives, and then is right."""

from pathlib import Path

import pytest

from drivetrain.engines.expertstream import native
from drivetrain.errors import EngineFailed
from native import build
from tests.e2e.test_expertstream import answer, complete, spec, tokens
from tests.e2e.test_llamacpp import engine_on, worker_of
from tests.fakes.host import ShelfHost
from tests.moe.models import write_model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(native.missing() is not None, reason=f"{native.missing()}"),
]
SHIM = build.NATIVE / "tests" / "faulty_io.cpp"


@pytest.fixture(scope="module")
def shim() -> Path:
    return build.preload(SHIM)


@pytest.fixture
def drive(shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What it is to do, written into this file: see the shim."""
    control = tmp_path / "control"
    control.write_text("none")
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("ES_FAULT_PATH", "drive-")
    monkeypatch.setenv("ES_FAULT_CONTROL", str(control))
    return control


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model as it came, and packed."""
    folder = tmp_path_factory.mktemp("moe")
    plain = write_model(folder / "drive-tiny.gguf", "qwen3moe", "Q8_0")
    native.pack(plain, folder / "drive-tiny.jns")
    return {"gguf": plain, "jns": folder / "drive-tiny.jns"}


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("eio", "gguf", "Input/output error"),
        ("cut", "gguf", "drive-tiny.gguf"),
        ("flip", "jns", "does not match its checksum"),
        ("stall", "gguf", "has not answered for"),
    ],
)
async def test_a_drive_that_fails(
    drive: Path, models: dict[str, Path], tmp_path: Path, fault: str, kind: str, told: str
) -> None:
    async with engine_on(ShelfHost(tmp_path, spec(models[kind], io="threads"))) as engine:
        before = await answer(engine, complete(tokens(20)))
        [loaded] = await engine.loaded()
        drive.write_text(fault)
        with pytest.raises(EngineFailed, match=told) as failure:
            await answer(engine, complete(tokens(30)))
        assert "\n" not in failure.value.message
        drive.write_text("none")
        assert (await answer(engine, complete(tokens(20)))).choices == before.choices
        [still] = await engine.loaded()
        assert (still.address, worker_of(still).is_running()) == (loaded.address, True)


async def test_a_read_that_fails_once_is_read_again(drive: Path, models: dict[str, Path], tmp_path: Path) -> None:
    async with engine_on(ShelfHost(tmp_path, spec(models["gguf"], io="threads"))) as engine:
        before = await answer(engine, complete(tokens(20)))
        drive.write_text("eio 1")
        assert (await answer(engine, complete(tokens(20)))).choices == before.choices
