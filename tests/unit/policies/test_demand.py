"""What a request may take: rather too much than too little, and about right where only the books need it."""

import pytest
from msgspec import Raw

from drivetrain.dialects import ollama, openai
from drivetrain.policies.demand import IMAGE_TOKENS, MESSAGE_TOKENS, PREAMBLE_TOKENS, estimate, prompt_tokens
from drivetrain.types import (
    Audio,
    Completion,
    EmbedRequest,
    Grammar,
    Image,
    JsonSchema,
    Message,
    Request,
    Sampling,
    Text,
    Tool,
    ToolCall,
    Usage,
)

AROUND = PREAMBLE_TOKENS + MESSAGE_TOKENS  # a conversation of one message


def asked(text: str = "", **members: object) -> Request:
    return Request(model="m", messages=(Message(role="user", content=(Text(text=text),)),), **members)  # type: ignore[arg-type] # members of a request


def prompt(request: Request | EmbedRequest) -> int:
    return estimate(request, output_tokens=0).prompt


def answer(request: Request, output_tokens: int = 1000) -> int:
    return estimate(request, output_tokens=output_tokens).completion


# --- for the books ----------------------------------------------------------------------------------------------------


def test_four_characters_are_about_a_token() -> None:
    assert prompt_tokens(asked("x" * 40)) == 10


def test_tokens_are_counted_as_they_are() -> None:
    assert prompt_tokens(Request(model="m", completion=Completion(prompts=((1, 2, 3), "x" * 8)))) == 5
    assert prompt_tokens(EmbedRequest(model="m", inputs=("x" * 8, (1, 2)))) == 4


# --- to be set aside --------------------------------------------------------------------------------------------------


def test_an_estimate_is_marked_as_one_and_expects_nothing_from_a_cache() -> None:
    taken = estimate(asked("x" * 30), output_tokens=7)
    assert taken == Usage(prompt=10 + AROUND, completion=7, estimated=True)


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("a", 1), ("abc", 1), ("abcd", 2), ("ä", 1), ("日本", 2)])
def test_three_bytes_are_a_token_at_most(text: str, expected: int) -> None:
    assert prompt(asked(text)) == expected + AROUND


def test_everything_that_reaches_the_model_counts() -> None:
    tool = Tool(name="abc", description="abcdef", parameters=Raw(b"{}" * 30))
    bare = prompt(asked("x"))
    assert prompt(asked("x", tools=(tool,))) == bare + MESSAGE_TOKENS + 1 + 2 + 21
    assert prompt(asked("x", output=JsonSchema(schema=Raw(b"{}" * 30)))) == bare + 21
    assert prompt(asked("x", output=Grammar(text="x" * 30))) == bare + 10


def test_pictures_sound_thoughts_and_calls_count() -> None:
    said = Message(role="user", content=(Image(url="data:image/png;base64,AA=="), Audio(data="A" * 2000, format="wav")))
    thought = Message(role="assistant", reasoning="x" * 30, tool_calls=(ToolCall(id="1", name="abc", arguments="{}"),))
    assert prompt(Request(model="m", messages=(said,))) == AROUND + IMAGE_TOKENS + 11
    assert prompt(Request(model="m", messages=(thought,))) == AROUND + 10 + 1 + 1


def test_embeddings_have_no_answer() -> None:
    assert estimate(EmbedRequest(model="m", inputs=("abcd", (1, 2, 3))), output_tokens=99) == Usage(
        prompt=5, estimated=True
    )


def test_an_answer_is_as_long_as_it_may_be() -> None:
    assert answer(asked()) == 1000
    assert answer(asked(sampling=Sampling(max_tokens=5))) == 5
    assert answer(asked(sampling=Sampling(max_tokens=0))) == 0
    assert answer(asked(sampling=Sampling(max_tokens=-1))) == 1000


def test_each_choice_of_each_prompt_is_an_answer() -> None:
    assert answer(asked(sampling=Sampling(max_tokens=5, n=3))) == 15
    two = Completion(prompts=("a", "b"))
    assert answer(Request(model="m", completion=two, sampling=Sampling(max_tokens=5, n=3))) == 30


def test_members_that_only_some_engines_heed_count_too() -> None:
    """Or a caller could pay for a short answer and get a long one."""
    chat = b'{"model":"m","messages":[{"role":"user","content":"a"}],%b}'
    for members, expected in (
        (b'"max_completion_tokens":1,"max_tokens":5000,"best_of":null', 5000),
        (b'"max_tokens":5,"n_predict":-1', 1000),
    ):
        assert answer(openai.CHAT.decode_request(chat % members)) == expected
    best = b'{"model":"m","prompt":"a","max_tokens":5,"best_of":4,"n":2}'
    assert answer(openai.COMPLETIONS.decode_request(best)) == 20
    odd = b'{"model":"m","prompt":"a","max_tokens":5,"best_of":"many"}'
    assert answer(openai.COMPLETIONS.decode_request(odd)) == 5


def test_requests_in_ollamas_words_are_estimated_alike() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"abcdef"}],"options":{"num_predict":7}}'
    assert estimate(ollama.CHAT.decode_request(body), output_tokens=1000) == Usage(
        prompt=2 + AROUND, completion=7, estimated=True
    )
    endless = b'{"model":"m","prompt":"abcdef","options":{"num_predict":-1}}'
    assert answer(ollama.GENERATE.decode_request(endless)) == 1000
