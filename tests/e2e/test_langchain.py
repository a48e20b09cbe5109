"""LangChain's clients for OpenAI and Ollama, unmodified, against the real small model."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from operator import mul
from typing import Any, Literal, TypeVar

import pytest
from langchain_core.messages import AIMessage, BaseMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import BaseModel, SecretStr

from tests.e2e.servers import MODEL, Server

pytestmark = pytest.mark.anyio

ASK = "Name the days of the week."
LIMIT_S = 180.0
OpenAIModel = TypeVar("OpenAIModel", ChatOpenAI, OpenAI, OpenAIEmbeddings)
OllamaModel = TypeVar("OllamaModel", ChatOllama, OllamaLLM, OllamaEmbeddings)


class Day(BaseModel):
    """A day of the week."""

    name: Literal["Monday", "Tuesday"]
    free: bool


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class LangChain:
    """Makes LangChain's models for one server, and closes their connections, which they leave open themselves."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._sync, self._async = DefaultHttpxClient(timeout=LIMIT_S), DefaultAsyncHttpxClient(timeout=LIMIT_S)
        self._native: list[ChatOllama | OllamaLLM | OllamaEmbeddings] = []

    def openai(self, kind: type[OpenAIModel], **settings: Any) -> OpenAIModel:
        clients: dict[str, Any] = {"http_client": self._sync, "http_async_client": self._async, "max_retries": 0}
        return kind(model=MODEL, base_url=f"{self.url}/v1", api_key=SecretStr("unused"), **clients, **settings)

    def openai_chat(self, max_tokens: int = 8, **more: Any) -> ChatOpenAI:
        return self.openai(ChatOpenAI, temperature=0, seed=7, max_completion_tokens=max_tokens, **more)

    def ollama(self, kind: type[OllamaModel], **settings: Any) -> OllamaModel:
        model = kind(model=MODEL, base_url=self.url, **settings)
        self._native.append(model)
        return model

    def ollama_chat(self, num_predict: int = 8, **more: Any) -> ChatOllama:
        return self.ollama(ChatOllama, temperature=0, seed=7, num_predict=num_predict, **more)

    async def aclose(self) -> None:
        self._sync.close()
        await self._async.aclose()
        for model in self._native:
            clients: Any = model
            clients._client.close()
            await clients._async_client.close()


@pytest.fixture
async def langchain(drivetrain: Server) -> AsyncGenerator[LangChain, None]:
    made = LangChain(drivetrain)
    yield made
    await made.aclose()


# --- langchain-openai -----------------------------------------------------------------------------------------------


async def test_openai_a_chat_answers_and_counts(langchain: LangChain) -> None:
    answer = langchain.openai_chat().invoke(ASK)
    assert answer.content
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 8
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.response_metadata["model_name"] == MODEL


async def test_openai_a_stream_adds_up_to_the_whole(langchain: LangChain) -> None:
    model = langchain.openai_chat(stream_usage=True)
    whole = await model.ainvoke(ASK)
    chunks = [chunk async for chunk in model.astream(ASK)]
    total: BaseMessageChunk = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert total.content == whole.content
    assert isinstance(total, AIMessage)
    assert total.usage_metadata
    assert whole.usage_metadata
    assert total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


async def test_openai_a_batch_keeps_its_order(langchain: LangChain) -> None:
    model = langchain.openai_chat(max_tokens=2)
    alone = [await model.ainvoke(text) for text in (ASK, "Count to three.")]
    counts = [answer.usage_metadata and answer.usage_metadata["input_tokens"] for answer in alone]
    answers = await model.abatch([ASK, "Count to three."])
    assert [answer.usage_metadata and answer.usage_metadata["input_tokens"] for answer in answers] == counts


async def test_openai_structured_output_fits_its_schema(langchain: LangChain) -> None:
    found = await langchain.openai_chat(64).with_structured_output(Day, method="json_schema").ainvoke(ASK)
    assert isinstance(found, Day)


async def test_openai_a_bound_tool_is_called_and_its_result_goes_back(langchain: LangChain) -> None:
    asked = HumanMessage("What is the weather in Paris?")
    calling = langchain.openai_chat(96).bind_tools([get_weather], tool_choice="get_weather")
    called = await calling.ainvoke([asked])
    (call,) = called.tool_calls
    assert call["name"] == "get_weather"
    assert call["args"]["city"] in ("Paris", "Rome")
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    answer = await langchain.openai_chat().ainvoke([asked, called, result])
    assert answer.content


