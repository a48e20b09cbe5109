"""Embeddings and lists of models, both ways."""

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drivetrain.dialects.openai import (
    decode_embed_request,
    decode_embeddings,
    decode_models,
    encode_embed_request,
    encode_embeddings,
    encode_model,
    encode_models,
)
from drivetrain.errors import BadRequest, ContextOverflow, EngineFailed
from drivetrain.types import Embeddings, EmbedRequest, Model, Usage

VECTOR = [0.25, -1.5, 3.0]  # exact in float32


def asked(**members: Any) -> EmbedRequest:
    return decode_embed_request(msgspec.json.encode({"model": "m", "input": "a", **members}))


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_reads_every_form_of_input(given: Any, inputs: Any) -> None:
    assert asked(input=given).inputs == inputs


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"input": []}, "'input' is empty; a string or an array of strings is expected"),
        ({"input": ""}, "'input[0]' is empty; there is nothing to embed"),
        ({"input": ["a", ""]}, "'input[1]' is empty; there is nothing to embed"),
        ({"input": None}, "'input' must be a string or an array, not null"),
        ({"input": [1, "a"]}, "'input' mixes kinds; expected all strings, all token ids or all arrays of token ids"),
        ({"dimensions": 0}, "'dimensions' must be an integer >= 1, not 0"),
        ({"encoding_format": "hex"}, "'encoding_format' is \"hex\"; expected float or base64"),
    ],
)
def test_a_mistake_is_named(members: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        asked(**members)
    assert caught.value.message == message


def test_an_input_that_comes_twice_is_told_of_by_its_place() -> None:
    with pytest.raises(BadRequest) as caught:
        decode_embed_request(b'{"model":"m","input":[[1,"x"]],"input":[]}')
    assert (caught.value.message, caught.value.param) == ("'input[0][1]' must be an integer", "input[0][1]")


def test_base64_has_the_width_and_the_values_of_the_numbers() -> None:
    embeddings = Embeddings(vectors=(VECTOR, VECTOR), usage=Usage(prompt=4))
    numbers = json.loads(encode_embeddings(asked(encoding_format="float"), embeddings))
    packed = json.loads(encode_embeddings(asked(encoding_format="base64"), embeddings))
    assert numbers == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": VECTOR},
            {"object": "embedding", "index": 1, "embedding": VECTOR},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    assert [list(struct.unpack("<3f", base64.b64decode(item["embedding"]))) for item in packed["data"]] == [VECTOR] * 2


def test_a_vector_longer_than_asked_for_is_cut_and_normalised_anew() -> None:
    answer = json.loads(encode_embeddings(asked(dimensions=2), Embeddings(vectors=([3.0, 4.0, 12.0],))))
    assert answer["data"][0]["embedding"] == pytest.approx([0.6, 0.8])


def test_engines_are_always_asked_for_numbers() -> None:
    request = asked(encoding_format="base64", dimensions=2, odd=1)
    assert json.loads(encode_embed_request(replace(request, model="engine"))) == {
        "model": "engine",
        "input": "a",
        "encoding_format": "float",
        "dimensions": 2,
        "odd": 1,
    }
    assert json.loads(encode_embed_request(EmbedRequest(model="m", inputs=("a", "b"), dimensions=3))) == {
        "model": "m",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": 3,
    }


def test_reads_numbers_and_base64_in_order_of_their_index() -> None:
    packed = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()
    body = {
        "data": [{"index": 1, "embedding": packed}, {"index": 0, "embedding": [1, 2, 3]}],
        "usage": {"prompt_tokens": 5},
    }
    assert decode_embeddings(json.dumps(body).encode()) == Embeddings(
        vectors=([1, 2, 3], VECTOR), usage=Usage(prompt=5)
    )


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data":[{"embedding":"??"}]}', b'{"data":[{"embedding":[null]}]}'])
def test_embeddings_that_cannot_be_read_are_the_engines_failure(body: bytes) -> None:
    with pytest.raises(EngineFailed):
        decode_embeddings(body)


def test_an_error_in_place_of_embeddings_is_raised() -> None:
    with pytest.raises(ContextOverflow):
        decode_embeddings(b'{"error":{"message":"x","code":"context_length_exceeded"}}')


def test_a_listed_model_has_the_four_members_that_clients_demand() -> None:
    assert json.loads(
        encode_models([Model(id="org/m:1", engine="box", created_s=5), Model(id="b", context_length=9)])
    ) == {
        "object": "list",
        "data": [
            {"id": "org/m:1", "object": "model", "created": 5, "owned_by": "box"},
            {"id": "b", "object": "model", "created": 0, "owned_by": "drivetrain", "context_length": 9},
        ],
    }
    assert json.loads(encode_model(Model(id="a"))) == {
        "id": "a",
        "object": "model",
        "created": 0,
        "owned_by": "drivetrain",
    }


@pytest.mark.parametrize(
    ("listed", "context_length"),
    [
        ({"id": "m", "max_model_len": 512, "created": 1.5}, 512),
        ({"id": "m", "meta": {"n_ctx_train": 2048, "n_embd": 64, "size": 99}}, 2048),
        ({"id": "m", "meta": None, "context_length": 4}, 4),
        ({"id": "m"}, None),
    ],
)
def test_reads_what_every_engine_lists(listed: dict[str, Any], context_length: int | None) -> None:
    for body in ({"object": "list", "data": [listed], "models": []}, [listed]):
        (model,) = decode_models(json.dumps(body).encode())
        assert (model.id, model.context_length) == ("m", context_length)


def test_a_list_that_cannot_be_read_is_the_engines_failure() -> None:
    with pytest.raises(EngineFailed):
        decode_models(b'{"detail":"Not Found"}')
