"""model.json: unknown members stay, a patch merges, what says which bytes these are cannot be changed."""

import json
from pathlib import Path

import pytest

from drivetrain.errors import BadRequest
from drivetrain.library import record

JANS = {
    "sources": [{"filename": "tiny.gguf", "url": "https://example.com/tiny.gguf"}],
    "id": "tinyllama-1.1b",
    "object": "model",
    "name": "TinyLlama Chat 1.1B Q4",
    "version": "1.0",
    "description": "TinyLlama is a tiny model.",
    "format": "gguf",
    "settings": {"ctx_len": 4096, "ngl": 33, "prompt_template": "<|user|>\n{prompt}", "llama_model_path": "tiny.gguf"},
    "parameters": {"temperature": 0.7, "top_p": 0.95, "stream": True, "max_tokens": 2048, "stop": []},
    "metadata": {"author": "TinyLlama", "tags": ["Tiny"], "size": 669000000},
    "engine": "nitro",
}


def test_reads_jans_file() -> None:
    read = record.check(JANS)
    assert read.engine_named == "nitro"
    assert read.engine_resolved == "local"
    assert read.load_time["ctx_len"] == 4096
    assert read.request_time["temperature"] == 0.7
    assert read.filenames == ("tiny.gguf",)


def test_reads_the_members_of_jans_first_versions() -> None:
    read = record.check(
        {"source_url": "https://example.com/x", "engine_parameters": {"ngl": 1}, "model_parameters": {"top_p": 0.5}}
    )
    assert (read.load_time, read.request_time) == ({"ngl": 1}, {"top_p": 0.5})


def test_a_missing_engine_is_the_embedded_one() -> None:
    assert record.check({}).engine_resolved == "local"


def test_an_engine_that_is_not_ours_keeps_its_name() -> None:
    assert record.check({"engine": "gpu-a"}).engine_resolved == "gpu-a"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"settings": []}, r"Expected `object`, got `array` - at `\$.settings`"),
        ({"engine": 3}, r"Expected `str \| null`, got `int` - at `\$.engine`"),
        ({"messages": [{"role": "robot"}]}, r"Invalid enum value 'robot' - at `\$.messages\[0\].role`"),
    ],
)
def test_a_wrong_member_is_named(members: record.Members, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        record.check(members)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a":1} x'])
def test_a_broken_file_is_told_as_such(tmp_path: Path, text: str) -> None:
    (tmp_path / record.FILE).write_text(text)
    with pytest.raises(BadRequest, match=r"model\.json is not a JSON object"):
        record.read(tmp_path)


def test_unknown_members_survive_a_rewrite(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text(json.dumps({**JANS, "x-mine": {"deep": [1, 2.5, None]}}))
    record.write(tmp_path, record.patched(record.read(tmp_path), {"description": "new"}))
    assert json.loads((tmp_path / record.FILE).read_text()) == {
        **JANS,
        "x-mine": {"deep": [1, 2.5, None]},
        "description": "new",
    }
    assert [path.name for path in tmp_path.iterdir()] == [record.FILE]  # no draft left behind


def test_a_patch_merges_and_null_removes() -> None:
    patched = record.patched(JANS, {"settings": {"ngl": None, "ctx_len": 8192}, "engine": None, "prompt_version": 3})
    assert patched["settings"] == {
        "ctx_len": 8192,
        "prompt_template": "<|user|>\n{prompt}",
        "llama_model_path": "tiny.gguf",
    }
    assert "engine" not in patched
    assert patched["prompt_version"] == 3


@pytest.mark.parametrize(
    "patch",
    [
        {"id": "other"},
        {"sources": []},
        {"settings": {"llama_model_path": "/etc/passwd"}},
        {"settings": {"mmproj": "../x"}},
        {"projector": "x.gguf"},
        {"adapters": ["/x"]},
    ],
)
def test_a_patch_cannot_say_that_a_model_is_other_files(patch: record.Members) -> None:
    with pytest.raises(BadRequest, match="cannot be changed"):
        record.patched(JANS, patch)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"temperature": "hot"}, "'temperature' of a model must be a number, not \"hot\""),
        ({"top_k": 1.5}, "'top_k' of a model must be a whole number, not 1.5"),
        ({"num_predict": "many"}, "'num_predict' of a model must be a whole number, not \"many\""),
        ({"stop": [1]}, "'stop' of a model must be a text or a list of texts, not [1]"),
        ({"logit_bias": 3}, "'logit_bias' of a model must be a mapping of tokens to numbers, not 3"),
    ],
)
def test_a_patch_brings_no_parameter_that_no_request_could_use(given: record.Members, wrong: str) -> None:
    for member in ("parameters", "model_parameters"):
        with pytest.raises(BadRequest) as caught:
            record.patched(JANS, {member: given})
        assert caught.value.message == f"parameter {wrong}"
        assert caught.value.param == f"parameters.{next(iter(given))}"


def test_parameters_that_fit_or_are_not_ours_are_kept() -> None:
    given = {"temperature": 1, "stop": "x", "num_predict": -1, "top_k": None, "mirostat": "any"}
    after = record.patched({}, {"parameters": given})["parameters"]
    assert after == {"temperature": 1, "stop": "x", "num_predict": -1, "mirostat": "any"}


def test_a_patch_may_repeat_what_it_cannot_change() -> None:
    assert record.patched(JANS, JANS) == JANS


def test_a_patch_that_breaks_the_file_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"\$\.parameters"):
        record.patched(JANS, {"parameters": "hot"})
