"""What callers may ask on /api/chat and /api/generate, and what an Ollama server is asked for any request."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from drivetrain.dialects import ollama
from drivetrain.dialects.ollama import CHAT, GENERATE, context, surface_for, wants_load
from drivetrain.dialects.ollama.surfaces import OllamaSurface
from drivetrain.errors import BadRequest, DrivetrainError, ModelNotFound, Unsupported
from drivetrain.types import (
    Audio,
    Completion,
    Grammar,
    Image,
    JsonObject,
    JsonSchema,
    Message,
    NamedTool,
    OutputFormat,
    Part,
    Request,
    Role,
    Sampling,
    Source,
    Text,
    Tool,
    ToolCall,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


def chat(**members: Any) -> Request:
    return CHAT.decode_request(json.dumps({"model": "m", **members}).encode())


def generate(**members: Any) -> Request:
    return GENERATE.decode_request(json.dumps({"model": "m", **members}).encode())


def message(role: Role, text: str, **rest: Any) -> Message:
    return Message(role=role, content=(Text(text=text),) if text else (), **rest)


def sent(body: bytes) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(body)
    return members


@pytest.mark.parametrize("surface", [CHAT, GENERATE])
def test_a_request_for_the_prompt_alone_does_not_run_the_model(surface: OllamaSurface) -> None:
    with pytest.raises(Unsupported, match="_debug_render_only is not supported") as refused:
        surface.decode_request(b'{"model":"m","_debug_render_only":true}')
    assert (refused.value.status, refused.value.param) == (400, "_debug_render_only")
    assert surface.decode_request(b'{"model":"m","_debug_render_only":false}').model == "m"


# --- callers: chat ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "others"),
    [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": None}, 0), ({"top_logprobs": 3}, 3)],
)
def test_logprobs_are_those_of_the_chosen_token_unless_others_are_asked_for(said: Any, others: int) -> None:
    asked = chat(messages=[], logprobs=True, **said).sampling
    assert (asked.logprobs, asked.top_logprobs) == (True, others)
    silent = chat(messages=[], logprobs=False, **said).sampling
    assert (silent.logprobs, silent.top_logprobs) == (False, None)


def test_a_chat_request() -> None:
    request = chat(
        messages=[{"role": "System", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        options={"temperature": 0, "num_ctx": 2048},
        keep_alive="10m",
        think="high",
        format="json",
        logprobs=True,
        top_logprobs=2,
        truncate=False,
    )
    assert msgspec.structs.replace(request, source=None) == Request(
        model="m",
        messages=(message("system", "Be brief."), message("user", "Hi")),
        sampling=Sampling(temperature=0.0, logprobs=True, top_logprobs=2),
        output=JsonObject(),
        reasoning="high",
        stream=True,
        keep_alive_s=600.0,
        options={"num_ctx": 2048, "truncate": False},
    )


@pytest.mark.parametrize(("stream", "streams"), [(None, True), (True, True), (False, False)])
def test_streaming_is_the_default(stream: bool | None, streams: bool) -> None:
    assert chat(messages=[], stream=stream).stream is streams
    assert chat(messages=[]).stream is True


def test_every_member_of_the_body_is_kept_verbatim() -> None:
    request = CHAT.decode_request(b'{ "model":"m", "messages" : [ ], "mystery": {"a" :1.0} }')
    assert request.source is not None
    assert request.source.dialect == "ollama.chat"
    assert {name: bytes(raw) for name, raw in request.source.fields.items()} == {
        "model": b'"m"',
        "messages": b"[ ]",
        "mystery": b'{"a" :1.0}',
    }


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "missing request body"),
        (b"  \n", "missing request body"),
        (b"{", "invalid JSON in the request body: Input data was truncated"),
        (b"[]", "invalid request: Expected object, got array"),
        (b"\xff\xfe", "invalid JSON in the request body: JSON is malformed: invalid character (byte 0)"),
        (b'{"messages":[]}', "model is required"),
        (b'{"model":""}', "model is required"),
        (b'{"model":5}', "invalid value of model: expected str, got int"),
        (b'{"model":"m","stream":"yes"}', "invalid value of stream: expected bool | null, got str"),
        (b'{"model":"m","messages":[{"role":"user","content":[]}]}', None),
        (b'{"model":"m","messages":[{"role":"robot"}]}', None),
        (b'{"model":"m","top_logprobs":21}', "top_logprobs must be between 0 and 20"),
        (b'{"model":"m","keep_alive":"soon"}', 'time: invalid duration "soon"'),
        (b'{"model":"m","options":{"num_ctx":"x"}}', 'option "num_ctx" must be of type integer'),
        (b'{"model":"m","tools":[{"function":{"name":""}}]}', "tools[0] has no function name"),
        (b'{"model":"m","messages":' + b"[" * 100_000, None),
        (b'{"model":"m","unknown":' + b"[" * 100_000, None),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(body: bytes, error: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        CHAT.decode_request(body)
    if error is not None:
        assert refused.value.message == error


def test_the_refusal_names_the_member() -> None:
    with pytest.raises(BadRequest) as refused:
        chat(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": 7}])
    assert refused.value.param == "messages[1].content" or refused.value.param == "messages[...].content"
    assert "expected str | null, got int" in refused.value.message


@given(st.binary(max_size=60))
def test_no_body_does_worse_than_a_refusal(body: bytes) -> None:
    for surface in (CHAT, GENERATE):
        try:
            surface.decode_request(body)
        except DrivetrainError as error:
            assert 400 <= error.status < 500


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_MEMBERS = st.sampled_from(
    [
        *(
            "messages",
            "tools",
            "format",
            "options",
            "keep_alive",
            "think",
            "stream",
            "logprobs",
            "top_logprobs",
            "prompt",
        ),
        *("suffix", "system", "template", "context", "raw", "images", "truncate", "shift"),
    ]
)


@given(st.dictionaries(_MEMBERS, _JSON, max_size=4))
def test_no_member_does_worse_than_a_refusal(members: dict[str, Any]) -> None:
    for surface in (CHAT, GENERATE):
        try:
            surface.decode_request(json.dumps({"model": "m", **members}).encode())
        except DrivetrainError as error:
            assert 400 <= error.status < 500
            assert error.message


# --- callers: images and tools ----------------------------------------------------------------------------------------


def test_images_become_data_urls_of_their_format() -> None:
    jpeg = base64.b64encode(b"\xff\xd8\xff\xe0").decode()
    wave = base64.b64encode(b"RIFF____WAVEfmt ").decode()
    webp = base64.b64encode(b"RIFF____WEBPVP8 ").decode()
    said = {"role": "user", "content": "see", "images": [PNG, f"data:image/jpeg;base64,{jpeg}", wave, webp]}
    assert chat(messages=[said]).messages[0].content == (
        Text(text="see"),
        Image(url=f"data:image/png;base64,{PNG}"),
        Image(url=f"data:image/jpeg;base64,{jpeg}"),
        Audio(data=wave, format="wav"),
        Image(url=f"data:image/webp;base64,{webp}"),
    )


@pytest.mark.parametrize(
    "image", ["http://example.com/a.png", "not base64!", "", base64.b64encode(b"text").decode(), "é"]
)
def test_a_bad_image_is_the_callers_mistake(image: str) -> None:  # llama.cpp#26770: a server answered 500
    with pytest.raises(BadRequest) as refused:
        chat(messages=[{"role": "user", "content": "", "images": [image]}])
    assert refused.value.param == "messages[0].images[0]"
    with pytest.raises(BadRequest):
        generate(prompt="x", images=[image])


def test_tool_calls_keep_the_order_of_their_arguments_keys() -> None:
    call = {"function": {"name": "f", "arguments": {"z": 1, "a": {"y": [1.0, 2], "b": None}}}}
    request = chat(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert request.messages[0].tool_calls[0].arguments == '{"z":1,"a":{"y":[1.0,2],"b":null}}'


def test_arguments_may_be_an_object_in_a_text_but_nothing_else() -> None:
    def arguments(said: Any) -> str:
        call = {"function": {"name": "f", "arguments": said}}
        return chat(messages=[{"role": "assistant", "tool_calls": [call]}]).messages[0].tool_calls[0].arguments

    assert arguments('{"a": 1}') == '{"a":1}'
    assert arguments(None) == arguments({}) == "{}"
    bad: Any
    for bad in ("text", [], 5, "[1]"):
        with pytest.raises(BadRequest, match=r"messages\[0\].tool_calls\[0\].function.arguments is no JSON object"):
            arguments(bad)


def test_a_tools_result_finds_its_call_by_name_and_order() -> None:
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g", "f")]
    results = [{"role": "tool", "tool_name": name, "content": "r"} for name in ("g", "f", "f")]
    request = chat(messages=[{"role": "assistant", "tool_calls": calls}, *results])
    ids = [call.id for call in request.messages[0].tool_calls]
    assert len(set(ids)) == 3
    assert [(said.name, said.tool_call_id) for said in request.messages[1:]] == [
        ("g", ids[1]),
        ("f", ids[0]),
        ("f", ids[2]),
    ]


def test_a_tools_result_with_an_id_finds_its_name() -> None:
    calls = [
        {"id": "c1", "function": {"name": "f", "arguments": {}}},
        {"id": "c2", "function": {"name": "g", "arguments": {}}},
    ]
    results = [{"role": "tool", "tool_call_id": "c2", "content": "r"}, {"role": "tool", "content": "r"}]
    request = chat(messages=[{"role": "assistant", "tool_calls": calls}, *results])
    assert [(said.name, said.tool_call_id) for said in request.messages[1:]] == [("g", "c2"), ("f", "c1")]


def test_tools_keep_their_schema_verbatim() -> None:
    function = b'{"name":"f","description":"d","parameters":{"b":1, "a":2}}'
    body = b'{"model":"m","tools":[{"type":"function","function":' + function + b"}]}"
    assert CHAT.decode_request(body).tools == (Tool(name="f", description="d", parameters=Raw(b'{"b":1, "a":2}')),)


# --- callers: generate ------------------------------------------------------------------------------------------------


def test_a_prompt_with_system_and_images_becomes_messages() -> None:
    request = generate(prompt="What is it?", system="Be brief.", images=[PNG])
    assert request.completion is None
    assert request.messages == (
        message("system", "Be brief."),
        Message(role="user", content=(Text(text="What is it?"), Image(url=f"data:image/png;base64,{PNG}"))),
    )


def test_raw_and_suffix_become_a_completion() -> None:
    assert generate(prompt="a", raw=True).completion == Completion(prompts=("a",))
    assert generate(prompt="a", suffix="c", logprobs=True).completion == Completion(
        prompts=("a",), suffix="c", logprobs=0
    )
    assert generate(prompt="a", raw=True).messages == ()


@pytest.mark.parametrize("other", [{"template": "x"}, {"system": "x"}, {"context": [1]}])
def test_raw_excludes_what_a_template_would_place(other: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        generate(prompt="a", raw=True, **other)
    assert refused.value.message == "raw mode does not support template, system, or context"


def test_a_template_in_the_request_makes_the_prompt() -> None:
    template = "{{ if .System }}<s>{{ .System }}</s>{{ end }}<u>{{ .Prompt }}</u><a>{{ .Response }}</a>"
    assert generate(prompt="hi", template=template).completion == Completion(prompts=("<u>hi</u><a>",))
    assert generate(prompt="hi", system="S", template=template).completion == Completion(
        prompts=("<s>S</s><u>hi</u><a>",)
    )
    with pytest.raises(Unsupported, match=r"range .Messages"):
        generate(prompt="hi", template="{{ range .Messages }}{{ .Content }}{{ end }}")


def test_the_context_of_an_answer_continues_the_conversation() -> None:
    earlier = (message("system", "S"), message("user", "Hi 👩‍🚀"), message("assistant", "Hello"))
    ours = context.encode(earlier)
    assert generate(prompt="more", context=ours).messages == (*earlier, message("user", "more"))
    assert generate(prompt="more", system="T", context=ours).messages == (
        message("system", "T"),
        *earlier[1:],
        message("user", "more"),
    )


@given(st.lists(st.integers(-(2**40), 2**40), max_size=12))
def test_a_context_that_is_not_ours_is_for_its_own_server(tokens: list[int]) -> None:
    assert context.decode(tokens) == ()
    assert context.decode(context.encode((message("user", "x"),))[:3] + tokens) in ((), (message("user", "x"),))


def test_an_empty_model_is_not_found_on_generate() -> None:
    with pytest.raises(ModelNotFound) as refused:
        GENERATE.decode_request(b'{"prompt":"x"}')
    assert refused.value.message == "model '' not found"


def test_a_request_with_nothing_to_answer_only_loads() -> None:
    assert wants_load(generate())
    assert wants_load(generate(prompt="", system="S", keep_alive=0))
    assert wants_load(generate(prompt="", raw=True))
    assert wants_load(chat(messages=[]))
    assert wants_load(chat())
    assert not wants_load(generate(prompt="x"))
    assert not wants_load(generate(images=[PNG]))
    assert not wants_load(generate(prompt="", suffix="x"))


# --- engines ----------------------------------------------------------------------------------------------------------


def foreign(**members: Any) -> Request:
    source = Source(dialect="openai.chat", fields={"model": Raw(b'"public"'), "user": Raw(b'"u"')})
    return Request(model="engine-model", source=source, **members)


def test_a_request_from_another_dialect_is_said_in_ollamas_words() -> None:
    request = foreign(
        messages=(
            message("developer", "Be brief."),
            Message(role="user", content=(Text(text="see"), Image(url=f"data:image/png;base64,{PNG}"))),
            message(
                "assistant", "", reasoning="hm", tool_calls=(ToolCall(id="c1", name="f", arguments='{"b":1,"a":2}'),)
            ),
            message("tool", "42", tool_call_id="c1"),
        ),
        sampling=Sampling(max_tokens=9, temperature=0.5, stop=("END",), logprobs=True, top_logprobs=3),
        tools=(Tool(name="f", parameters=Raw(b'{"type":"object"}')),),
        output=JsonSchema(schema=Raw(b'{"type":"object"}')),
        reasoning="low",
        keep_alive_s=-1.0,
        options={"num_ctx": 8192, "truncate": False},
        user="u",
    )
    assert sent(CHAT.encode_request(request)) == {
        "model": "engine-model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "see", "images": [PNG]},
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [{"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"b": 1, "a": 2}}}],
            },
            {"role": "tool", "content": "42", "tool_name": "f", "tool_call_id": "c1"},
        ],
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "truncate": False,
        "options": {"num_ctx": 8192, "num_predict": 9, "temperature": 0.5, "stop": ["END"]},
        "format": {"type": "object"},
        "think": "low",
        "keep_alive": -1,
        "logprobs": True,
        "top_logprobs": 3,
    }


@pytest.mark.parametrize(
    "members",
    [
        {"sampling": Sampling(n=2)},
        {"sampling": Sampling(logit_bias={"1": 5.0})},
        {"output": Grammar(text="root ::= x")},
        {"messages": (Message(role="user", content=(Image(url="https://example.com/a.png"),)),)},
        {"tools": (Tool(name="f"),), "tool_choice": "required"},
        {"tools": (Tool(name="f"),), "tool_choice": NamedTool(name="f")},
        {"completion": Completion(prompts=("x",))},
    ],
)
def test_what_ollama_cannot_say_is_unsupported(members: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        CHAT.encode_request(foreign(**{"messages": (message("user", "x"),), **members}))


def test_tool_choice_none_leaves_the_tools_out() -> None:
    request = foreign(messages=(message("user", "x"),), tools=(Tool(name="f"),), tool_choice="none")
    assert "tools" not in sent(CHAT.encode_request(request))


def test_a_completion_goes_out_raw_or_with_its_suffix() -> None:
    request = foreign(completion=Completion(prompts=("a",), logprobs=2))
    expected = {
        "model": "engine-model",
        "prompt": "a",
        "raw": True,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert surface_for(request) is GENERATE
    assert sent(GENERATE.encode_request(request)) == expected
    request = foreign(completion=Completion(prompts=("a",), suffix="c"))
    assert sent(GENERATE.encode_request(request)) == {
        "model": "engine-model",
        "prompt": "a",
        "suffix": "c",
        "stream": True,
    }


@pytest.mark.parametrize(
    "completion", [{"prompts": ("a", "b")}, {"prompts": ((1, 2),)}, {"prompts": ("a",), "echo": True}]
)
def test_completions_that_ollama_cannot_make(completion: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        GENERATE.encode_request(foreign(completion=Completion(**completion)))


def test_generate_takes_one_turn_only() -> None:
    turns = (message("user", "a"), message("assistant", "b"), message("user", "c"))
    assert surface_for(foreign(messages=turns)) is CHAT
    with pytest.raises(Unsupported, match="one turn"):
        GENERATE.encode_request(foreign(messages=turns))


# --- fidelity ---------------------------------------------------------------------------------------------------------


def test_the_same_surface_keeps_every_byte_but_model_and_stream() -> None:
    body = (
        b'{"model":"public","messages":[ {"role":"user","content":"x","odd":1} ],"stream":false,"mystery":[1.0,  2],'
        b'"options":{"temperature":1.0,"brand_new":true,"num_predict":-1}}'
    )
    request = msgspec.structs.replace(CHAT.decode_request(body), model="engine-model")
    assert CHAT.encode_request(request) == (
        b'{"model":"engine-model","messages":[ {"role":"user","content":"x","odd":1} ],"stream":true,'
        b'"mystery":[1.0,  2],'
        b'"options":{"temperature":1.0,"brand_new":true,"num_predict":-1}}'
    )


def test_the_gateways_values_are_added_only_where_the_caller_said_nothing() -> None:
    body = b'{"model":"public","messages":[],"options":{"temperature":1},"think":null}'
    request = CHAT.decode_request(body)
    merged = msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, temperature=0.2, top_k=7),
        reasoning="high",
        keep_alive_s=60.0,
        options={"num_ctx": 512},
    )
    members = sent(CHAT.encode_request(merged))
    assert members["options"] == {"num_ctx": 512, "top_k": 7, "temperature": 1}
    assert members["think"] == "high"
    assert members["keep_alive"] == 60


def test_nothing_is_added_where_nobody_said_anything() -> None:
    request = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    assert CHAT.encode_request(request) == b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}'


def test_a_generate_request_reaches_the_engines_generate_unless_its_context_is_our_transcript() -> None:
    theirs = generate(prompt="x", context=[1, 2, 3], template="{{ .Prompt }}", system="S")
    assert surface_for(theirs) is GENERATE
    assert sent(GENERATE.encode_request(theirs))["context"] == [1, 2, 3]
    ours = generate(prompt="x", context=context.encode((message("user", "a"), message("assistant", "b"))))
    assert surface_for(ours) is CHAT
    assert [said["content"] for said in sent(CHAT.encode_request(ours))["messages"]] == ["a", "b", "x"]


# --- decode(encode(x)) == x -------------------------------------------------------------------------------------------

_WORDS = st.text(max_size=12)
_NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
_OBJECTS = st.dictionaries(_NAMES, st.integers(-9, 9) | _WORDS | st.lists(st.booleans(), max_size=2), max_size=3)
_OBJECT_TEXTS = _OBJECTS.map(lambda said: msgspec.json.encode(said).decode())


@st.composite
def _turns(draw: st.DrawFn) -> tuple[Message, ...]:
    """A conversation: any turns, and calls each followed by its results, with ids that differ."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["system", "user", "assistant", "calls"]))
        text = draw(_WORDS)
        if kind == "calls":
            calls = tuple(
                ToolCall(id=f"c{turn}_{at}", name=draw(_NAMES), arguments=draw(_OBJECT_TEXTS))
                for at in range(draw(st.integers(1, 2)))
            )
            messages.append(message("assistant", text, reasoning=draw(_WORDS), tool_calls=calls))
            messages += [message("tool", draw(_WORDS), tool_call_id=call.id, name=call.name) for call in calls]
        else:
            role: Role = "system" if kind == "system" else "user" if kind == "user" else "assistant"
            images: tuple[Part, ...] = (Image(url=f"data:image/png;base64,{PNG}"),) if draw(st.booleans()) else ()
            messages.append(Message(role=role, content=(*message(role, text).content, *images)))
    return tuple(messages)


