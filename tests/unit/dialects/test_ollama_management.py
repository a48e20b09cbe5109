"""Requests that change what models there are, and the lines that tell how they go."""

import json
from collections.abc import Callable
from typing import Any

import ollama as official
import pytest

from drivetrain.dialects import ollama
from drivetrain.dialects.ollama import CopyRequest, CreateRequest, ShowRequest, StatusLine, TransferRequest
from drivetrain.errors import BadRequest, EngineFailed, ModelNotFound
from drivetrain.types import Message, Text

DIGEST = "sha256:" + "ab" * 32


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_requests() -> None:
    assert ollama.decode_show_request(body(model="m", system="s", options={"top_k": 1, "odd": 2})) == ShowRequest(
        model="m", system="s", options={"top_k": 1}
    )
    assert ollama.decode_show_request(body(model="m", verbose=True)) == ShowRequest(model="m", verbose=True)
    assert ollama.decode_pull_request(body(model="hf.co/u/r:Q4", insecure=True)) == TransferRequest(
        model="hf.co/u/r:Q4", insecure=True
    )
    assert ollama.decode_push_request(body(model="me/m", stream=False)) == TransferRequest(model="me/m", stream=False)
    assert ollama.decode_delete_request(body(model="m")) == "m"
    assert ollama.decode_copy_request(body(source="a", destination="b:c")) == CopyRequest(source="a", destination="b:c")


def test_the_older_word_for_the_model_is_understood() -> None:
    assert ollama.decode_show_request(body(name="m")).model == "m"
    assert ollama.decode_pull_request(body(name="m")).model == "m"
    assert ollama.decode_push_request(body(name="m", model="")).model == "m"
    assert ollama.decode_delete_request(body(name="m")) == "m"
    assert ollama.decode_create_request(body(name="m", **{"from": "x"})).model == "m"


@pytest.mark.parametrize(
    ("decode", "said", "error"),
    [
        (ollama.decode_show_request, {}, "model is required"),
        (ollama.decode_push_request, {}, "model is required"),
        (ollama.decode_delete_request, {}, "model is required"),
        (ollama.decode_pull_request, {}, "invalid model name"),
        (ollama.decode_create_request, {"from": "x"}, "invalid model name"),
        (ollama.decode_create_request, {"model": "../x", "from": "x"}, "invalid model name"),
        (ollama.decode_create_request, {"model": "m"}, "neither 'from' or 'files' was specified"),
        (ollama.decode_create_request, {"model": "m", "files": {"a": "sha256:1"}}, None),
        (
            ollama.decode_create_request,
            {"model": "m", "from": "x", "parameters": {"top_k": "a"}},
            'option "top_k" must be of type integer',
        ),
        (ollama.decode_copy_request, {"destination": "b"}, 'source "" is invalid'),
        (ollama.decode_copy_request, {"source": "a", "destination": "../b"}, 'destination "../b" is invalid'),
    ],
)
def test_a_bad_request_is_refused_in_ollamas_words(
    decode: Callable[[bytes], Any], said: dict[str, Any], error: str | None
) -> None:
    with pytest.raises(BadRequest) as refused:
        decode(body(**said))
    if error is not None:
        assert refused.value.message == error
    with pytest.raises(BadRequest, match="missing request body"):
        decode(b"")


def test_create_from_a_model() -> None:
    request = ollama.decode_create_request(
        body(
            model="mario",
            **{"from": "llama3"},
            template="{{ .Prompt }}",
            system="You are Mario.",
            license="MIT",
            parameters={"temperature": 1, "stop": ["a"], "unknown": 1},
            messages=[{"role": "user", "content": "Hi"}],
            quantization="q4_K_M",
            stream=False,
        )
    )
    assert request == CreateRequest(
        model="mario",
        from_="llama3",
        template="{{ .Prompt }}",
        system="You are Mario.",
        licenses=("MIT",),
        parameters={"temperature": 1, "stop": ["a"]},
        messages=(Message(role="user", content=(Text(text="Hi"),)),),
        quantize="q4_K_M",
        stream=False,
    )


def test_create_from_blobs() -> None:
    request = ollama.decode_create_request(
        body(model="m", files={"a/m.gguf": DIGEST}, adapters={"l.gguf": DIGEST}, license=["A", "B"])
    )
    assert request == CreateRequest(
        model="m", files={"a/m.gguf": "ab" * 32}, adapters={"l.gguf": "ab" * 32}, licenses=("A", "B")
    )


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "C:\\x", "\\\\host\\x", "..\\x", "", "a\0b"])
@pytest.mark.parametrize("member", ["files", "adapters", "draft_files"])
def test_files_stay_inside_the_model(path: str, member: str) -> None:
    with pytest.raises(BadRequest, match="must be relative and stay inside"):
        ollama.decode_create_request(body(model="m", **{"from": "x", member: {path: DIGEST}}))


def test_create_from_a_modelfiles_text_as_older_clients_do() -> None:
    text = 'FROM llama3\nSYSTEM Be brief.\nPARAMETER temperature 0.5\nMESSAGE user Hi\nLICENSE """MIT"""'
    request = ollama.decode_create_request(body(name="m", modelfile=text, system="Be long."))
    assert request == CreateRequest(
        model="m",
        from_="llama3",
        system="Be long.",
        parameters={"temperature": 0.5},
        messages=(Message(role="user", content=(Text(text="Hi"),)),),
        licenses=("MIT",),
    )


# --- status lines -----------------------------------------------------------------------------------------------------


def test_status_lines_leave_out_what_is_zero() -> None:
    assert ollama.encode_status("pulling manifest") == b'{"status":"pulling manifest"}\n'
    line = ollama.encode_status("pulling abababababab", digest=DIGEST, total=10, completed=4)
    assert json.loads(line) == {"status": "pulling abababababab", "digest": DIGEST, "total": 10, "completed": 4}
    assert official.ProgressResponse(**json.loads(line)).completed == 4
    assert json.loads(ollama.SUCCESS) == {"status": "success"}


def test_status_lines_are_read_again() -> None:
    line = ollama.encode_status("pulling", digest=DIGEST, total=10, completed=4)
    assert ollama.decode_status(line) == StatusLine(status="pulling", digest=DIGEST, total=10, completed=4)
    assert ollama.decode_status(ollama.SUCCESS) == StatusLine(status="success")


def test_an_error_among_the_status_lines_is_raised() -> None:
    with pytest.raises(EngineFailed, match="pull model manifest: file does not exist"):
        ollama.decode_status(b'{"error":"pull model manifest: file does not exist"}')
    with pytest.raises(ModelNotFound):
        ollama.decode_status(b'{"error":"model \'x\' not found"}')
    with pytest.raises(EngineFailed, match="no status"):
        ollama.decode_status(b"<html>")
