"""`options`, `format` and `think`: types, meaning and precedence, both ways."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from drivetrain.dialects.ollama import options
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.types import Grammar, JsonObject, JsonSchema, OutputFormat, Sampling


def test_options_become_sampling_and_the_rest_stays() -> None:
    said = {
        "temperature": 1,
        "num_predict": 5,
        "stop": ["a", ""],
        "num_ctx": 4096,
        "mirostat": 2,
        "unknown": object(),
        "seed": None,
    }
    assert options.read(said) == (
        {"temperature": 1.0, "max_tokens": 5, "stop": ("a",)},
        {"num_ctx": 4096, "mirostat": 2},
    )
    assert options.read(None) == ({}, {})


@pytest.mark.parametrize("limit", [-1, -2, 0])
def test_num_predict_without_a_limit_says_nothing(limit: int) -> None:
    assert options.read({"num_predict": limit}) == ({}, {})


def test_an_integer_may_come_as_a_float_and_a_stop_as_one_text() -> None:
    assert options.read({"top_k": 40.0, "stop": "END"}) == ({"top_k": 40, "stop": ("END",)}, {})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("num_ctx", "4096", "type integer"),
        ("top_k", True, "type integer"),
        ("seed", 2**63, "type integer"),
        ("temperature", "hot", "type float32"),
        ("top_p", False, "type float32"),
        ("temperature", 1e39, "type float32"),
        ("use_mmap", 1, "type boolean"),
        ("stop", 5, "type array"),
        ("stop", [5], "an array of strings"),
    ],
)
def test_a_wrong_type_is_refused_in_ollamas_words(name: str, value: Any, kind: str) -> None:
    with pytest.raises(BadRequest) as refused:
        options.read({name: value})
    assert refused.value.message == f'option "{name}" must be of {kind}'
    assert refused.value.param == f"options.{name}"


_SAMPLING = st.builds(
    Sampling,
    max_tokens=st.none() | st.integers(1, 9999),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(0, 200),
    min_p=st.none() | st.floats(0, 1),
    typical_p=st.none() | st.floats(0, 1),
    seed=st.none() | st.integers(-1, 2**31),
    stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    repeat_penalty=st.none() | st.floats(0, 2),
    repeat_last_n=st.none() | st.integers(-1, 256),
)


@given(_SAMPLING, st.dictionaries(st.sampled_from(["num_ctx", "num_batch", "num_keep"]), st.integers(1, 9999)))
def test_what_is_written_is_read_again(sampling: Sampling, rest: dict[str, Any]) -> None:
    written = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.write(sampling, rest).items()
    }
    said, others = options.read(written)
    assert Sampling(**said) == sampling
    assert others == rest


def test_what_ollama_has_no_word_for_is_unsupported() -> None:
    for sampling in (Sampling(n=2), Sampling(logit_bias={"5": 1.0})):
        with pytest.raises(Unsupported):
            options.write(sampling, {})
    assert options.write(Sampling(n=1, logit_bias={}), {}) == {}


@pytest.mark.parametrize(
    ("raw", "output"),
    [
        *((b"", None), (b"null", None), (b'""', None), (b'"json"', JsonObject())),
        (b'{"type":"object"}', JsonSchema(schema=Raw(b'{"type":"object"}'))),
    ],
)
def test_format(raw: bytes, output: OutputFormat | None) -> None:
    assert options.read_format(Raw(raw)) == output
    if output is not None:
        assert bytes(options.write_format(output)) == raw


@pytest.mark.parametrize("raw", [b'"xml"', b"5", b"true", b"[]"])
def test_an_unknown_format_is_refused(raw: bytes) -> None:
    expected = f'invalid format: {raw.decode()}; expected "json" or a valid JSON Schema object'
    with pytest.raises(BadRequest) as refused:
        options.read_format(Raw(raw))
    assert refused.value.message == expected


def test_a_grammar_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="JSON schema"):
        options.write_format(Grammar(text="root ::= [0-9]"))


@pytest.mark.parametrize("think", [True, False, "low", "high", "max"])
def test_think_is_written_as_it_was_read(think: bool | str) -> None:
    effort = options.read_think(think)
    assert effort is not None
    assert options.write_think(effort) == think


def test_think_levels() -> None:
    assert options.read_think(None) is None
    assert options.read_think(True) == "medium" == options.read_think("medium")
    with pytest.raises(BadRequest, match='invalid think value: "huge"'):
        options.read_think("huge")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_ctx", "4096", 4096),
        ("temperature", "0.7", 0.7),
        ("use_mmap", "false", False),
        ("stop", "<|end|>", "<|end|>"),
    ],
)
def test_modelfile_parameters_are_typed(name: str, text: str, value: Any) -> None:
    assert options.parameter(name, text) == value


def test_modelfile_parameters_of_a_wrong_kind_are_refused() -> None:
    for name, text, error in (
        ("num_ctx", "big", "invalid integer value [big] of parameter num_ctx"),
        ("temperature", "hot", "invalid float value [hot] of parameter temperature"),
        ("temperature", "nan", "invalid float value [nan] of parameter temperature"),
        ("temperature", "-inf", "invalid float value [-inf] of parameter temperature"),
        ("use_mmap", "perhaps", "invalid boolean value [perhaps] of parameter use_mmap"),
        ("speed", "1", "unknown parameter 'speed'"),
    ):
        with pytest.raises(BadRequest) as refused:
            options.parameter(name, text)
        assert refused.value.message == error


def test_the_defaults_are_ollamas_where_other_engines_may_have_others() -> None:
    assert Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.0) == options.DEFAULTS