_OUTPUTS: st.SearchStrategy[OutputFormat | None] = (
    st.none() | st.just(JsonObject()) | _OBJECT_TEXTS.map(lambda text: JsonSchema(schema=Raw(text.encode())))
)
_LOGPROBS: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.integers(0, 20).map(
    lambda others: {"logprobs": True, "top_logprobs": others}
)
_COMMON: dict[str, st.SearchStrategy[Any]] = {
    "model": st.text(min_size=1, max_size=8),
    "sampling": st.builds(
        lambda told, **said: Sampling(**said, **told),
        told=_LOGPROBS,
        max_tokens=st.none() | st.integers(1, 99),
        temperature=st.none() | st.floats(0, 2),
        stop=st.lists(st.text(min_size=1, max_size=4), max_size=2).map(tuple),
    ),
    "output": _OUTPUTS,
    "reasoning": st.sampled_from([None, "none", "low", "medium", "high", "max"]),
    "keep_alive_s": st.sampled_from([None, -1.0, 0.0, 1.5, 300.0]),
    "options": st.fixed_dictionaries({}, optional={"num_ctx": st.integers(4, 9999), "shift": st.booleans()}),
    "stream": st.just(True),
}
_TOOLS = st.lists(
    st.builds(Tool, name=_NAMES, description=_WORDS, parameters=_OBJECT_TEXTS.map(lambda text: Raw(text.encode()))),
    max_size=2,
).map(tuple)


