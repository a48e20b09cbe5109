"""A healthy engine's manners: what it answers on each OpenAI and Ollama route when a test scripts nothing."""

import base64
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from tests.fakes.replies import Reply, Stream, Whole, failure, ndjson, sse

MODEL = "fake"
MISSING = "missing"  # a model that no route knows
ENDLESS = "endless"  # a model that talks for ten seconds
WORDS = ("Hello", ", ", "wörld", " 🌍", "!")
ANSWER = "".join(WORDS)
PROMPT_TOKENS = 7
DIGEST = "ab" * 32
VERSION = "0.12.3"

Manner = Callable[[Mapping[str, Any]], Reply]


@cache
def openai_frames(kind: str, words: tuple[str, ...] = WORDS, *, usage: bool = True) -> tuple[bytes, ...]:
    """A stream of `chat.completion.chunk` or `text_completion` objects."""
    envelope = {"id": "gen-1", "object": kind, "created": 1700000000, "model": MODEL}
    chat = kind == "chat.completion.chunk"

    def choice(text: str, finish: str | None = None) -> dict[str, Any]:
        content = {"delta": {"content": text} if text else {}} if chat else {"text": text}
        return {**envelope, "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish}]}

    opening = [
        {**envelope, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    ]
    counts = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": len(words),
        "total_tokens": PROMPT_TOKENS + len(words),
    }
    closing: list[Any] = [{**envelope, "choices": [], "usage": counts}] if usage else []
    return tuple(sse(*(opening if chat else []), *map(choice, words), choice("", "stop"), *closing, "[DONE]"))


@cache
def ollama_frames(kind: str, words: tuple[str, ...] = WORDS) -> tuple[bytes, ...]:
    """A stream of chat or generate frames."""
    created = "2026-01-02T03:04:05.123456789Z"

    def frame(text: str, **more: Any) -> dict[str, Any]:
        content = {"message": {"role": "assistant", "content": text}} if kind == "chat" else {"response": text}
        return {"model": MODEL, "created_at": created, **content, "done": False, **more}

    counts = {
        "total_duration": 9_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": PROMPT_TOKENS,
        "prompt_eval_duration": 2_000_000,
        "eval_count": len(words),
        "eval_duration": 6_000_000,
    }
    return tuple(ndjson(*map(frame, words), frame("", done=True, done_reason="stop", **counts)))


def _openai_chat(body: Mapping[str, Any]) -> Reply:
    return _known(body, "openai", _paced(body, Stream(frames=openai_frames("chat.completion.chunk", _words(body)))))


def _openai_completions(body: Mapping[str, Any]) -> Reply:
    return _known(body, "openai", _paced(body, Stream(frames=openai_frames("text_completion", _words(body)))))


def _openai_embeddings(body: Mapping[str, Any]) -> Reply:
    vectors = [vector_of(position) for position in range(_count(body["input"]))]
    if body.get("encoding_format") == "base64":
        encoded: list[Any] = [base64.b64encode(struct.pack("<3f", *vector)).decode() for vector in vectors]
    else:
        encoded = vectors
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(encoded)]
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    return _known(body, "openai", Whole(body={"object": "list", "data": data, "model": MODEL, "usage": usage}))


def _count(given: Any) -> int:
    """How many inputs there are: a text and a list of token ids are one."""
    return len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1


def vector_of(position: int) -> list[float]:
    return [0.5, -0.25, float(position)]


def _openai_models(_: Mapping[str, Any]) -> Reply:
    model = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "tests"}
    return Whole(body={"object": "list", "data": [model]})


def _ollama_chat(body: Mapping[str, Any]) -> Reply:
    if not body.get("messages"):
        return _known(body, "ollama", Whole(body=_idle(body, {"message": {"role": "assistant", "content": ""}})))
    frames = ollama_frames("chat", _words(body))
    return _known(body, "ollama", _paced(body, Stream(frames=frames, media_type="application/x-ndjson")))


def _ollama_generate(body: Mapping[str, Any]) -> Reply:
    if not body.get("prompt"):
        return _known(body, "ollama", Whole(body=_idle(body, {"response": ""})))
    frames = ollama_frames("generate", _words(body))
    return _known(body, "ollama", _paced(body, Stream(frames=frames, media_type="application/x-ndjson")))


def _idle(body: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    reason = "unload" if body.get("keep_alive") in (0, "0", "0s") else "load"
    return {"model": MODEL, "created_at": "2026-01-02T03:04:05Z", **content, "done": True, "done_reason": reason}


def _ollama_embed(body: Mapping[str, Any]) -> Reply:
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = [vector_of(position) for position in range(len(inputs))]
    answer = {"model": MODEL, "embeddings": vectors, "total_duration": 9, "prompt_eval_count": PROMPT_TOKENS}
    return _known(body, "ollama", Whole(body=answer))


DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "134.52M",
    "quantization_level": "Q4_1",
}


def _ollama_tags(_: Mapping[str, Any]) -> Reply:
    name = f"{MODEL}:latest"
    model = {"name": name, "model": name, "modified_at": "2026-01-02T03:04:05.5Z", "size": 98_000_000, "digest": DIGEST}
    return Whole(body={"models": [{**model, "details": DETAILS}]})


def _ollama_ps(_: Mapping[str, Any]) -> Reply:
    name = f"{MODEL}:latest"
    model = {"name": name, "model": name, "size": 150_000_000, "digest": DIGEST, "details": DETAILS}
    more = {"expires_at": "2026-01-02T03:09:05.5+01:00", "size_vram": 120_000_000, "context_length": 4096}
    return Whole(body={"models": [{**model, **more}]})


def _ollama_show(body: Mapping[str, Any]) -> Reply:
    info = {"general.architecture": "llama", "llama.context_length": 8192, "llama.embedding_length": 576}
    show = {
        "details": DETAILS,
        "model_info": info,
        "capabilities": ["completion", "tools"],
        "template": "{{ .Prompt }}",
    }
    return _known(body, "ollama", Whole(body=show))


def _words(body: Mapping[str, Any]) -> tuple[str, ...]:
    return WORDS * 400 if body.get("model") == ENDLESS else WORDS


def _paced(body: Mapping[str, Any], stream: Stream) -> Stream:
    return replace(stream, pause_s=0.005) if body.get("model") == ENDLESS else stream


def _known(body: Mapping[str, Any], engine: str, reply: Reply) -> Reply:
    return failure(engine, "model") if body.get("model") == MISSING else reply


MANNERS: Mapping[tuple[str, str], Manner] = {
    ("GET", "/health"): lambda _: Whole(body={"status": "ok"}),
    ("GET", "/v1/models"): _openai_models,
    ("POST", "/v1/chat/completions"): _openai_chat,
    ("POST", "/v1/completions"): _openai_completions,
    ("POST", "/v1/embeddings"): _openai_embeddings,
    ("GET", "/api/version"): lambda _: Whole(body={"version": VERSION}),
    ("GET", "/api/tags"): _ollama_tags,
    ("GET", "/api/ps"): _ollama_ps,
    ("POST", "/api/show"): _ollama_show,
    ("POST", "/api/chat"): _ollama_chat,
    ("POST", "/api/generate"): _ollama_generate,
    ("POST", "/api/embed"): _ollama_embed,
}
