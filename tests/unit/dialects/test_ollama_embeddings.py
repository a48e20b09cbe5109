"""/api/embed and /api/embeddings: inputs, lengths and dimensions, both ways."""

import json
import math
from typing import Any

import msgspec
import ollama as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects import ollama
from drivetrain.dialects.ollama.embeddings import fit
from drivetrain.errors import BadRequest, EngineFailed, Unsupported
from drivetrain.types import Embeddings, EmbedRequest, Timings, Usage


def asked(**members: Any) -> EmbedRequest:
    return ollama.decode_embed_request(json.dumps({"model": "m", **members}).encode())


@pytest.mark.parametrize(
    ("said", "inputs"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), (["a", ""], ("a", "")), ("", ()), ([], ()), (None, ())],
)
def test_inputs(said: Any, inputs: tuple[str, ...]) -> None:
    assert asked(input=said).inputs == inputs


@pytest.mark.parametrize("said", [5, {"a": 1}, [1, 2], ["a", None], [["a"]], True])
def test_other_inputs_are_refused_in_ollamas_words(said: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(input=said)
    assert refused.value.message == "invalid input type"


def test_the_rest_of_a_request() -> None:
    request = asked(input="a", truncate=False, dimensions=8, keep_alive="1m", options={"num_ctx": 64, "temperature": 1})
    assert (request.truncate, request.dimensions, request.keep_alive_s) == (False, 8, 60.0)
    assert request.options == {"num_ctx": 64}
    assert asked(input="a", dimensions=0).dimensions is None
    assert asked(input="a", dimensions=-1).dimensions is None
    for body, error in ((b"", "missing request body"), (b'{"input":"a"}', "model is required")):
        with pytest.raises(BadRequest, match=error):
            ollama.decode_embed_request(body)
        with pytest.raises(BadRequest, match=error):
            ollama.decode_legacy_embed_request(body)


def test_vectors_have_length_one() -> None:
    answer = ollama.encode_embeddings(
        asked(input=["a", "b"]),
        Embeddings(vectors=((3.0, 4.0), (0.0, 0.0)), usage=Usage(prompt=2)),
        timings=Timings(load_s=1e-9, prompt_s=2e-9),
    )
    assert json.loads(answer) == {
        "model": "m",
        "embeddings": [[0.6, 0.8], [0.0, 0.0]],
        "total_duration": 3,
        "load_duration": 1,
        "prompt_eval_count": 2,
        "prompt_eval_duration": 2,
    }
    assert official.EmbedResponse(**json.loads(answer)).embeddings == [[0.6, 0.8], [0.0, 0.0]]


def test_an_empty_input_has_no_vectors() -> None:
    assert json.loads(ollama.encode_embeddings(asked(input=""), Embeddings(vectors=()))) == {
        "model": "m",
        "embeddings": [],
    }


@given(st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=1, max_size=8), st.integers(1, 10))
def test_cut_vectors_are_brought_to_length_one_again(vector: list[float], dimensions: int) -> None:
    fitted = fit(vector, dimensions)
    assert len(fitted) == min(dimensions, len(vector))
    length = math.hypot(*fitted)
    assert length == 0.0 or length == pytest.approx(1.0, abs=1e-6)
    assert list(fit(fitted)) == list(fitted)


def test_what_is_normalised_already_stays_as_it_is() -> None:
    vector = [0.6000000238418579, 0.800000011920929]
    assert fit(vector) == vector


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonsense_is_the_engines_failure(bad: float) -> None:
    with pytest.raises(EngineFailed, match="NaN or infinity"):
        ollama.encode_embeddings(asked(input="a"), Embeddings(vectors=((1.0, bad),)))
    with pytest.raises(EngineFailed, match="NaN or infinity"):
        ollama.encode_legacy_embedding(Embeddings(vectors=((1.0, bad),)))


def test_the_older_route_does_not_normalise() -> None:
    request = ollama.decode_legacy_embed_request(b'{"model":"m","prompt":"a"}')
    assert (request.inputs, request.normalised) == (("a",), False)
    answer = json.loads(ollama.encode_legacy_embedding(Embeddings(vectors=((3.0, 4.0),))))
    assert answer == {"embedding": [3.0, 4.0]}
    assert official.EmbeddingsResponse(**answer).embedding == [3.0, 4.0]
    assert ollama.decode_legacy_embed_request(b'{"model":"m"}').inputs == ()
    assert json.loads(ollama.encode_legacy_embedding(Embeddings(vectors=()))) == {"embedding": []}


_REQUESTS = st.builds(
    EmbedRequest,
    model=st.text(min_size=1, max_size=6),
    inputs=st.lists(st.text(), min_size=2, max_size=3).map(tuple) | st.just(()),
    dimensions=st.none() | st.integers(1, 99),
    truncate=st.booleans(),
    keep_alive_s=st.sampled_from([None, -1.0, 0.0, 90.0]),
    options=st.fixed_dictionaries({}, optional={"num_ctx": st.integers(4, 99)}),
)


@given(_REQUESTS)
def test_a_request_decodes_to_what_was_encoded(request: EmbedRequest) -> None:
    decoded = ollama.decode_embed_request(ollama.encode_embed_request(request))
    assert msgspec.structs.replace(decoded, source=None) == request


def test_a_request_of_the_same_surface_is_kept_verbatim() -> None:
    request = ollama.decode_embed_request(b'{"model":"public","input":[ "a" ],"mystery":1.0,"truncate":false}')
    engines = msgspec.structs.replace(request, model="e")
    assert ollama.encode_embed_request(engines) == b'{"model":"e","input":[ "a" ],"truncate":false,"mystery":1.0}'


def test_tokens_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="not tokens"):
        ollama.encode_embed_request(EmbedRequest(model="m", inputs=((1, 2),)))


def test_an_engines_answer() -> None:
    body = b'{"model":"e","embeddings":[[0.6,0.8]],"total_duration":1,"prompt_eval_count":4}'
    assert ollama.decode_embeddings(body) == Embeddings(vectors=([0.6, 0.8],), usage=Usage(prompt=4))
    for bad in (b"", b"[]", b'{"embeddings":[["a"]]}'):
        with pytest.raises(EngineFailed):
            ollama.decode_embeddings(bad)
