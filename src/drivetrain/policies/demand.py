"""How many tokens a request may take, before an engine has counted them."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from drivetrain.types import (
    Audio,
    Completion,
    EmbedRequest,
    Grammar,
    Image,
    JsonSchema,
    Message,
    Request,
    Text,
    Tool,
    Usage,
)

CHARACTERS_PER_TOKEN = 4  # of a prompt whose engine reported nothing; the usual rule of thumb for English
BYTES_PER_TOKEN = 3  # of UTF-8, for a reservation: rather too many tokens than too few
IMAGE_TOKENS = 1600  # of a reservation, for each image: what a large one takes with most models
AUDIO_CHARACTERS_PER_TOKEN = 200  # of base64: speech at 32 kbit/s and 25 tokens a second
MESSAGE_TOKENS = 8  # what a chat template puts around a message
PREAMBLE_TOKENS = 32  # and in front of all of them: a system prompt of its own, a date
LIMITS = frozenset({"max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens"})  # of an answer

_integer = msgspec.json.Decoder(int).decode


def prompt_tokens(request: Request | EmbedRequest) -> int:
    """About how many tokens a prompt has: for the books, where its engine reported nothing."""
    if isinstance(request, EmbedRequest):
        return sum(_about(prompt) for prompt in request.inputs)
    prompts = request.completion.prompts if request.completion else ()
    spoken = sum(len(message.text) for message in request.messages) // CHARACTERS_PER_TOKEN
    return spoken + sum(_about(prompt) for prompt in prompts)


def estimate(request: Request | EmbedRequest, *, output_tokens: int) -> Usage:
    """What to set aside for a request: a prompt and answers as long as it allows, `output_tokens` for each answer where
    it names no limit. Nothing is expected to come from a cache."""
    if isinstance(request, EmbedRequest):
        return Usage(prompt=sum(_at_most(prompt) for prompt in request.inputs), estimated=True)
    prompt = _of_completion(request.completion) if request.completion else _of_chat(request)
    completion = answer_tokens(request, output_tokens=output_tokens)
    return Usage(prompt=prompt, completion=completion, estimated=True)


def answer_tokens(request: Request, *, output_tokens: int) -> int:
    """How long all answers to a request may be together, `output_tokens` each where it names no limit."""
    fields = request.source.fields if request.source is not None else {}
    return _length(request, fields, output_tokens) * _answers(request, fields)


def _about(prompt: str | tuple[int, ...]) -> int:
    return len(prompt) // CHARACTERS_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def _at_most(prompt: str | tuple[int, ...]) -> int:
    if not isinstance(prompt, str):
        return len(prompt)
    size = len(prompt) if prompt.isascii() else len(prompt.encode(errors="surrogatepass"))
    return (size + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN


def _answers(request: Request, fields: Mapping[str, Raw]) -> int:
    """How many an engine makes: `n` for each prompt, or as many as it is told to choose the best of."""
    prompts = len(request.completion.prompts) if request.completion else 1
    if "best_of" not in fields:
        return prompts * request.sampling.n
    return prompts * max(1, request.sampling.n, _said(fields, "best_of") or 1)


def _length(request: Request, fields: Mapping[str, Raw], output_tokens: int) -> int:
    """The longest that one answer may be. Engines differ in which of several limits they heed."""
    limits = [request.sampling.max_tokens, *[_said(fields, name) for name in LIMITS.intersection(fields)]]
    named = [output_tokens if limit < 0 else limit for limit in limits if limit is not None]
    return max(named, default=output_tokens)


def _said(fields: Mapping[str, Raw], name: str) -> int | None:
    """A number in the caller's own words, which may reach an engine as they are."""
    try:
        return _integer(fields[name])
    except msgspec.DecodeError:  # null, or what no engine takes
        return None


def _of_completion(completion: Completion) -> int:
    return sum(map(_at_most, completion.prompts)) + _at_most(completion.suffix or "")


def _of_chat(request: Request) -> int:
    tokens = PREAMBLE_TOKENS + sum(map(_of_message, request.messages)) + sum(map(_of_tool, request.tools))
    match request.output:
        case JsonSchema():
            return tokens + len(bytes(request.output.schema)) // BYTES_PER_TOKEN + 1
        case Grammar():
            return tokens + _at_most(request.output.text)
    return tokens


def _of_message(message: Message) -> int:
    tokens = MESSAGE_TOKENS
    for part in message.content:
        tokens += _of_part(part)
    if message.reasoning:
        tokens += _at_most(message.reasoning)
    for call in message.tool_calls:
        tokens += _at_most(call.name) + _at_most(call.arguments)
    return tokens


def _of_part(part: Text | Image | Audio) -> int:
    if isinstance(part, Text):
        return _at_most(part.text)
    if isinstance(part, Image):
        return IMAGE_TOKENS
    return len(part.data) // AUDIO_CHARACTERS_PER_TOKEN + 1


def _of_tool(tool: Tool) -> int:
    said = _at_most(tool.name) + _at_most(tool.description)
    return MESSAGE_TOKENS + said + len(bytes(tool.parameters)) // BYTES_PER_TOKEN + 1
