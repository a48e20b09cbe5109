"""What the folders hold is what the library lists, whoever put it there and whenever."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import BadRequest, ModelNotFound
from drivetrain.library import Layer, Library, Setting
from tests.fakes.weights import smollm2, tiny_gguf


def put(home: Path, folder: str, members: dict[str, object] | None = None, /, **files: bytes) -> Path:
    """A model's folder, as somebody makes it by hand."""
    path = home / "models" / folder
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / f"{name}.gguf").write_bytes(content)
    if members is not None:
        (path / "model.json").write_text(json.dumps(members))
    return path


def eventually(holds: Callable[[], bool]) -> None:
    """The folders are looked at again after a while, by themselves."""
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_file_in_a_folder_is_a_model(library: Library, home: Path) -> None:
    put(home, "tiny", weights=tiny_gguf())
    spec = library.lookup("tiny")
    assert spec.engine == "local"
    assert spec.weights == str(home / "models" / "tiny" / "weights.gguf")
    assert spec.model.size_bytes == len(tiny_gguf())
    assert spec.model.context_length == 2048


def test_jans_tree_is_read(library: Library, home: Path) -> None:
    put(
        home,
        "tinyllama-1.1b",
        {"id": "tinyllama-1.1b", "engine": "nitro", "settings": {"ngl": 33, "llama_model_path": "b.gguf"}},
        a=tiny_gguf(),
        b=tiny_gguf(8192),
    )
    (home / "engines").mkdir()
    (home / "engines" / "nitro.json").write_text('{"ctx_len": 2048, "ngl": 100, "cpu_threads": 1}')
    spec = library.lookup("tinyllama-1.1b")
    assert spec.engine == "local"
    assert spec.weights is not None and spec.weights.endswith("/b.gguf")
    assert spec.settings == {"ctx_len": 2048, "ngl": 33, "cpu_threads": 1, "llama_model_path": "b.gguf"}


def test_every_setting_tells_where_it_comes_from(library: Library, home: Path) -> None:
    folder = put(home, "tiny", {"settings": {"n_ctx": 512}, "parameters": {"top_k": 1}}, weights=tiny_gguf())
    (home / "engines" / "local").mkdir(parents=True)
    engine = home / "engines" / "local" / "engine.json"
    engine.write_text('{"settings": {"n_ctx": 4096, "threads": 2}, "parameters": {"temperature": 1}}')
    policy = Layer(origin="policy interactive", parameters={"temperature": 0.1})
    assert library.effective("tiny", [policy]) == {
        "settings.n_ctx": Setting(512, str(folder / "model.json")),
        "settings.threads": Setting(2, str(engine)),
        "parameters.temperature": Setting(0.1, "policy interactive"),
        "parameters.top_k": Setting(1, str(folder / "model.json")),
    }


def test_an_engines_address_and_key_are_no_settings_of_a_model(library: Library, home: Path) -> None:
    put(home, "gpt", {"engine": "openai"})
    (home / "engines").mkdir()
    (home / "engines" / "openai.json").write_text('{"full_url": "https://example.com", "api_key": "secret"}')
    assert library.lookup("gpt").settings == {}
    assert library.lookup("gpt").remote_model == "gpt"


@pytest.mark.parametrize(
    "name",
    ["llama3.2", "llama3.2:latest", "LLAMA3.2", "library/llama3.2", "registry.ollama.ai/library/llama3.2:latest"],
)
@pytest.mark.parametrize("folder", ["llama3.2", "llama3.2%3Alatest"])
def test_a_name_is_resolved_as_ollama_does(library: Library, home: Path, name: str, folder: str) -> None:
    put(home, folder, weights=tiny_gguf())
    assert library.lookup(name).weights == str(home / "models" / folder / "weights.gguf")


def test_another_tag_is_another_model(library: Library, home: Path) -> None:
    put(home, "llama3.2%3A1b", weights=tiny_gguf())
    with pytest.raises(ModelNotFound, match=r"model 'llama3\.2' not found"):
        library.lookup("llama3.2")


def test_folders_below_folders_are_ids_with_slashes(library: Library, home: Path) -> None:
    put(home, "org/name", weights=tiny_gguf())
    put(home, "org2%2Fname", weights=tiny_gguf())
    assert library.lookup("org/name").id == "org/name"
    assert library.lookup("org2/name").id == "org2/name"


def test_the_id_in_the_file_counts_unless_a_folder_has_it(library: Library, home: Path) -> None:
    put(home, "folder", {"id": "inside"}, weights=tiny_gguf())
    put(home, "real", {"id": "real"}, weights=tiny_gguf())
    put(home, "copy", {"id": "real"}, weights=tiny_gguf(8192))
    assert {spec.id for spec in library.list()} == {"inside", "real", "copy"}
    assert library.lookup("real").model.size_bytes == len(tiny_gguf())


