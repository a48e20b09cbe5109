"""What engines report of an answer, as they write it, comes to the right cost to the micro-dollar.

The figures are made up in the shapes in which each engine reports them; texts are left out.
"""

import json
from typing import Any

import pytest

from drivetrain.dialects import Surface, ollama, openai
from drivetrain.governance import Price
from drivetrain.policies.prices import cost
from drivetrain.types import Event, Finished, Request, TextDelta, Usage

# Dollars per million tokens as the providers ask them, in micro-dollars.
GPT_4O_MINI = Price(id="gpt-4o-mini", input=150_000, cached_input=75_000, output=600_000)
O3_MINI = Price(id="o3-mini", input=1_100_000, cached_input=550_000, output=4_400_000)
SONNET = Price(id="sonnet", input=3_000_000, cached_input=300_000, cache_write=3_750_000, output=15_000_000)
GROK = Price(id="grok", input=300_000, output=500_000)
DEEPSEEK = Price(id="deepseek", input=270_000, cached_input=70_000, output=1_100_000)
OWN = Price(id="own", input=100_000, cached_input=10_000, output=400_000)

OPENAI = (
    '{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,'
    '"prompt_tokens_details":{"cached_tokens":1920,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,'
    '"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}'
)
OPENAI_REASONING = (
    '{"prompt_tokens":75,"completion_tokens":1186,"total_tokens":1261,'
    '"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":1024}}'
)
ANTHROPIC = '{"completion_tokens":12,"prompt_tokens":14,"total_tokens":26,"prompt_tokens_details":null}'
ANTHROPIC_NATIVE = (
    '{"input_tokens":21,"cache_creation_input_tokens":188086,"cache_read_input_tokens":0,"output_tokens":393}'
)
ANTHROPIC_NATIVE_READ = (
    '{"input_tokens":21,"cache_creation_input_tokens":0,"cache_read_input_tokens":188086,"output_tokens":393}'
)
ANTHROPIC_THROUGH_GATEWAY = (
    '{"prompt_tokens":10021,"completion_tokens":393,"total_tokens":10414,"cost":0.05,'
    '"prompt_tokens_details":{"cached_tokens":8000,"cache_write_tokens":2000}}'
)
VLLM = '{"prompt_tokens":37,"total_tokens":52,"completion_tokens":15,"prompt_tokens_details":null}'
VLLM_CACHED = (
    '{"prompt_tokens":1030,"total_tokens":1045,"completion_tokens":15,"prompt_tokens_details":{"cached_tokens":1024}}'
)
SGLANG = (
    '{"prompt_tokens":20,"total_tokens":170,"completion_tokens":150,"prompt_tokens_details":null,"reasoning_tokens":90}'
)
LLAMA_CPP = '{"completion_tokens":8,"prompt_tokens":31,"total_tokens":39,"prompt_tokens_details":{"cached_tokens":30}}'
TGI = '{"prompt_tokens":34,"completion_tokens":20,"total_tokens":54}'
XAI = (
    '{"prompt_tokens":37,"completion_tokens":530,"total_tokens":800,'
    '"prompt_tokens_details":{"text_tokens":37,"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":233}}'
)
DEEPSEEK_CACHED = (
    '{"prompt_tokens":1000,"completion_tokens":50,"total_tokens":1050,'
    '"prompt_cache_hit_tokens":960,"prompt_cache_miss_tokens":40}'
)
MOONSHOT = '{"prompt_tokens":100,"completion_tokens":10,"total_tokens":110,"cached_tokens":64}'
ZEROS = (
    '{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"prompt_tokens_details":{"cached_tokens":0},'
    '"completion_tokens_details":{"reasoning_tokens":0}}'
)


def streamed(usage: str, text: str = "Hi") -> bytes:
    head = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    frames = (
        head + '[{"index":0,"delta":{"role":"assistant","content":' + json.dumps(text) + '},"finish_reason":null}]}',
        head + '[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        head + '[],"usage":' + usage + "}",
        "[DONE]",
    )
    return "".join(f"data: {frame}\n\n" for frame in frames).encode()


def used(surface: Surface, stream: bytes) -> Usage:
    decoder = surface.decoder(Request(model="m"))
    events: list[Event] = [*decoder.feed(stream), *decoder.close()]
    end = events[-1]
    assert isinstance(end, Finished)
    return end.usage


