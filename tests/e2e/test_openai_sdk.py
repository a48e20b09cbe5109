"""The official `openai` client for Python, unmodified, against the real small model.

With temperature 0 the model gives one answer on one machine, so answers by different ways are compared with each other.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Iterator
from operator import mul
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from pydantic import BaseModel

from tests.e2e.servers import MODEL, Server

pytestmark = pytest.mark.anyio

LIMIT_S = 180.0
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name the days of the week."}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "seed": 7, "max_tokens": 8}


@pytest.fixture
def sync(drivetrain: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{drivetrain.url}/v1", api_key="unused", max_retries=0, timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
async def client(drivetrain: Server) -> AsyncGenerator[AsyncOpenAI, None]:
    url = f"{drivetrain.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=LIMIT_S) as client:
        yield client


def spelled(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


# --- chat -----------------------------------------------------------------------------------------------------------


async def test_a_chat_answers_and_counts(sync: OpenAI) -> None:
    answer = sync.chat.completions.create(messages=ASK, **GREEDY)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


async def test_a_stream_spells_what_a_whole_answer_says(sync: OpenAI) -> None:
    whole = sync.chat.completions.create(messages=ASK, **GREEDY)
    with sync.chat.completions.create(messages=ASK, stream=True, **GREEDY) as stream:
        chunks = list(stream)
    assert spelled(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)


async def test_usage_comes_last_in_a_stream_if_it_is_asked_for(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(messages=ASK, **GREEDY)
    options: Any = {"include_usage": True}
    stream = await client.chat.completions.create(messages=ASK, stream=True, stream_options=options, **GREEDY)
    chunks = [chunk async for chunk in stream]
    assert whole.usage
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_a_stream_that_is_left_early_hinders_nobody(client: AsyncOpenAI, drivetrain: Server) -> None:
    long = {**GREEDY, "max_tokens": 1000}
    async with await client.chat.completions.create(messages=ASK, stream=True, **long) as stream:
        await anext(aiter(stream))
    await drivetrain.until("/v1/engines", lambda engines: engines["data"][0]["outstanding"] == 0)
    assert (await client.chat.completions.create(messages=ASK, **GREEDY)).choices


async def test_answers_at_the_same_time_do_not_mix(client: AsyncOpenAI) -> None:
    alone = await client.chat.completions.create(messages=ASK, **GREEDY)
    together = await asyncio.gather(*(client.chat.completions.create(messages=ASK, **GREEDY) for _ in range(3)))
    assert {answer.choices[0].finish_reason for answer in together} == {"length"}
    assert len({answer.id for answer in (alone, *together)}) == 4


async def test_max_completion_tokens_is_a_limit_too(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=3, temperature=0)
    assert answer.usage
    assert answer.usage.completion_tokens == 3


async def test_the_same_seed_gives_the_same_answer(client: AsyncOpenAI) -> None:
    warm = {**GREEDY, "temperature": 1.5}
    answers = [await client.chat.completions.create(messages=ASK, **warm) for _ in range(2)]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


async def test_a_stop_sequence_ends_the_answer_before_itself(client: AsyncOpenAI) -> None:
    whole = (await client.chat.completions.create(messages=ASK, **GREEDY)).choices[0].message.content or ""
    stop = whole.split()[2]
    answer = await client.chat.completions.create(messages=ASK, stop=[stop, "never met"], **GREEDY)
    assert answer.choices[0].message.content == whole.partition(stop)[0]
    assert answer.choices[0].finish_reason == "stop"


async def test_several_choices_are_numbered_and_counted(client: AsyncOpenAI) -> None:
    one = await client.chat.completions.create(messages=ASK, **GREEDY)
    two = await client.chat.completions.create(messages=ASK, n=2, **GREEDY)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert [choice.message.content for choice in two.choices] == [one.choices[0].message.content] * 2
    assert one.usage
    assert two.usage
    assert two.usage.completion_tokens == 16
    assert two.usage.prompt_tokens == one.usage.prompt_tokens


async def test_several_choices_stream_side_by_side(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(messages=ASK, **GREEDY)
    stream = await client.chat.completions.create(messages=ASK, n=2, stream=True, **GREEDY)
    chunks = [chunk async for chunk in stream]
    assert spelled(chunks, 0) == spelled(chunks, 1) == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1


async def test_logprobs_tell_of_each_token(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(messages=ASK, logprobs=True, top_logprobs=2, **GREEDY)
    told = answer.choices[0].logprobs
    assert told
    assert told.content
    assert "".join(token.token for token in told.content) == answer.choices[0].message.content
    assert [len(token.top_logprobs) for token in told.content] == [2] * 8
    assert [token.top_logprobs[0].token for token in told.content] == [token.token for token in told.content]
    assert all(token.logprob <= 0 for token in told.content)


@pytest.mark.parametrize("asked", [{}, {"top_logprobs": 0}])
async def test_logprobs_without_alternatives_are_those_of_the_answer_alone(client: AsyncOpenAI, asked: Any) -> None:
    answer = await client.chat.completions.create(messages=ASK, logprobs=True, **asked, **GREEDY)
    told = answer.choices[0].logprobs
    assert told
    assert told.content
    assert "".join(token.token for token in told.content) == answer.choices[0].message.content
    assert [token.top_logprobs for token in told.content] == [[]] * 8
    stream = await client.chat.completions.create(messages=ASK, logprobs=True, stream=True, **asked, **GREEDY)
    chunks = [chunk.choices[0].logprobs async for chunk in stream if chunk.choices]
    streamed = [token for chunk in chunks if chunk for token in chunk.content or ()]
    assert [(token.token, token.top_logprobs) for token in streamed] == [(token.token, []) for token in told.content]
    bare = await client.completions.create(prompt="Monday,", logprobs=0, **GREEDY)
    assert bare.choices[0].logprobs
    assert "".join(bare.choices[0].logprobs.tokens or ()) == bare.choices[0].text
    assert bare.choices[0].logprobs.top_logprobs == [{}] * 8


async def test_logprobs_of_a_prompt_are_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no log-probabilities of a prompt") as caught:
        await client.completions.create(prompt="Monday,", logprobs=1, echo=True, **GREEDY)
    assert (caught.value.code, caught.value.param) == ("unsupported", "logprobs")


@pytest.mark.parametrize(("echo", "text"), [(False, ""), (True, "Monday,")])
async def test_a_bare_completion_of_no_token_is_empty(client: AsyncOpenAI, echo: bool, text: str) -> None:
    asked = {**GREEDY, "prompt": "Monday,", "max_tokens": 0, "echo": echo}
    answer = await client.completions.create(**asked)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, "length")
    assert answer.usage
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens == 0
    stream = await client.completions.create(**asked, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == text


async def test_logprobs_stream_too(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(messages=ASK, logprobs=True, stream=True, **GREEDY)
    chunks = [chunk async for chunk in stream]
    told = [chunk.choices[0].logprobs for chunk in chunks]
    assert "".join(token.token for some in told if some for token in some.content or ()) == spelled(chunks)


async def test_content_in_parts_says_the_same(client: AsyncOpenAI) -> None:
    parts: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": [{"type": "text", "text": "Name the days of the week."}]}
    ]
    plain = await client.chat.completions.create(messages=ASK, **GREEDY)
    parted = await client.chat.completions.create(messages=parts, **GREEDY)
    assert parted.choices[0].message.content == plain.choices[0].message.content


async def test_a_developer_message_is_a_system_message(client: AsyncOpenAI) -> None:
    texts = []
    for role in ("system", "developer"):
        messages: Any = [{"role": role, "content": "You are a pirate."}, *ASK]
        answer = await client.chat.completions.create(messages=messages, **GREEDY)
        texts.append((answer.choices[0].message.content, answer.usage and answer.usage.prompt_tokens))
    assert texts[0] == texts[1]


# --- JSON -----------------------------------------------------------------------------------------------------------


class Day(BaseModel):
    name: Literal["Monday", "Tuesday"]
    free: bool


async def test_a_schema_is_kept_to(client: AsyncOpenAI) -> None:
    asked = {**GREEDY, "max_tokens": 64}
    answer = await client.chat.completions.parse(messages=ASK, response_format=Day, **asked)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.parsed == Day.model_validate_json(answer.choices[0].message.content or "")


async def test_the_streaming_helper_parses_too(client: AsyncOpenAI) -> None:
    asked = {**GREEDY, "max_tokens": 64}
    whole = await client.chat.completions.parse(messages=ASK, response_format=Day, **asked)
    async with client.chat.completions.stream(messages=ASK, response_format=Day, **asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert kinds[-1] == "content.done"
    assert "content.delta" in kinds


async def test_json_mode_gives_an_object(client: AsyncOpenAI) -> None:
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": 'Answer with exactly: {"day": 1}'}]
    wanted: Any = {"type": "json_object"}
    answer = await client.chat.completions.create(
        messages=asked, response_format=wanted, **{**GREEDY, "max_tokens": 128}
    )
    text = answer.choices[0].message.content or ""
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


# --- tools ----------------------------------------------------------------------------------------------------------

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
WEATHER_ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
CALLING: dict[str, Any] = {**GREEDY, "max_tokens": 96}


async def test_a_demanded_function_is_called_with_arguments_that_fit(client: AsyncOpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = await client.chat.completions.create(
        messages=WEATHER_ASK, tools=[CLOCK, WEATHER], tool_choice=named, **CALLING
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.id
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


async def test_calls_stream_as_they_stand_in_a_whole_answer(client: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"messages": WEATHER_ASK, "tools": [WEATHER], "tool_choice": "required", **CALLING}
    whole = await client.chat.completions.create(parallel_tool_calls=False, **asked)
    stream = await client.chat.completions.create(parallel_tool_calls=False, stream=True, **asked)
    chunks = [chunk async for chunk in stream]
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert {delta.index for delta in deltas} == {0}
    assert deltas[0].id
    assert deltas[0].function
    assert deltas[0].function.name == "get_weather"
    assert whole.choices[0].message.tool_calls
    (call,) = whole.choices[0].message.tool_calls
    assert call.type == "function"
    streamed = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    assert json.loads(streamed) == json.loads(call.function.arguments)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_parallel_calls_are_told_apart(client: AsyncOpenAI) -> None:
    both: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
    stream = await client.chat.completions.create(
        messages=both, tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=True, stream=True, **CALLING
    )
    chunks = [chunk async for chunk in stream]
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    ids = [delta.id for delta in deltas if delta.id]
    assert len(ids) > 1
    assert len(set(ids)) == len(ids)
    assert sorted({delta.index for delta in deltas}) == list(range(len(ids)))
    first = "".join(call.function.arguments or "" for call in deltas if call.index == 0 and call.function)
    assert isinstance(json.loads(first), dict)


async def test_a_call_and_its_result_go_back_to_the_model(client: AsyncOpenAI) -> None:
    first = await client.chat.completions.create(
        messages=WEATHER_ASK, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, **CALLING
    )
    message = first.choices[0].message
    assert message.tool_calls
    result: ChatCompletionMessageParam = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": "sunny, 31 degrees",
    }
    told: Any = [*WEATHER_ASK, message, result]
    plain = await client.chat.completions.create(messages=WEATHER_ASK, tools=[WEATHER], **GREEDY)
    second = await client.chat.completions.create(messages=told, tools=[WEATHER], tool_choice="none", **GREEDY)
    assert second.choices[0].message.content
    assert second.usage
    assert plain.usage
    assert second.usage.prompt_tokens > plain.usage.prompt_tokens


async def test_without_a_choice_of_tools_there_is_no_call(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(messages=ASK, tools=[WEATHER], tool_choice="none", **GREEDY)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


# --- completions ----------------------------------------------------------------------------------------------------

PROMPT = "One, two, three,"


async def test_a_prompt_is_continued(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(prompt=PROMPT, **GREEDY)
    stream = await client.completions.create(prompt=PROMPT, stream=True, **GREEDY)
    chunks = [chunk async for chunk in stream]
    assert whole.object == "text_completion"
    assert whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_prompt_is_echoed_if_asked_for(client: AsyncOpenAI) -> None:
    plain = await client.completions.create(prompt=PROMPT, **GREEDY)
    echoed = await client.completions.create(prompt=PROMPT, echo=True, **GREEDY)
    stream = await client.completions.create(prompt=PROMPT, echo=True, stream=True, **GREEDY)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text
    assert "".join([chunk.choices[0].text async for chunk in stream]) == PROMPT + plain.choices[0].text


async def test_a_prompt_of_tokens_is_echoed_as_text(client: AsyncOpenAI) -> None:
    tokens = [1000, 2000, 3000]
    plain = await client.completions.create(prompt=tokens, **GREEDY)
    echoed = await client.completions.create(prompt=[tokens, tokens], echo=True, **GREEDY)
    assert plain.usage
    assert plain.usage.prompt_tokens == 3
    texts = [choice.text for choice in echoed.choices]
    assert texts[0] == texts[1]
    assert texts[0].endswith(plain.choices[0].text)
    assert len(texts[0]) > len(plain.choices[0].text)


async def test_several_prompts_are_answered_in_their_order(client: AsyncOpenAI) -> None:
    prompts = [PROMPT, "A, B, C,"]
    alone = [await client.completions.create(prompt=prompt, **GREEDY) for prompt in prompts]
    together = await client.completions.create(prompt=prompts, **GREEDY)
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in together.choices] == [0, 1]
    assert together.usage
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone if answer.usage)


async def test_logprobs_of_a_completion_have_their_own_form(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(prompt=PROMPT, logprobs=2, **GREEDY)
    told = answer.choices[0].logprobs
    assert told
    assert told.tokens
    assert told.top_logprobs
    assert "".join(told.tokens) == answer.choices[0].text
    assert [len(top) for top in told.top_logprobs] == [2] * 8


async def test_filling_in_the_middle_needs_a_model_that_can(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not support insert"):
        await client.completions.create(prompt="def f(", suffix="return x", **GREEDY)


# --- embeddings -----------------------------------------------------------------------------------------------------


async def test_vectors_are_the_same_in_base64_and_as_numbers(client: AsyncOpenAI) -> None:
    packed = await client.embeddings.create(model=MODEL, input="a cat")
    plain = await client.embeddings.create(model=MODEL, input="a cat", encoding_format="float")
    assert len(packed.data[0].embedding) == len(plain.data[0].embedding) == 576
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == 2


async def test_a_batch_keeps_its_order(client: AsyncOpenAI) -> None:
    inputs = ["a cat", "the stock market", "a dog"]
    alone = [(await client.embeddings.create(model=MODEL, input=text)).data[0].embedding for text in inputs]
    batch = await client.embeddings.create(model=MODEL, input=inputs)
    assert [item.index for item in batch.data] == [0, 1, 2]
    for item, vector in zip(batch.data, alone, strict=True):
        assert sum(map(mul, item.embedding, vector)) > 0.99  # sums are taken in another order in a batch


async def test_dimensions_cut_and_bring_to_length_one(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model=MODEL, input=["a cat", "a dog"], dimensions=64)
    assert [len(item.embedding) for item in answer.data] == [64, 64]
    assert [math.hypot(*item.embedding) for item in answer.data] == pytest.approx([1.0, 1.0], abs=1e-4)


# --- models ---------------------------------------------------------------------------------------------------------


async def test_models_are_listed_and_described(client: AsyncOpenAI) -> None:
    listed = {model.id: model async for model in client.models.list()}
    assert listed[MODEL].object == "model"
    assert listed[MODEL].owned_by == "local"
    assert await client.models.retrieve(MODEL) == listed[MODEL]


async def test_a_model_whose_id_has_a_slash_is_found_and_answers(client: AsyncOpenAI, drivetrain: Server) -> None:
    id = "openai-sdk/tiny:v1"
    await drivetrain.post("/api/copy", {"source": MODEL, "destination": id})
    assert (await client.models.retrieve(id)).id == id
    answer = await client.chat.completions.create(messages=ASK, **{**GREEDY, "model": id, "max_tokens": 1})
    assert answer.model == id
    assert (await client.models.delete(id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve(id)


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(messages=ASK, **{**GREEDY, "model": "nobody/knows-it"})
    assert caught.value.code == "model_not_found"
    assert "nobody/knows-it" in caught.value.message
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"messages": "Hi"}, "messages"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_wrong_parameter_is_named(client: AsyncOpenAI, wrong: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"messages": ASK, **GREEDY, **wrong})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_context_is_refused(client: AsyncOpenAI, stream: bool) -> None:
    long: Any = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(messages=long, stream=stream, **GREEDY)
    assert caught.value.code == "context_length_exceeded"


async def test_a_body_of_20_mb_is_too_large(client: AsyncOpenAI) -> None:
    huge: Any = [{"role": "user", "content": "x" * 20_000_000}]
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(messages=huge, **GREEDY)
    assert caught.value.status_code == 413
    assert "max_body_bytes" in caught.value.message


async def test_an_image_needs_a_model_that_sees(client: AsyncOpenAI) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with pytest.raises(openai.BadRequestError, match="takes no images"):
        await client.chat.completions.create(messages=[{"role": "user", "content": [image]}], **GREEDY)


async def test_a_doubled_base_url_is_pointed_out(drivetrain: Server) -> None:
    async with AsyncOpenAI(base_url=f"{drivetrain.url}/v1/v1", api_key="unused", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="you want /v1/chat/completions"):
            await client.chat.completions.create(messages=ASK, **GREEDY)


# --- request ids ----------------------------------------------------------------------------------------------------


async def test_every_answer_has_a_request_id(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(messages=ASK, **GREEDY)
    listed = await client.models.with_raw_response.list()
    assert answer._request_id
    assert listed.headers["x-request-id"] not in (None, answer._request_id)


async def test_a_callers_own_request_id_is_kept(client: AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        messages=ASK, extra_headers={"x-request-id": "mine-1"}, **GREEDY
    )
    assert raw.request_id == "mine-1"
