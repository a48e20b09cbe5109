"""tags, ps, show and version: members, order, and what official and other clients do with them."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import ollama as official
import pytest

from drivetrain.dialects import ollama
from drivetrain.dialects.ollama.listing import parameters_text
from drivetrain.errors import EngineFailed
from drivetrain.types import Experts, Loaded, Message, Model, ModelSpec, Text

SMALL = Model(
    id="smollm2:135m",
    engine="local",
    capabilities=frozenset({"tools", "completion"}),
    context_length=8192,
    embedding_length=576,
    created_s=1767323045,
    size_bytes=144811456,
    digest="sha256:" + "ab" * 32,
    format="gguf",
    family="llama",
    parameter_size="134.5M",
    quantization="Q8_0",
)
REMOTE = Model(id="org/Name", engine="api", created_s=1767323046)
DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "134.5M",
    "quantization_level": "Q8_0",
    "context_length": 8192,
    "embedding_length": 576,
}


def test_tags_lists_the_newest_first_with_every_member() -> None:  # ktransformers#1039
    answer = json.loads(ollama.encode_tags([SMALL, REMOTE]))
    assert [model["name"] for model in answer["models"]] == ["org/Name:latest", "smollm2:135m"]
    assert answer["models"][1] == {
        "name": "smollm2:135m",
        "model": "smollm2:135m",
        "modified_at": "2026-01-02T03:04:05.000000000Z",
        "size": 144811456,
        "digest": "ab" * 32,
        "details": DETAILS,
        "capabilities": ["completion", "tools"],
    }
    parsed = official.ListResponse(**answer)
    assert parsed.models[1].modified_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_model_without_files_has_a_stable_digest_of_64_hex_digits() -> None:
    first, again = (json.loads(ollama.encode_tags([REMOTE]))["models"][0]["digest"] for _ in range(2))
    assert first == again
    assert len(first) == 64
    assert int(first, 16)
    other = msgspec.structs.replace(REMOTE, engine="other")
    assert json.loads(ollama.encode_tags([other]))["models"][0]["digest"] != first


def test_ps_lists_the_one_that_stays_longest_first() -> None:
    loaded = [
        Loaded(model=SMALL, size_bytes=5, vram_bytes=3, context_length=4096, expires_s=1767323045.5),
        Loaded(model=REMOTE, size_bytes=1, expires_s=None),
        Loaded(model=SMALL, size_bytes=6, expires_s=1767323049.0),
    ]
    answer = json.loads(ollama.encode_ps(loaded))
    assert [model["size"] for model in answer["models"]] == [1, 6, 5]
    assert answer["models"][2] == {
        "name": "smollm2:135m",
        "model": "smollm2:135m",
        "size": 5,
        "digest": "ab" * 32,
        "details": DETAILS,
        "expires_at": "2026-01-02T03:04:05.500000000Z",
        "size_vram": 3,
        "context_length": 4096,
    }
    assert all(
        datetime.fromisoformat(model["expires_at"]).tzinfo for model in answer["models"]
    )  # as Open WebUI reads it
    assert official.ProcessResponse(**answer).models[0].name == "org/Name:latest"


def test_ps_tells_how_the_experts_of_a_streamed_model_fare() -> None:
    experts = Experts(hits=3, misses=1, wait_s=1.0, compute_s=3.0, budget_bytes=7)
    answer = json.loads(ollama.encode_ps([Loaded(model=SMALL, size_bytes=5, experts=experts)]))
    assert answer["models"][0]["experts"] == {
        "budget_bytes": 7,
        "resident_bytes": 0,
        "total_bytes": 0,
        "hits": 3,
        "misses": 1,
        "read_bytes": 0,
        "wait_s": 1.0,
        "compute_s": 3.0,
        "tokens": 0,
        "failures": 0,
        "hit_rate": 0.75,
        "wait_share": 0.25,
    }
    assert official.ProcessResponse(**answer).models[0].size == 5


def test_the_version_is_dotted_integers() -> None:
    version = json.loads(ollama.encode_version())["version"]
    assert [int(part) for part in version.split(".")] >= [0, 12, 6]


# --- show -------------------------------------------------------------------------------------------------------------


NOTHING = ollama.Shown()


def shown(known: ollama.Shown = NOTHING, basename: str | None = None, **spec: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        ollama.encode_show(ModelSpec(id="m", model=SMALL, **spec), known, basename=basename)
    )
    official.ShowResponse(**answer)
    return answer


def test_show_has_what_is_known_and_leaves_out_the_rest() -> None:
    known = ollama.Shown(
        license="L", modelfile="FROM x\n", model_info={"general.architecture": "llama", "llama.context_length": 1}
    )
    said = Message(role="user", content=(Text(text="Hi"),))
    answer = shown(known, template="{{ .Prompt }}", system="S", messages=(said,), parameters={"temperature": 0.5})
    assert answer == {
        "license": "L",
        "modelfile": "FROM x\n",
        "parameters": "temperature                    0.5",
        "template": "{{ .Prompt }}",
        "system": "S",
        "messages": [{"role": "user", "content": "Hi"}],
        "details": DETAILS,
        "model_info": {"general.architecture": "llama", "llama.context_length": 1, "llama.embedding_length": 576},
        "capabilities": ["completion", "tools"],
        "modified_at": "2026-01-02T03:04:05.000000000Z",
    }


def test_model_info_is_never_null_and_tells_the_context_size() -> None:
    assert shown()["model_info"] == {
        "general.architecture": "llama",
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
    }
    bare = json.loads(ollama.encode_show(ModelSpec(id="r", model=REMOTE), ollama.Shown()))
    assert bare["model_info"] == {"general.architecture": "unknown"}


def test_an_editor_finds_the_name_it_asked_for() -> None:
    assert shown(basename="smollm2:135m")["model_info"]["general.basename"] == "smollm2:135m"


def test_parameters_are_lines_of_a_name_and_a_value_without_spaces_or_in_quotes() -> None:  # as Continue reads them
    text = parameters_text(
        {"max_tokens": 64, "stop": ["<|end|>", "a b"], "top_k": 40, "stream": True}, {"ctx_len": 2048}
    )
    assert text.split("\n") == [
        "num_predict                    64",
        'stop                           "<|end|>"',
        'stop                           "a b"',
        "top_k                          40",
        "num_ctx                        2048",
    ]
    assert parameters_text({"num_ctx": 512}, {"num_ctx": 2048}) == "num_ctx                        512"
    assert parameters_text({}, {}) == ""


# --- what engines list ------------------------------------------------------------------------------------------------


def test_what_is_listed_is_read_again() -> None:
    (model,) = ollama.decode_tags(ollama.encode_tags([SMALL]))
    assert model == msgspec.structs.replace(SMALL, engine="", digest="ab" * 32)
    loaded = Loaded(model=model, size_bytes=5, vram_bytes=3, context_length=8192, expires_s=1767323045.5)
    (read,) = ollama.decode_ps(ollama.encode_ps([loaded]))
    assert read == msgspec.structs.replace(
        loaded, model=msgspec.structs.replace(model, capabilities=frozenset(), created_s=0, size_bytes=5)
    )


def test_show_adds_capabilities_and_lengths() -> None:
    body = ollama.encode_show(ModelSpec(id="m", model=SMALL), ollama.Shown())
    bare = Model(id="m", engine="box")
    assert ollama.decode_show(body, bare) == msgspec.structs.replace(
        bare, capabilities=SMALL.capabilities, context_length=8192, embedding_length=576
    )


def test_answers_of_older_servers_are_read() -> None:
    body = (
        b'{"models":[{"name":"a:latest","size":1,"modified_at":"2025-10-03T23:34:03.409490317-07:00","details":null}]}'
    )
    (model,) = ollama.decode_tags(body)
    assert (model.id, model.size_bytes, model.created_s) == ("a:latest", 1, 1759559643)
    assert ollama.decode_tags(b'{"models":null}') == ()
    assert ollama.decode_tags(b'{"models":[{"name":"a","modified_at":"soon"}]}')[0].created_s == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"models":[5]}'])
def test_what_is_no_list_is_the_engines_failure(body: bytes) -> None:
    for read in (ollama.decode_tags, ollama.decode_ps):
        with pytest.raises(EngineFailed):
            read(body)