@given(st.builds(Request, messages=_turns(), tools=_TOOLS, **_COMMON))
def test_a_chat_request_decodes_to_what_was_encoded(request: Request) -> None:
    decoded = CHAT.decode_request(CHAT.encode_request(request))
    assert msgspec.structs.replace(decoded, source=None) == request


@given(st.builds(Request, **_COMMON), st.text(min_size=1), st.text(), st.booleans())
def test_a_generate_request_decodes_to_what_was_encoded(request: Request, prompt: str, other: str, bare: bool) -> None:
    if bare:
        completion = Completion(prompts=(prompt,), suffix=other or None, logprobs=request.sampling.top_logprobs)
        request = msgspec.structs.replace(request, completion=completion)
    else:
        system = (message("system", other),) if other else ()
        request = msgspec.structs.replace(request, messages=(*system, message("user", prompt)))
    decoded = GENERATE.decode_request(GENERATE.encode_request(request))
    assert msgspec.structs.replace(decoded, source=None) == request


def test_a_load_request_for_an_engine() -> None:
    assert sent(ollama.encode_load_request("m")) == {"model": "m", "stream": False}
    expected = {"model": "m", "stream": False, "keep_alive": 0, "options": {"num_ctx": 512}}
    assert sent(ollama.encode_load_request("m", keep_alive_s=0, said={"num_ctx": 512})) == expected
