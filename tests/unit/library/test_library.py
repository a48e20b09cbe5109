"""Models are imported, changed, copied, created and removed; what nobody uses any more is gone, all else stays."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drivetrain.dialects.ollama.management import CreateRequest
from drivetrain.errors import BadRequest, Conflict, ModelNotFound, NotFound, Unsupported
from drivetrain.library import Library
from drivetrain.types import Message, Notice, Text
from tests.fakes.registries import pieces, sha256
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

WEIGHTS = tiny_gguf()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(WEIGHTS)
    return path


def blobs(home: Path) -> set[str]:
    return {path.name.replace("-", ":") for path in (home / "blobs").glob("sha256-*")}


async def create(library: Library, model: str, **said: Any) -> list[str]:
    return [status.status async for status in library.create(CreateRequest(model=model, **said))]


# --- import -----------------------------------------------------------------------------------------------------------


async def test_an_imported_file_is_copied(library: Library, home: Path, file: Path, notices: list[Notice]) -> None:
    spec = await library.add(file, "org/tiny:q4")
    assert spec.weights == str(home / "models" / "org%2Ftiny%3Aq4" / "tiny.gguf")
    assert spec.model.digest == sha256(WEIGHTS).removeprefix("sha256:")
    assert blobs(home) == {sha256(WEIGHTS)}
    file.write_bytes(b"changed afterwards")
    assert Path(spec.weights).read_bytes() == WEIGHTS
    assert [(notice.name, notice.model) for notice in notices] == [("models.updated", "org/tiny:q4")]


async def test_a_linked_file_stays_where_it_is(library: Library, home: Path, file: Path) -> None:
    spec = await library.add(file, "tiny", link=True)
    assert spec.weights is not None and Path(spec.weights).resolve() == file
    assert spec.model.digest == sha256(WEIGHTS).removeprefix("sha256:")
    assert blobs(home) == set()
    await library.delete("tiny")
    assert file.read_bytes() == WEIGHTS


async def test_an_existing_model_json_is_never_overwritten(library: Library, home: Path, file: Path) -> None:
    folder = home / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text('{"parameters": {"temperature": 0.1}, "mine": true}')
    await library.add(file, "tiny")
    members = json.loads((folder / "model.json").read_text())
    assert members["parameters"] == {"temperature": 0.1}
    assert members["mine"] is True


async def test_a_broken_model_json_is_not_touched(library: Library, home: Path, file: Path) -> None:
    folder = home / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{ this is mine")
    with pytest.raises(BadRequest, match="not overwritten"):
        await library.add(file, "tiny")
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("model.json", "{ this is mine")]


async def test_the_same_weights_again_are_no_error_and_others_a_conflict(library: Library, file: Path) -> None:
    await library.add(file, "tiny")
    assert (await library.add(file, "tiny")).id == "tiny"
    file.write_bytes(tiny_gguf(8192))
    with pytest.raises(Conflict, match="'tiny' is there already"):
        await library.add(file, "tiny")


async def test_a_folder_with_a_split_model_and_a_projector(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    for name in ("w-00001-of-00002.gguf", "w-00002-of-00002.gguf", "mmproj.gguf"):
        (folder / name).write_bytes(tiny_gguf(general__name=name))
    (folder / "model.json").write_text('{"id": "other", "system": "Be brief.", "parameters": {"top_k": 3}}')
    spec = await library.add(folder, "big")
    assert spec.id == "big"
    assert (spec.system, spec.parameters) == ("Be brief.", {"top_k": 3})
    assert spec.weights is not None and spec.weights.endswith("w-00001-of-00002.gguf")
    assert spec.projector is not None and spec.projector.endswith("mmproj.gguf")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("pytorch_model.bin", b"\x80\x02", "may be a pickle"),
        ("model.pt", b"\x80\x02", "is a pickle"),
        ("model.safetensors", b"{}", "converted to GGUF"),
        ("notes.txt", b"hello", r"only \*\.gguf and \*\.jns are accepted"),
        ("fake.gguf", b"\x80\x02 a pickle in disguise, long enough", "does not begin with the letters GGUF"),
    ],
)
async def test_only_gguf_is_accepted(
    library: Library, home: Path, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(content)
    for path in (folder / name, folder) if name != "notes.txt" else (folder / name,):
        with pytest.raises(BadRequest, match=reason):
            await library.add(path, "x")
    assert blobs(home) == set()
    assert not (home / "models" / "x").exists()


async def test_a_path_that_is_not_there_is_named(library: Library, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"gone\.gguf does not exist"):
        await library.add(tmp_path / "gone.gguf", "x")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "x\0"])
async def test_no_name_leads_outside(library: Library, home: Path, file: Path, name: str) -> None:
    for change in (library.add(file, name), library.copy("tiny", name)):
        with pytest.raises((BadRequest, ModelNotFound)):
            await change
    assert not home.exists()


# --- change -----------------------------------------------------------------------------------------------------------


async def test_an_update_is_seen_at_once(library: Library, file: Path) -> None:
    await library.add(file, "tiny")
    spec = await library.update("TINY:latest", {"parameters": {"temperature": 0.3}, "system": "Hi.", "own": [1]})
    assert (spec.parameters, spec.system) == ({"temperature": 0.3}, "Hi.")
    assert library.members("tiny")["own"] == [1]


async def test_a_remote_model_needs_no_weights(library: Library) -> None:
    spec = await library.define("chat", {"engine": "gpu-a", "remote_model": "org/name", "parameters": {"top_p": 0.5}})
    assert (spec.engine, spec.remote_model, spec.weights) == ("gpu-a", "org/name", None)
    assert len(spec.model.digest) == 64
    with pytest.raises(Conflict):
        await library.define("chat", {"engine": "gpu-b"})


async def test_a_copy_shares_its_bytes_and_not_its_settings(library: Library, home: Path, file: Path) -> None:
    original = await library.add(file, "tiny")
    await library.copy("tiny", "org/copy:v1")
    await library.update("org/copy:v1", {"system": "Mine."})
    copied = library.lookup("org/copy:v1")
    assert copied.weights is not None and original.weights is not None
    assert os.path.samefile(copied.weights, original.weights)
    assert library.lookup("tiny").system is None
    assert library.members("org/copy:v1")["id"] == "org/copy:v1"
    assert blobs(home) == {sha256(WEIGHTS)}


async def test_content_goes_with_the_last_model_that_uses_it(library: Library, home: Path, file: Path) -> None:
    await library.add(file, "one")
    await library.copy("one", "two")
    await library.delete("one")
    assert blobs(home) == {sha256(WEIGHTS)}
    two = library.lookup("two")
    assert two.weights is not None and Path(two.weights).read_bytes() == WEIGHTS
    await library.delete("two:latest")
    assert blobs(home) == set()
    assert list(library.list()) == []
    with pytest.raises(ModelNotFound, match="model 'two' not found"):
        await library.delete("two")


async def test_a_model_put_there_by_hand_gets_its_digest(library: Library, home: Path) -> None:
    folder = home / "models" / "hand"
    folder.mkdir(parents=True)
    (folder / "w.gguf").write_bytes(WEIGHTS)
    stand_in = library.lookup("hand").model.digest
    assert stand_in == library.lookup("hand").model.digest
    await library.settle()
    assert library.lookup("hand").model.digest == sha256(WEIGHTS).removeprefix("sha256:")


async def test_settling_clears_away_what_a_killed_process_left(library: Library, home: Path) -> None:
    (home / "models" / ".stage-1").mkdir(parents=True)
    (home / "models" / ".gone-1").mkdir()
    await library.settle()
    assert [path.name for path in (home / "models").iterdir() if path.is_dir()] == []


async def test_no_model_comes_in_with_parameters_that_no_request_could_use(library: Library, file: Path) -> None:
    await library.add(file, "tiny")
    with pytest.raises(BadRequest, match="'temperature' of a model must be a number, not \"hot\""):
        await create(library, "mario", from_="tiny", parameters={"temperature": "hot"})
    with pytest.raises(BadRequest, match="'top_p' of a model must be a number, not \"1\""):
        await library.define("chat", {"engine": "gpu-a", "parameters": {"top_p": "1"}})
    (file.parent / "model.json").write_text('{"parameters": {"seed": "s"}}')
    with pytest.raises(BadRequest, match="'seed' of a model must be a whole number, not \"s\""):
        await library.add(file.parent, "other")
    assert [spec.id for spec in library.list()] == ["tiny"]


# --- create -----------------------------------------------------------------------------------------------------------


async def test_created_from_another_with_new_words(library: Library, home: Path, file: Path) -> None:
    await library.add(file, "tiny")
    await library.update("tiny", {"parameters": {"top_k": 5, "temperature": 1.0}, "settings": {"n_ctx": 512}})
    told = await create(
        library,
        "mario",
        from_="tiny",
        system="You are Mario.",
        template="{{ .Prompt }}",
        parameters={"temperature": 0.5, "stop": ["a", "b"]},
        licenses=("MIT",),
        messages=(Message(role="user", content=(Text(text="Hello"),)),),
    )
    assert told[0] == "parsing GGUF"
    assert told[1] == f"using existing layer {sha256(WEIGHTS)}"
    assert told[-2:] == ["writing manifest", "success"]
    assert sum(status.startswith("creating new layer sha256:") for status in told) == 5
    spec = library.lookup("mario:latest")
    assert (spec.system, spec.template) == ("You are Mario.", "{{ .Prompt }}")
    assert spec.parameters == {"top_k": 5, "temperature": 0.5, "stop": ["a", "b"]}
    assert spec.settings["n_ctx"] == 512
    assert [(message.role, message.text) for message in spec.messages] == [("user", "Hello")]
    assert library.members("mario")["license"] == ["MIT"]
    assert library.lookup("tiny").system is None
    assert blobs(home) == {sha256(WEIGHTS)}


async def test_created_from_uploaded_files(library: Library) -> None:
    adapter = tiny_gguf(general__type="adapter")
    for data in (WEIGHTS, adapter):
        await library.put_blob(sha256(data), pieces(data))
    hexes = {name: sha256(data).removeprefix("sha256:") for name, data in (("m.gguf", WEIGHTS), ("a.gguf", adapter))}
    await create(library, "made", files={"m.gguf": hexes["m.gguf"]}, adapters={"a.gguf": hexes["a.gguf"]})
    spec = library.lookup("made")
    assert spec.weights is not None and spec.weights.endswith("/m.gguf")
    assert [Path(path).name for path in spec.adapters] == ["adapter-0.gguf"]
    assert spec.model.digest == hexes["m.gguf"]


async def test_creating_again_replaces(library: Library, file: Path) -> None:
    await library.add(file, "tiny")
    await create(library, "mario", from_="tiny", system="One.", parameters={"top_k": 1})
    await create(library, "mario", from_="tiny", system="Two.")
    assert library.lookup("mario").system == "Two."
    assert library.lookup("mario").parameters == {}
    await create(library, "mario", from_="mario", parameters={"top_k": 2})
    assert (library.lookup("mario").system, library.lookup("mario").parameters) == ("Two.", {"top_k": 2})


async def test_created_from_a_linked_model_links_to_the_same_file(library: Library, home: Path, file: Path) -> None:
    await library.add(file, "tiny", link=True)
    await create(library, "mario", from_="tiny", system="You are Mario.")
    spec = library.lookup("mario")
    assert spec.weights is not None and Path(spec.weights).resolve() == file
    assert blobs(home) == set()


@pytest.mark.parametrize(
    ("said", "error", "reason"),
    [
        ({"files": {"x.gguf": "0" * 64}}, NotFound, r'blob "sha256:0+" not found'),
        ({"from_": "tiny", "quantize": "Q4_K_M"}, Unsupported, "cannot quantize to 'Q4_K_M'"),
        ({"from_": "tiny", "remote_host": "https://example.com"}, Unsupported, "drivetrain.yaml"),
        ({}, BadRequest, "neither 'from' or 'files' was specified"),
    ],
)
async def test_what_cannot_be_made_is_refused(
    library: Library, file: Path, said: dict[str, Any], error: type[Exception], reason: str
) -> None:
    await library.add(file, "tiny")
    with pytest.raises(error, match=reason):
        await create(library, "made", **said)
    with pytest.raises(ModelNotFound):
        library.lookup("made")


async def test_a_missing_blob_is_told_before_anything_else(library: Library) -> None:
    statuses = library.create(CreateRequest(model="made", files={"x.gguf": "0" * 64}))
    with pytest.raises(NotFound, match=r'blob "sha256:0+" not found'):
        await anext(statuses)


async def test_a_bad_file_is_told_by_its_name_alone(library: Library) -> None:
    data = b"GGUF" + b"\1" * 64
    await library.put_blob(sha256(data), pieces(data))
    with pytest.raises(BadRequest, match=r"^'x\.gguf' is not a usable GGUF file: "):
        await create(library, "made", files={"x.gguf": sha256(data).removeprefix("sha256:")})


async def test_an_uploaded_pickle_does_not_become_a_model(library: Library) -> None:
    data = b"\x80\x04 a pickle"
    await library.put_blob(sha256(data), pieces(data))
    for name in ("m.gguf", "pytorch_model.bin"):
        with pytest.raises(BadRequest):
            await create(library, "made", files={name: sha256(data).removeprefix("sha256:")})
    assert list(library.list()) == []
