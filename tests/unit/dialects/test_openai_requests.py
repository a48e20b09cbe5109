"""Requests of OpenAI callers: what is read, what is refused and how, and what an engine is sent."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drivetrain.dialects.openai import CHAT, COMPLETIONS
from drivetrain.dialects.openai.wire import ChatIn
from drivetrain.errors import BadRequest, CallerError, Unsupported
from drivetrain.types import (
    Audio,
    Completion,
    Grammar,
    Image,
    JsonObject,
    JsonSchema,
    Message,
    NamedTool,
    Request,
    Sampling,
    Text,
    Tool,
    ToolCall,
)

HELLO = {"role": "user", "content": "Hello"}
F = {"type": "function", "function": {"name": "f"}}
G = {"type": "function", "function": {"name": "g"}}
NAMELESS = "'{}.name' is empty; name the function"
NO_TOOL = "'tool_choice' names \"g\", which is no function of the request; it has f"
NAMED = '{"type": "function", "function": {"name": …}}'
NO_LIST = (
    '\'tool_choice\' is {"type":"allowed_tools"}; '
    'expected {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}'
)
NO_TOOLS = "'tool_choice' demands a call, but the request has no tools"


def chat(**members: Any) -> Request:
    return CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": [HELLO], **members}))


def allowed(mode: str, listed: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}


def completion(**members: Any) -> Request:
    return COMPLETIONS.decode_request(msgspec.json.encode({"model": "m", **members}))


def sent(request: Request) -> dict[str, Any]:
    surface = COMPLETIONS if request.completion else CHAT
    body: dict[str, Any] = msgspec.json.decode(surface.encode_request(request))
    return body


def refusal(body: bytes | dict[str, Any], surface: Any = CHAT) -> tuple[str, str | None]:
    with pytest.raises(BadRequest) as caught:
        surface.decode_request(body if isinstance(body, bytes) else msgspec.json.encode(body))
    return caught.value.message, caught.value.param


# --- reading ----------------------------------------------------------------------------------------------------------


def test_reads_sampling_under_openai_and_engine_names() -> None:
    request = chat(
        max_completion_tokens=7,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        seed=-9007199254740991,
        stop="END",
        n=2,
        logprobs=True,
        top_logprobs=3,
        logit_bias={"12": -100},
        presence_penalty=1,
        frequency_penalty=-1,
        top_k=40,
        min_p=0.1,
        typical_p=0.9,
        repetition_penalty=1.1,
        repeat_last_n=64,
    )
    assert request.sampling == Sampling(
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=-9007199254740991,
        stop=("END",),
        n=2,
        logprobs=True,
        top_logprobs=3,
        logit_bias={"12": -100},
        presence_penalty=1,
        frequency_penalty=-1,
        top_k=40,
        min_p=0.1,
        typical_p=0.9,
        repeat_penalty=1.1,
        repeat_last_n=64,
    )


def test_null_means_not_said() -> None:
    request = chat(temperature=None, stop=None, tools=None, stream=None, stream_options=None, response_format=None)
    assert replace(request, source=None) == Request(
        model="m", messages=(Message(role="user", content=(Text(text="Hello"),)),)
    )


def test_reads_messages_of_every_role() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    request = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "reasoning": "why"},
        ]
    )
    assert request.messages == (
        Message(role="developer", content=(Text(text="Be brief."),)),
        Message(role="user", content=(Text(text="Hi"),), name="ann"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="f", arguments='{"a":1}'),), reasoning="hm"),
        Message(role="tool", tool_call_id="c1", content=(Text(text="2"),)),
        Message(role="assistant", content=(Text(text="No."),), reasoning="why"),
    )


def test_reads_images_and_audio() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == (
        Image(url="data:image/png;base64,AA==", detail="low"),
        Image(url="https://example.com/a.png"),
        Audio(data="AA==", format="wav"),
    )


def test_reads_tools_with_their_schema_verbatim() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
        b'{"name":"f","description":"d","strict":true,"parameters":{ "type":"object", "z":1, "a":2 }}},'
        b'{"type":"web_search"}],"parallel_tool_calls":false}'
    )
    request = CHAT.decode_request(body)
    schema = msgspec.Raw(b'{ "type":"object", "z":1, "a":2 }')
    assert request.tools == (Tool(name="f", description="d", parameters=schema, strict=True),)
    assert request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, NamedTool(name="f")),
        ("any", "required"),
        ({"type": "custom", "custom": {"name": "x"}}, "required"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [F]}}, "required"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [F]}}, "auto"),
    ],
)
def test_reads_every_form_of_tool_choice(given: Any, read: Any) -> None:
    assert chat(tools=[F], tool_choice=given).tool_choice == read


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize(
    ("listed", "left"),
    [
        ([G], ["g"]),
        ([{"type": "function", "name": "g"}], ["g"]),
        ([G, F], ["f", "g"]),
        ([G, {"type": "custom", "custom": {"name": "x"}}], ["g"]),
        ([{"type": "mcp", "name": "f"}], []),
    ],
)
def test_the_tools_of_a_request_are_those_that_its_choice_allows(mode: str, listed: Any, left: list[str]) -> None:
    request = chat(tools=[F, G], tool_choice=allowed(mode, listed))
    assert [tool.name for tool in request.tools] == left
    assert sent(request)["tools"] == [F, G]
    assert sent(request)["tool_choice"] == allowed(mode, listed)


def test_a_choice_may_allow_no_call_at_all() -> None:
    assert chat(tools=[F], tool_choice=allowed("auto", [])).tools == ()


def test_reads_legacy_functions_as_tools() -> None:
    request = chat(
        functions=[{"name": "f", "parameters": {"type": "object"}}],
        function_call={"name": "f"},
        messages=[
            HELLO,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
        ],
    )
    assert [tool.name for tool in request.tools] == ["f"]
    assert request.tool_choice == NamedTool(name="f")
    assert request.messages[1].tool_calls == (ToolCall(id="f", name="f", arguments="{}"),)
    assert (request.messages[2].role, request.messages[2].tool_call_id) == ("tool", "f")
    body = sent(request)
    assert "functions" not in body
    assert body["tools"][0]["function"]["name"] == "f"


@pytest.mark.parametrize(
    ("members", "read"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True},
                }
            },
            JsonSchema(schema=msgspec.Raw(b'{"a":1}'), name="n", strict=True),
        ),
        (
            {"response_format": {"type": "json_object", "schema": {"a": 1}}},
            JsonSchema(schema=msgspec.Raw(b'{"a":1}')),
        ),
        ({"grammar": 'root ::= "a"'}, Grammar(text='root ::= "a"')),
    ],
)
def test_reads_output_formats(members: dict[str, Any], read: Any) -> None:
    assert chat(**members).output == read


@pytest.mark.parametrize(
    ("given", "read"),
    [("none", "none"), ("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "max")],
)
def test_reads_reasoning_effort(given: str, read: str) -> None:
    assert chat(reasoning_effort=given).reasoning == read
    assert chat(reasoning={"effort": given}).reasoning == read


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ("", ("",)),
    ],
)
def test_reads_every_form_of_prompt(given: Any, read: Any) -> None:
    request = completion(prompt=given, suffix="s", echo=True, logprobs=2)
    assert request.completion == Completion(prompts=read, suffix="s", echo=True, logprobs=2)


def test_a_token_limit_of_minus_one_means_none() -> None:
    assert chat(max_tokens=-1).sampling.max_tokens is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", None),
        ([""], None),
        ([], None),
        (["", "zzz"], ["zzz"]),
        ("abc", "abc"),
        (["a"], ["a"]),
        (None, None),
    ],
)
def test_an_empty_stop_is_none(given: Any, expected: Any) -> None:
    for request in (chat(stop=given), completion(prompt="p", stop=given)):
        assert sent(request).get("stop") == expected
        assert request.sampling.stop == tuple([expected] if isinstance(expected, str) else expected or ())


def test_a_choice_among_tools_that_are_no_functions_is_the_engines_business() -> None:
    assert chat(tools=[{"type": "custom", "custom": {"name": "x"}}], tool_choice="required").tool_choice == "required"


def test_a_bare_completion_may_be_of_no_token() -> None:
    assert completion(prompt="p", max_tokens=0).sampling.max_tokens == 0


@pytest.mark.parametrize("members", [{}, {"prompt": None}])
def test_a_bare_completion_needs_a_prompt(members: dict[str, Any]) -> None:
    assert refusal({"model": "m", **members}, COMPLETIONS) == ("'prompt' is missing", "prompt")


# --- refusing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "message", "param"),
    [
        ({"messages": []}, "'messages' is empty; at least one message is expected", "messages"),
        ({"messages": "hi"}, "'messages' must be an array, not \"hi\"", "messages"),
        ({"messages": [{"content": "x"}]}, "'messages[0].role' is missing", "messages[0].role"),
        ({"messages": [HELLO, {"role": 3}]}, "'messages[1].role' must be a string, not 3", "messages[1].role"),
        ({"temperature": "hot"}, "'temperature' must be a number, not \"hot\"", "temperature"),
        ({"temperature": 3}, "'temperature' must be a number <= 2, not 3", "temperature"),
        ({"n": 0}, "'n' must be an integer >= 1, not 0", "n"),
        ({"logprobs": True, "top_logprobs": 21}, "'top_logprobs' must be an integer <= 20, not 21", "top_logprobs"),
        ({"top_logprobs": 2}, "'top_logprobs' needs 'logprobs' to be true", "top_logprobs"),
        ({"stream": "yes"}, "'stream' must be true or false, not \"yes\"", "stream"),
        ({"stop": [1]}, "'stop[0]' must be a string, not 1", "stop[0]"),
        ({"model": " "}, "'model' is empty; name a model", "model"),
        ({"model": None}, "'model' must be a string, not null", "model"),
        ({"logit_bias": {"1": "x"}}, "'logit_bias[...]' must be a number", "logit_bias[...]"),
        (
            {"reasoning_effort": "huge"},
            "'reasoning_effort' is \"huge\"; expected one of none, minimal, low, medium, high, xhigh, max, ultra",
            "reasoning_effort",
        ),
        (
            {"response_format": {"type": "xml"}},
            "'response_format.type' is \"xml\"; expected one of text, json_object, json_schema",
            "response_format.type",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "'response_format.json_schema' is missing",
            "response_format.json_schema",
        ),
        ({"tools": [{"function": {"name": ""}}]}, NAMELESS.format("tools[0].function"), "tools[0].function.name"),
        ({"functions": [{"name": " "}]}, NAMELESS.format("functions[0]"), "functions[0].name"),
        ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, NO_TOOL, "tool_choice"),
        (
            {"functions": [F["function"]], "function_call": {"name": "g"}},
            NO_TOOL.replace("tool_choice", "function_call"),
            "function_call",
        ),
        ({"tool_choice": {"function": {"name": "g"}}}, NO_TOOL.replace("has f", "has none"), "tool_choice"),
        ({"tools": [F], "tool_choice": allowed("auto", [F, G])}, NO_TOOL, "tool_choice"),
        ({"tools": [F], "tool_choice": allowed("required", [G])}, NO_TOOL, "tool_choice"),
        (
            {"tools": [F], "tool_choice": allowed("required", [])},
            "'tool_choice' demands a call, but allows no tools",
            "tool_choice",
        ),
        (
            {"tools": [F], "tool_choice": allowed("auto", [{"type": "function"}])},
            f'\'tool_choice\' is {{"type":"function"}}; expected tools like {NAMED}',
            "tool_choice",
        ),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, NO_LIST, "tool_choice"),
        ({"tool_choice": "required"}, NO_TOOLS, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, NO_TOOLS, "tool_choice"),
        ({"max_tokens": 0}, "'max_tokens' must be an integer >= 1, not 0", "max_tokens"),
        (
            {"max_completion_tokens": 0},
            "'max_completion_tokens' must be an integer >= 1, not 0",
            "max_completion_tokens",
        ),
        ({"tools": [{"type": "function"}]}, "'tools[0].function' is missing", "tools[0].function"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "'messages[0].role' is \"robot\"; expected one of system, developer, user, assistant, tool, function",
            "messages[0].role",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url"}]}]},
            "'messages[0].content[0].type' is \"video_url\"; expected one of text, image_url, input_audio, refusal",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "'messages[0].content[0].image_url' is missing or incomplete",
            "messages[0].content[0].image_url",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_its_value_and_what_is_expected(
    members: dict[str, Any], message: str, param: str
) -> None:
    assert refusal({"model": "m", "messages": [HELLO], **members}) == (message, param)


@pytest.mark.parametrize("listed", [None, {}, "f", 5])
def test_allowed_tools_are_a_list(listed: Any) -> None:
    assert refusal({"model": "m", "messages": [HELLO], "tools": [F], "tool_choice": allowed("auto", listed)})[1] == (
        "tool_choice"
    )


@pytest.mark.parametrize("mode", ["none", "any", ""])
def test_what_is_allowed_may_be_called_or_must_be(mode: str) -> None:
    assert refusal({"model": "m", "messages": [HELLO], "tools": [F], "tool_choice": allowed(mode, [F])})[1] == (
        "tool_choice"
    )


def test_a_missing_model_is_named() -> None:
    assert refusal({"messages": [HELLO]}) == ("'model' is missing", "model")


def test_a_file_is_refused_with_a_way_out() -> None:
    with pytest.raises(Unsupported, match="put its text into a text part"):
        chat(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is empty; a JSON object is expected"),
        (b" \n", "the body is empty; a JSON object is expected"),
        (b"[1]", "the body must be an object"),
        (b"{", "the body is not JSON: it ends too early"),
        (b'{"model":}', "the body is not JSON: invalid character (byte 9)"),
        (b'{"model":"m","x":"\xff"}', "the body is not UTF-8: byte 18 is 0xff"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deeply"),
        (b'{"model":"m","messages":[],"seed":' + b"9" * 5_000 + b"}", "'seed' must be within range"),
        (b'{"model":"m","messages":[],"temperature":1e999}', "'temperature' must be within range"),
    ],
)
def test_a_body_that_cannot_be_read_is_a_clear_refusal(body: bytes, message: str) -> None:
    assert refusal(body)[0] == message


def test_a_long_value_is_shortened() -> None:
    message, _ = refusal({"model": "m", "messages": [HELLO], "n": "x" * 10_000})
    assert len(message) < 120


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[1], 2], [-1], [2**40], [[-1]]])
def test_prompts_that_make_no_sense_are_refused(prompt: Any) -> None:
    assert refusal({"model": "m", "prompt": prompt}, COMPLETIONS)[0].startswith("'prompt")


@pytest.mark.parametrize("value", [None, True, 0, -1, 1.5, "", "x", [], {}, [[]], {"a": {}}, 10**30])
@pytest.mark.parametrize("member", sorted(ChatIn.__struct_fields__))
def test_no_value_of_any_member_is_anything_but_read_or_refused(member: str, value: Any) -> None:
    text = str(value) if value == 10**30 else msgspec.json.encode(value).decode()
    body = f'{{"model":"m","messages":[{{"role":"user","content":"x"}}],"{member}":{text}}}'
    try:
        CHAT.decode_request(body.encode())
    except CallerError as error:
        assert error.message


# --- what an engine is sent -------------------------------------------------------------------------------------------


def test_the_same_surface_is_sent_the_callers_own_words() -> None:
    body = (
        b'{"messages": [ {"role":"user","content":"x", "odd":1} ], "model":"public", "temperature": 0.70,'
        b' "unknown":{ "b":1, "a":[ 2 ] }, "stream_options":{"include_obfuscation":false}}'
    )
    request = replace(CHAT.decode_request(body), model="engine-name")
    assert CHAT.encode_request(request) == (
        b'{"messages":[ {"role":"user","content":"x", "odd":1} ],"model":"engine-name","temperature":0.70,'
        b'"unknown":{ "b":1, "a":[ 2 ] },"stream_options":{"include_obfuscation":false,"include_usage":true},'
        b'"stream":true}'
    )


def test_defaults_fill_what_the_caller_left_open_and_nothing_else() -> None:
    request = chat(temperature=0.5, max_completion_tokens=5, top_p=None, repetition_penalty=1.2)
    filled = Sampling(temperature=1, max_tokens=99, top_p=0.9, top_k=40, repeat_penalty=1.5, stop=("END",))
    body = sent(replace(request, sampling=filled))
    assert body == {
        "model": "m",
        "messages": [HELLO],
        "temperature": 0.5,
        "max_completion_tokens": 5,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_k": 40,
        "stop": ["END"],
    }


def test_a_request_of_another_dialect_is_built_from_its_fields() -> None:
    request = Request(
        model="m",
        messages=(
            Message(role="system", content=(Text(text="S"),)),
            Message(role="user", content=(Text(text="U"), Image(url="data:x"), Audio(data="AA", format="wav"))),
        ),
        sampling=Sampling(max_tokens=5, temperature=0.8, top_k=40, repeat_penalty=1.1, stop=("a",), n=2, logprobs=True),
        tools=(Tool(name="f", parameters=msgspec.Raw(b'{"type":"object"}')),),
        tool_choice=NamedTool(name="f"),
        parallel_tool_calls=True,
        output=JsonSchema(schema=msgspec.Raw(b'{"type":"object"}'), strict=True),
        reasoning="none",
        options={"num_ctx": 4096},
        keep_alive_s=5,
        user="u",
    )
    assert sent(request) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "S"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "U"},
                    {"type": "image_url", "image_url": {"url": "data:x"}},
                    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                ],
            },
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "repeat_penalty": 1.1,
        "repetition_penalty": 1.1,
        "temperature": 0.8,
        "top_k": 40,
        "stop": ["a"],
        "n": 2,
        "user": "u",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "response", "schema": {"type": "object"}, "strict": True},
        },
        "logprobs": True,
        "tools": [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": True,
        "reasoning_effort": "none",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_calls_and_results_without_ids_are_joined_in_order() -> None:
    calls = (ToolCall(id="", name="f", arguments="{}"), ToolCall(id="", name="g", arguments="{}"))
    messages = (
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", name="g", content=(Text(text="2"),)),
        Message(role="tool", name="f", content=(Text(text="1"),)),
    )
    sent_messages = sent(Request(model="m", messages=messages))["messages"]
    ids = [call["id"] for call in sent_messages[0]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in sent_messages[1:]] == [ids[1], ids[0]]


def test_reasoning_goes_back_under_both_names() -> None:
    message = Message(role="assistant", content=(Text(text="a"),), reasoning="r")
    assert sent(Request(model="m", messages=(message,)))["messages"] == [
        {"role": "assistant", "content": "a", "reasoning_content": "r", "reasoning": "r"}
    ]


def test_a_raw_completion_is_built_from_its_fields() -> None:
    request = Request(
        model="m", completion=Completion(prompts=("p",), suffix="s", echo=True, logprobs=1), output=Grammar(text="g")
    )
    assert sent(request) == {
        "model": "m",
        "prompt": "p",
        "stream": True,
        "stream_options": {"include_usage": True},
        "grammar": "g",
        "suffix": "s",
        "echo": True,
        "logprobs": 1,
    }


def test_neither_surface_says_what_only_the_other_can() -> None:
    with pytest.raises(Unsupported):
        CHAT.encode_request(completion(prompt="x"))
    with pytest.raises(Unsupported):
        COMPLETIONS.encode_request(chat())


@pytest.mark.parametrize("second", [b"[]", b'"abc"', b"[{}]"])
def test_a_mistake_in_a_member_that_comes_twice_is_told_by_its_name(second: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":1}],"messages":%b}' % second
    with pytest.raises(BadRequest) as caught:
        CHAT.decode_request(body)
    assert (caught.value.message, caught.value.param) == ("'messages[0].role' must be a string", "messages[0].role")


def test_a_prompt_that_comes_twice_is_told_of_by_its_place() -> None:
    body = b'{"model":"m","prompt":[[1,"x"]],"prompt":"a"}'
    assert refusal(body, COMPLETIONS) == ("'prompt[0][1]' must be an integer", "prompt[0][1]")