async def test_openai_a_raw_prompt_is_continued(langchain: LangChain) -> None:
    model = langchain.openai(OpenAI, temperature=0, max_tokens=8)
    whole = await model.ainvoke("One, two, three,")
    assert whole
    assert "".join([piece async for piece in model.astream("One, two, three,")]) == whole


async def test_openai_texts_are_embedded(langchain: LangChain) -> None:
    # With `check_embedding_ctx_length` it would count tokens with a table that it downloads.
    model = langchain.openai(OpenAIEmbeddings, check_embedding_ctx_length=False)
    documents = await model.aembed_documents(["a cat", "the stock market"])
    query = await model.aembed_query("a cat")
    assert [len(vector) for vector in documents] == [576, 576]
    assert sum(map(mul, query, documents[0])) > sum(map(mul, query, documents[1]))


# --- langchain-ollama -----------------------------------------------------------------------------------------------


async def test_ollama_a_chat_says_what_openais_says(langchain: LangChain) -> None:
    messages = [SystemMessage("Be brief."), HumanMessage(ASK)]
    answer = langchain.ollama_chat(validate_model_on_init=True).invoke(messages)
    assert answer.content == langchain.openai_chat().invoke(messages).content
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 8
    assert answer.response_metadata["done_reason"] == "length"


async def test_ollama_a_stream_adds_up_to_the_whole(langchain: LangChain) -> None:
    model = langchain.ollama_chat()
    whole, chunks = await model.ainvoke(ASK), [chunk async for chunk in model.astream(ASK)]
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["output_tokens"] for usage in counted] == [8]


async def test_ollama_structured_output_fits_its_schema(langchain: LangChain) -> None:
    found = await langchain.ollama_chat(64).with_structured_output(Day, method="json_schema").ainvoke(ASK)
    assert isinstance(found, Day)


async def test_ollama_json_mode_gives_an_object(langchain: LangChain) -> None:
    answer = await langchain.ollama_chat(128, format="json").ainvoke('Answer with exactly: {"day": 1}')
    assert str(answer.content).startswith("{")
    if answer.response_metadata["done_reason"] == "stop":
        assert isinstance(json.loads(str(answer.content)), dict)


async def test_ollama_a_tool_and_its_result_reach_the_model(langchain: LangChain) -> None:
    asked = HumanMessage("What is the weather in Paris?")
    call: Any = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_1", "type": "tool_call"}
    model = langchain.ollama_chat().bind_tools([get_weather])
    before = await model.ainvoke([asked])
    after = await model.ainvoke([asked, AIMessage("", tool_calls=[call]), get_weather.invoke(call)])
    assert before.usage_metadata
    assert after.usage_metadata
    assert after.usage_metadata["input_tokens"] > before.usage_metadata["input_tokens"]


async def test_ollama_a_prompt_is_answered(langchain: LangChain) -> None:
    model = langchain.ollama(OllamaLLM, temperature=0, seed=7, num_predict=8)
    answer = await model.ainvoke(ASK)
    assert answer == (await langchain.ollama_chat().ainvoke(ASK)).content
    assert "".join([piece async for piece in model.astream(ASK)]) == answer


async def test_ollama_texts_are_embedded(langchain: LangChain) -> None:
    model = langchain.ollama(OllamaEmbeddings)
    documents, query = await asyncio.gather(
        model.aembed_documents(["a cat", "the stock market"]), model.aembed_query("a cat")
    )
    assert [math.hypot(*vector) for vector in documents] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert sum(map(mul, query, documents[0])) > sum(map(mul, query, documents[1]))


async def test_ollama_an_unknown_model_is_told_when_the_client_is_made(langchain: LangChain) -> None:
    alone: Any = {"headers": {"connection": "close"}}  # nobody could close what belongs to a model that was not made
    with pytest.raises(ValueError, match="not found"):
        ChatOllama(model="nobody", base_url=langchain.url, validate_model_on_init=True, client_kwargs=alone)