@pytest.mark.parametrize(
    ("reported", "price", "usage", "micro_usd"),
    [
        (OPENAI, GPT_4O_MINI, Usage(prompt=2006, cached=1920, completion=300), 337),
        (OPENAI_REASONING, O3_MINI, Usage(prompt=75, completion=1186, reasoning=1024), 5301),
        (ANTHROPIC, SONNET, Usage(prompt=14, completion=12), 222),
        (ANTHROPIC_NATIVE, SONNET, Usage(prompt=188_107, cache_write=188_086, completion=393), 711_281),
        (ANTHROPIC_NATIVE_READ, SONNET, Usage(prompt=188_107, cached=188_086, completion=393), 62_384),
        (
            ANTHROPIC_THROUGH_GATEWAY,
            SONNET,
            Usage(prompt=10_021, cached=8000, cache_write=2000, completion=393),
            15_858,
        ),
        (VLLM, OWN, Usage(prompt=37, completion=15), 10),
        (VLLM_CACHED, OWN, Usage(prompt=1030, cached=1024, completion=15), 17),
        (SGLANG, OWN, Usage(prompt=20, completion=150, reasoning=90), 62),
        (LLAMA_CPP, OWN, Usage(prompt=31, cached=30, completion=8), 4),
        (TGI, OWN, Usage(prompt=34, completion=20), 11),
        (XAI, GROK, Usage(prompt=37, completion=763, reasoning=233), 393),
        (DEEPSEEK_CACHED, DEEPSEEK, Usage(prompt=1000, cached=960, completion=50), 133),
        (MOONSHOT, OWN, Usage(prompt=100, cached=64, completion=10), 8),
        (ZEROS, GPT_4O_MINI, Usage(), 0),
    ],
)
def test_openai_speakers(reported: str, price: Price, usage: Usage, micro_usd: int) -> None:
    assert used(openai.CHAT, streamed(reported)) == usage
    assert cost(price, usage, 0.0).micro_usd == micro_usd


def test_zeros_that_are_reported_are_zeros_and_no_estimate() -> None:
    assert used(openai.CHAT, streamed(ZEROS, text="words that were not charged for")) == Usage()


@pytest.mark.parametrize("nothing", ["{}", '{"total_tokens":5}', '{"prompt_tokens":null,"completion_tokens":null}'])
def test_a_usage_that_tells_nothing_is_estimated(nothing: str) -> None:
    assert used(openai.CHAT, streamed(nothing)) == Usage(completion=1, estimated=True)


def test_counts_below_zero_are_none() -> None:
    assert used(openai.CHAT, streamed('{"prompt_tokens":-1,"completion_tokens":3}')) == Usage(completion=3)


TIMINGS = (
    '{"cache_n":236,"prompt_n":1,"prompt_ms":30.958,"prompt_per_token_ms":30.958,"prompt_per_second":32.30,'
    '"predicted_n":35,"predicted_ms":661.064,"predicted_per_token_ms":18.88,"predicted_per_second":52.94}'
)


def test_llama_cpp_that_reports_its_timings_only() -> None:
    stream = (
        'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":' + TIMINGS + "}\n\n"
        "data: [DONE]\n\n"
    )
    usage = used(openai.CHAT, stream.encode())
    assert usage == Usage(prompt=237, cached=236, completion=35)
    assert cost(OWN, usage, 0.0).micro_usd == 16  # 0.1 + 2.36 + 14


def ollama_stream(**final: Any) -> bytes:
    frames: tuple[dict[str, Any], ...] = (
        {"model": "m", "created_at": "2026-11-30T04:39:47.3Z", "message": {"role": "assistant", "content": "Hi"}},
        {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", **final},
    )
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


OLLAMA: dict[str, Any] = {
    "total_duration": 174560334,
    "load_duration": 101397084,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 13074791,
    "eval_count": 18,
    "eval_duration": 52479709,
}


def test_ollama() -> None:
    usage = used(ollama.CHAT, ollama_stream(**OLLAMA))
    assert usage == Usage(prompt=11, completion=18)
    assert cost(OWN, usage, 0.0).micro_usd == 8  # 1.1 + 7.2


def test_ollama_leaves_out_a_count_that_is_zero() -> None:
    assert used(ollama.CHAT, ollama_stream(eval_count=18)) == Usage(completion=18)
    assert used(ollama.CHAT, ollama_stream(prompt_eval_count=0, eval_count=0)) == Usage()


def test_a_speaker_of_ollama_that_counts_nothing_is_estimated() -> None:
    assert used(ollama.CHAT, ollama_stream()) == Usage(completion=1, estimated=True)


def test_a_model_that_is_only_loaded_takes_nothing() -> None:
    frame = b'{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}\n'
    assert used(ollama.CHAT, frame) == Usage()


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("surface", [openai.CHAT, ollama.CHAT])
def test_an_estimate_is_the_same_however_the_stream_was_cut(surface: Surface, size: int) -> None:
    stream = ollama_stream() if surface is ollama.CHAT else streamed("{}")
    decoder = surface.decoder(Request(model="m"))
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    events = [event for piece in pieces for event in decoder.feed(piece)] + list(decoder.close())
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hi"]
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.usage == Usage(completion=1, estimated=True)


def test_embeddings_cost_their_prompt() -> None:
    told = openai.decode_embeddings(
        b'{"object":"list","data":[{"embedding":[0.5],"index":0}],"usage":{"prompt_tokens":5,"total_tokens":5}}'
    )
    assert told.usage == Usage(prompt=5)
    assert cost(Price(id="p", input=20_000), told.usage, 0.0).micro_usd == 0
    assert cost(Price(id="p", input=100_000), told.usage, 0.0).micro_usd == 1


def test_tokens_and_time_of_ones_own_graphics_card_add_up() -> None:
    card = Price(id="gpu", second=694, watts=350.0, kwh=300_000)  # 2.50 dollars an hour, 0.30 a kilowatt-hour
    usage = used(openai.CHAT, streamed(VLLM))
    taken = cost(card, usage, 1.5)
    assert (taken.micro_usd, taken.compute_micro_usd) == (1085, 1085)  # 1041 + 43.75