@pytest.mark.parametrize(
    ("members", "files", "reason"),
    [
        (None, {"a": tiny_gguf(), "b": tiny_gguf()}, r"several models \(a.gguf, b.gguf\)"),
        (None, {"a": b"PK\x03\x04 this is no GGUF at all"}, "does not begin with the letters GGUF"),
        (None, {"a": tiny_gguf(100_000)[:50_000]}, "is the download complete"),
        ({"settings": {"llama_model_path": "gone.gguf"}}, {}, "'gone.gguf', named in its model.json, does not exist"),
        ({"sources": [{"filename": "x.gguf"}]}, {}, "x.gguf is not in its folder"),
        ({"settings": 1}, {"a": tiny_gguf()}, r"\$\.settings"),
        ({"id": "../x"}, {"a": tiny_gguf()}, "invalid model name"),
    ],
)
def test_a_broken_model_is_listed_with_the_reason_and_left_alone(
    library: Library, home: Path, members: dict[str, object] | None, files: dict[str, bytes], reason: str
) -> None:
    folder = put(home, "odd", members, **files)
    before = sorted(path.name for path in folder.iterdir())
    assert list(library.list()) == []
    (broken,) = library.broken()
    assert broken.id == "odd"
    with pytest.raises(BadRequest, match=reason):
        library.lookup("odd")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_one_broken_model_does_not_hide_the_others(library: Library, home: Path) -> None:
    put(home, "bad", weights=b"x")
    put(home, "good", weights=tiny_gguf())
    assert [spec.id for spec in library.list()] == ["good"]


def test_newest_first_and_what_is_added_by_hand_appears(library: Library, home: Path) -> None:
    old = put(home, "old", weights=tiny_gguf())
    os.utime(old / "weights.gguf", (1_000_000_000, 1_000_000_000))
    assert [spec.id for spec in library.list()] == ["old"]
    put(home, "new", weights=tiny_gguf())
    eventually(lambda: len(library.list()) == 2)
    assert library.lookup("new").id == "new"
    assert [spec.id for spec in library.list()] == ["new", "old"]


def test_a_file_that_is_edited_by_hand_counts(library: Library, home: Path) -> None:
    folder = put(home, "tiny", {"system": "one"}, weights=tiny_gguf())
    assert library.lookup("tiny").system == "one"
    (folder / "model.json").write_text('{"system": "another"}')
    eventually(lambda: library.lookup("tiny").system == "another")


def test_a_look_up_that_repeats_gives_what_was_resolved_before(library: Library, home: Path) -> None:
    put(home, "m7", weights=tiny_gguf())
    assert library.lookup("m7") is library.lookup("m7")


def test_hidden_folders_and_files_are_no_models(library: Library, home: Path) -> None:
    put(home, ".stage-1", weights=tiny_gguf())
    (home / "models" / "README.md").write_text("mine")
    assert list(library.list()) == []


def test_a_home_without_models_is_empty(library: Library) -> None:
    assert list(library.list()) == []
    with pytest.raises(ModelNotFound):
        library.lookup("x")


def test_the_real_model_is_described(library: Library, home: Path) -> None:
    folder = put(home, "smollm2%3A135m")
    (folder / "weights.gguf").symlink_to(smollm2())
    model = library.lookup("smollm2:135m").model
    assert (model.family, model.parameter_size, model.quantization) == ("llama", "134.52M", "Q4_1")
    assert (model.context_length, model.embedding_length) == (8192, 576)
    assert model.capabilities == {"completion"}
    assert len(model.digest) == 64


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"tokenizer__chat_template": "{% if tools %}x{% endif %}"}, {"completion", "tools"}),
        ({"tokenizer__chat_template": "{{ '<think>' }}"}, {"completion", "thinking"}),
        ({"tokenizer__ggml__fim_pre_token_id": 1}, {"completion", "insert"}),
        ({"general__architecture": "bert"}, {"embedding"}),
        ({"general__architecture": "qwen3", "qwen3__pooling_type": 3}, {"embedding"}),
        ({"general__architecture": "qwen3", "qwen3__pooling_type": 4}, {"rerank"}),
    ],
)
def test_capabilities_are_read_from_the_weights(
    library: Library, home: Path, metadata: dict[str, Any], expected: set[str]
) -> None:
    put(home, "m", weights=tiny_gguf(**metadata))
    assert library.lookup("m").model.capabilities == expected


def test_a_projector_gives_sight_and_a_go_template_tools(library: Library, home: Path) -> None:
    put(home, "m", {"template": "{{ if .Tools }}{{ .Tools }}{{ end }}"}, weights=tiny_gguf(), mmproj_f16=tiny_gguf())
    spec = library.lookup("m")
    assert spec.projector is not None and spec.projector.endswith("mmproj_f16.gguf")
    assert spec.weights is not None and spec.weights.endswith("weights.gguf")
    assert spec.model.capabilities == {"completion", "vision", "tools"}


def test_a_split_model_is_whole_or_broken(library: Library, home: Path) -> None:
    folder = put(home, "big")
    (folder / "w-00001-of-00002.gguf").write_bytes(tiny_gguf())
    (folder / "w-00002-of-00002.gguf").write_bytes(tiny_gguf(8192))
    spec = library.lookup("big")
    assert spec.weights is not None and spec.weights.endswith("w-00001-of-00002.gguf")
    assert spec.model.size_bytes == len(tiny_gguf()) + len(tiny_gguf(8192))
    (folder / "w-00002-of-00002.gguf").unlink()
    eventually(lambda: not library.list())
    assert "w-00002-of-00002.gguf' is missing" in library.broken()[0].reason
