"""A model is packed and unpacked by one command each; who breaks it off loses nothing."""

import json
from pathlib import Path
from threading import Event

import pytest

from drivetrain.cli import output
from drivetrain.cli.pack import _teller
from drivetrain.engines.expertstream import native
from tests.fakes.weights import tiny_gguf, tiny_jns
from tests.moe.models import write_model
from tests.unit.cli.kit import Outcome, Terminal

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=native.missing() or "")


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moe") / "moe.gguf", "qwen3moe", "Q8_0")


@pytest.fixture
def model(drivetrain: Terminal, moe: Path) -> Path:
    """A model `moe` of the library, put there by hand; its folder."""
    folder = drivetrain.home / "models" / "moe"
    folder.mkdir(parents=True)
    (folder / "moe.gguf").symlink_to(moe)
    return folder


def frames(outcome: Outcome) -> list[dict[str, object]]:
    return [json.loads(line) for line in outcome.out.splitlines()]


def settings(folder: Path) -> object:
    return json.loads((folder / "model.json").read_bytes())["settings"]


def test_a_model_of_the_library_uses_its_container_from_then_on(drivetrain: Terminal, model: Path) -> None:
    outcome = drivetrain("pack", "moe")
    size = output.size((model / "moe.jns").stat().st_size)
    assert (outcome.code, outcome.out) == (0, f"packed 'moe': {model / 'moe.jns'}, {size}\n")
    assert outcome.err.startswith("prediction: about ")
    assert outcome.err.splitlines()[-1].startswith("packing moe.jns: 100% of ")
    assert settings(model) == {"llama_model_path": "moe.jns"}
    assert (model / "moe.gguf").exists()
    assert drivetrain("pack", "moe") == (1, "", f"Error: 'moe' is packed already: {model / 'moe.jns'}\n")


def test_there_and_back_is_what_it_was(drivetrain: Terminal, model: Path, moe: Path) -> None:
    assert drivetrain("pack", "moe", "--replace").code == 0
    assert not (model / "moe.gguf").exists()
    assert drivetrain("unpack", "moe", "--replace").code == 0
    assert not (model / "moe.jns").exists()
    assert (model / "moe.gguf").read_bytes() == moe.read_bytes()
    assert settings(model) == {"llama_model_path": "moe.gguf"}


def test_what_is_there_already_is_not_made_again(drivetrain: Terminal, model: Path) -> None:
    drivetrain("pack", "moe")
    before = (model / "moe.jns").stat()
    assert (drivetrain("unpack", "moe").code, drivetrain("pack", "moe").code) == (0, 0)
    assert (model / "moe.jns").stat() == before


def test_in_json_each_line_is_a_value(drivetrain: Terminal, model: Path) -> None:
    prediction, *transfer, done = frames(drivetrain("pack", "moe", "--json"))
    told = prediction["prediction"]
    assert isinstance(told, dict) and told["streamed"] is False and told["tokens_s"] > 0
    assert {frame["status"] for frame in transfer} == {"packing moe.jns"}
    assert transfer[-1]["completed"] == transfer[-1]["total"]
    path = model / "moe.jns"
    assert done == {"status": "success", "packed": "moe", "file": str(path), "size": path.stat().st_size}


def test_a_file_is_packed_beside_itself_or_where_one_says(drivetrain: Terminal, moe: Path, tmp_path: Path) -> None:
    copy, there = tmp_path / "copy.gguf", tmp_path / "there.jns"
    copy.write_bytes(moe.read_bytes())
    assert drivetrain("pack", str(copy)).code == 0
    assert drivetrain("pack", str(copy), "--out", str(there)).code == 0
    assert there.read_bytes() == (tmp_path / "copy.jns").read_bytes()
    refused = f"Error: {there} is there already; delete it, or say another file with --out\n"
    assert drivetrain("pack", str(copy), "--out", str(there)) == (1, "", refused)
    assert drivetrain("pack", str(copy), "--out", str(there), "--replace").code == 2
    assert copy.exists()


def test_with_out_the_library_does_not_change(drivetrain: Terminal, model: Path, tmp_path: Path) -> None:
    assert drivetrain("pack", "moe", "--out", str(tmp_path / "x.jns")).code == 0
    assert [path.name for path in model.iterdir()] == ["moe.gguf"]


def test_the_parts_of_a_split_model_become_one_container(drivetrain: Terminal, tmp_path: Path) -> None:
    first = write_model(tmp_path / "split.gguf", "qwen3moe", "Q8_0", files=3)
    assert drivetrain("pack", str(first)).code == 0
    assert drivetrain("pack", "--verify", str(tmp_path / "split.jns")).code == 0


def test_a_container_is_compared_with_its_checksums(drivetrain: Terminal, model: Path) -> None:
    drivetrain("pack", "moe")
    path = model / "moe.jns"
    assert drivetrain("pack", "moe", "--verify").out == f"{path} is as it was written\n"
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    outcome = drivetrain("pack", "--verify", str(path))
    assert (outcome.code, outcome.out) == (1, "")
    assert "expert" in outcome.err.splitlines()[-1]
    assert "a GGUF has no checksums" in drivetrain("pack", "--verify", str(model / "moe.gguf")).err


def test_what_cannot_be_packed_says_why(drivetrain: Terminal, tmp_path: Path) -> None:
    dense = tmp_path / "dense.gguf"
    dense.write_bytes(tiny_gguf())
    assert drivetrain("pack", str(dense)) == (
        1,
        "",
        f"Error: '{dense}' has no experts, so nothing of it can be streamed\n",
    )
    assert drivetrain("pack", "nobody").code == 3
    assert drivetrain("pack", str(tmp_path / "nothing.gguf")).code == 2
    assert drivetrain("unpack", str(dense)) == (1, "", f"Error: '{dense}' is not packed: {dense}\n")
    cut = tmp_path / "cut.jns"
    cut.write_bytes(tiny_jns(tiny_gguf())[:9000])
    assert drivetrain("unpack", str(cut)).code == 1
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["cut.jns", "dense.gguf"]


def test_ctrl_c_leaves_what_was_done_for_the_next_time(moe: Path, tmp_path: Path) -> None:
    target, interrupted = tmp_path / "moe.jns", Event()
    with output.progress(as_json=False) as shown:
        tell = _teller(shown, "packing", interrupted)

        def after_half(done: int, total: int) -> None:
            if done > total // 2:
                interrupted.set()
            tell(done, total)

        with pytest.raises(KeyboardInterrupt):
            native.pack(moe, target, after_half)
        assert not target.exists()
        assert (tmp_path / "moe.jns.part").exists()
        native.pack(moe, target)
    assert [path.name for path in tmp_path.glob("moe*")] == ["moe.jns"]
