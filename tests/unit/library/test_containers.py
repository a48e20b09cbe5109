"""A packed model: its container stands where its GGUF stood, and nothing that cost time is lost by accident."""

from pathlib import Path

import anyio
import pytest

from drivetrain.config.schema import Downloads
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.library import Library
from drivetrain.types import Notice
from tests.fakes.registries import Registry, sha256
from tests.fakes.weights import tiny_gguf, tiny_jns

pytestmark = pytest.mark.anyio

WEIGHTS = tiny_gguf(8000)
CONTAINER = tiny_jns(WEIGHTS)


@pytest.fixture
async def packed(library: Library, home: Path, tmp_path: Path) -> Path:
    """The model `tiny`, imported and packed; its folder."""
    (tmp_path / "tiny.gguf").write_bytes(WEIGHTS)
    await library.add(tmp_path / "tiny.gguf", "tiny")
    place = library.place("tiny")
    (place.folder / "tiny.jns").write_bytes(CONTAINER)
    await library.switch("tiny", "tiny.jns", drop=False)
    return place.folder


async def test_the_model_uses_the_container_and_keeps_the_gguf(library: Library, packed: Path) -> None:
    spec = library.lookup("tiny")
    assert spec.weights == str(packed / "tiny.jns")
    assert (spec.model.format, spec.model.family, spec.model.size_bytes) == ("jns", "llama", len(CONTAINER))
    assert library.members("tiny")["format"] == "jns"
    assert (packed / "tiny.gguf").read_bytes() == WEIGHTS


async def test_the_gguf_goes_if_it_is_to_and_its_content_with_it(library: Library, home: Path, packed: Path) -> None:
    await library.switch("tiny", "tiny.gguf", drop=False)
    await library.switch("tiny", "tiny.jns", drop=True)
    assert sorted(path.name for path in packed.iterdir()) == [".weights.json", "model.json", "tiny.jns"]
    assert list((home / "blobs").glob("sha256-*")) == []


async def test_what_another_model_uses_stays(library: Library, home: Path, packed: Path) -> None:
    await library.switch("tiny", "tiny.gguf", drop=False)
    await library.copy("tiny", "other")
    await library.switch("tiny", "tiny.jns", drop=True)
    other = library.lookup("other").weights
    assert other is not None and Path(other).read_bytes() == WEIGHTS
    assert [path.name for path in (home / "blobs").glob("sha256-*")] == [sha256(WEIGHTS).replace(":", "-")]


async def test_and_back_again(library: Library, packed: Path) -> None:
    spec = await library.switch("tiny", "tiny.gguf", drop=True)
    assert (spec.weights, spec.model.format) == (str(packed / "tiny.gguf"), "gguf")
    assert not (packed / "tiny.jns").exists()
    assert spec.model.digest == sha256(WEIGHTS).removeprefix("sha256:")


async def test_a_models_folder_that_is_a_link_goes_and_what_it_points_to_stays(
    library: Library, home: Path, tmp_path: Path
) -> None:
    there = tmp_path / "drive" / "mine"
    there.mkdir(parents=True)
    (there / "mine.jns").write_bytes(CONTAINER)
    (home / "models").mkdir(parents=True)
    (home / "models" / "mine").symlink_to(there)
    await library.delete("mine")
    assert [entry.name for entry in (home / "models").iterdir() if not entry.name.endswith(".lock")] == []
    assert (there / "mine.jns").exists()


async def test_a_file_that_is_no_container_changes_nothing(library: Library, packed: Path) -> None:
    (packed / "bad.jns").write_bytes(CONTAINER[:9000])
    with pytest.raises(BadRequest, match="is it complete"):
        await library.switch("tiny", "bad.jns", drop=True)
    assert library.lookup("tiny").weights == str(packed / "tiny.jns")


async def test_a_container_is_copied_and_deleted_like_any_weights(library: Library, home: Path, packed: Path) -> None:
    await library.copy("tiny", "other")
    await library.delete("tiny")
    other = library.lookup("other").weights
    assert other is not None and Path(other).read_bytes() == CONTAINER
    await library.delete("other")
    assert list((home / "blobs").glob("sha256-*")) == []


async def test_a_container_is_imported_like_a_gguf(library: Library, home: Path, tmp_path: Path) -> None:
    (tmp_path / "moe.jns").write_bytes(CONTAINER)
    spec = await library.add(tmp_path / "moe.jns", "moe")
    assert spec.weights == str(home / "models" / "moe" / "moe.jns")
    assert spec.model.digest == sha256(CONTAINER).removeprefix("sha256:")
    await library.delete("moe")
    assert list((home / "blobs").glob("sha256-*")) == []


async def test_a_container_that_was_put_there_by_hand_is_found(library: Library, home: Path) -> None:
    folder = home / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "mine.jns").write_bytes(CONTAINER)
    assert library.lookup("mine").weights == str(folder / "mine.jns")
    await anyio.to_thread.run_sync((folder / "mine.gguf").write_bytes, WEIGHTS)
    await library.settle()
    assert library.lookup("mine").weights == str(folder / "mine.jns")  # the faster of the two


async def test_a_pull_of_the_same_weights_keeps_the_container(home: Path, notices: list[Notice]) -> None:
    registry = Registry()
    registry.publish("library/tiny:latest", {"model": WEIGHTS})
    async with registry.serving() as site:
        library = Library(home, Downloads(ollama=site.url), notices.append)
        [status async for status in library.pull("tiny")]
        folder = library.place("tiny").folder
        (folder / "model.jns").write_bytes(CONTAINER)
        await library.switch("tiny", "model.jns", drop=False)
        [status async for status in library.pull("tiny")]
        assert library.lookup("tiny").weights == str(folder / "model.jns")

        registry.publish("library/tiny:latest", {"model": tiny_gguf(9000)})
        [status async for status in library.pull("tiny")]
        assert library.lookup("tiny").weights == str(folder / "model.gguf")
        assert not (folder / "model.jns").exists()


async def test_a_packed_model_is_not_pushed(library: Library, packed: Path) -> None:
    with pytest.raises(Unsupported, match="undo it with: drivetrain unpack tiny"):
        [status async for status in library.push("tiny")]
