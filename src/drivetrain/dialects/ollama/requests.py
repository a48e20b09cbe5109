"""What callers ask on `/api/chat` and `/api/generate`, decoded into a `Request`.

`truncate` and `shift`, if a caller says them, travel in `Request.options` beside the options of those names.
A generate request becomes chat messages, so that the model's own chat template applies, except where the caller brings
the whole prompt (`raw`, `template`) or a `suffix` to fill in before: those become a `Completion`.
"""

from typing import Any

from drivetrain.dialects.ollama import context, options, template, wire
from drivetrain.dialects.ollama.durations import keep_alive_s
from drivetrain.dialects.ollama.errors import model_not_found, model_required
from drivetrain.dialects.ollama.messages import read_images, read_messages, read_tools
from drivetrain.dialects.ollama.wire import Asked, ChatBody, GenerateBody
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.types import Completion, Message, Request, Sampling, Source, Text

CHAT = "ollama.chat"
GENERATE = "ollama.generate"
MOST_TOP_LOGPROBS = 20


def decode_chat(body: bytes) -> Request:
    asked = wire.read(body, ChatBody)
    if not asked.model:
        raise model_required()
    return Request(
        messages=read_messages(asked.messages or ()),
        tools=read_tools(asked.tools or ()),
        source=Source(dialect=CHAT, fields=wire.fields(body)),
        **_common(asked),
    )


def decode_generate(body: bytes) -> Request:
    asked = wire.read(body, GenerateBody)
    if not asked.model:
        raise model_not_found(asked.model)
    if asked.raw and (asked.template or asked.system or asked.context):
        raise BadRequest("raw mode does not support template, system, or context", param="raw")
    completion = _completion(asked)
    return Request(
        messages=() if completion else _turns(asked),
        completion=completion,
        source=Source(dialect=GENERATE, fields=wire.fields(body)),
        **_common(asked),
    )


def wants_load(request: Request) -> bool:
    """The request only loads a model, or unloads it (`keep_alive` 0): it holds nothing to answer."""
    return not request.messages and request.completion is None


def _common(asked: Asked) -> dict[str, Any]:
    if asked.render_only:
        name = "_debug_render_only"
        raise Unsupported(f"{name} is not supported: engines do not show their prompts; leave it out", param=name)
    if asked.top_logprobs is not None and not 0 <= asked.top_logprobs <= MOST_TOP_LOGPROBS:
        raise BadRequest(f"top_logprobs must be between 0 and {MOST_TOP_LOGPROBS}", param="top_logprobs")
    sampling, rest = options.read(asked.options)
    said = {"truncate": asked.truncate, "shift": asked.shift}
    return {
        "model": asked.model,
        "sampling": Sampling(logprobs=bool(asked.logprobs), top_logprobs=_others(asked), **sampling),
        "output": options.read_format(asked.format),
        "reasoning": options.read_think(asked.think),
        "stream": asked.stream is not False,
        "keep_alive_s": keep_alive_s(asked.keep_alive),
        "options": {**rest, **{name: value for name, value in said.items() if value is not None}},
    }


def _others(asked: Asked) -> int | None:
    """How many tokens beside the chosen one are to be told of at each place."""
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _completion(asked: GenerateBody) -> Completion | None:
    """The prompt as the model shall see it, if the caller brings it so."""
    prompt = asked.prompt or ""
    if not (asked.raw or asked.suffix or asked.template) or not (prompt or asked.suffix):
        return None
    if asked.images:
        raise BadRequest("images cannot be combined with raw, template or suffix", param="images")
    if asked.template and not asked.suffix:
        values = {".System": asked.system or "", ".Prompt": prompt, ".Suffix": ""}
        prompt = template.render(asked.template, values)
    return Completion(prompts=(prompt,), suffix=asked.suffix or None, logprobs=_others(asked))


def _turns(asked: GenerateBody) -> tuple[Message, ...]:
    """The conversation so far and the new turn; nothing if there is no new turn, whatever else is there."""
    images = read_images(asked.images, "")
    if not asked.prompt and not images:
        return ()
    earlier = context.decode(asked.context)
    if asked.system:
        system = Message(role="system", content=(Text(text=asked.system),))
        earlier = (system, *(message for message in earlier if message.role != "system"))
    text = (Text(text=asked.prompt),) if asked.prompt else ()
    return (*earlier, Message(role="user", content=text + images))
