"""Requests for an Ollama server, from any `Request`.

A request that came in by the surface it leaves by keeps its members byte for byte: only `model` and `stream` are
rewritten, and values that the gateway merged in are added where the caller said nothing. From other dialects:
`tool_choice` "auto" is what Ollama does, "none" leaves the tools out, and a demand for a call is `Unsupported`, as are
grammars, `logit_bias`, `n` > 1, images by address, several prompts and prompts of tokens. `user`, `parallel_tool_calls`
and a participant's `name` have no word here and are dropped.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from drivetrain.dialects import logprobs
from drivetrain.dialects.ollama import options, requests
from drivetrain.dialects.ollama.durations import keep_alive
from drivetrain.dialects.ollama.messages import write_images, write_messages, write_tools
from drivetrain.errors import Unsupported
from drivetrain.types import Completion, Message, Request

_TOP_LEVEL = ("truncate", "shift")  # members of a request that travel in `Request.options`
_ABSENT = (b"null", b"")


def encode_chat(request: Request) -> bytes:
    if request.completion is not None:
        raise Unsupported("the chat surface of an Ollama engine takes messages, not a bare prompt", param="prompt")
    members = _verbatim(request, requests.CHAT)
    if members is None:
        members = {
            "model": request.model,
            "messages": write_messages(request.messages),
            "stream": True,
            **_tools(request),
            **_common(request),
        }
    return msgspec.json.encode(members)


def encode_generate(request: Request) -> bytes:
    members = _verbatim(request, requests.GENERATE)
    if members is None:
        prompt = _bare(request.completion) if request.completion else _turn(request.messages)
        members = {"model": request.model, **prompt, "stream": True, **_common(request)}
    return msgspec.json.encode(members)


def _verbatim(request: Request, surface: str) -> dict[str, Any] | None:
    """The caller's own members, if it came by this surface."""
    if request.source is None or request.source.dialect != surface:
        return None
    said = {name: raw for name, raw in request.source.fields.items() if bytes(raw) not in _ABSENT}
    merged = _common(request)
    merged["options"] = {**merged.get("options", {}), **_options_of(said)}
    if not merged["options"]:
        del merged["options"]
    added = {name: value for name, value in merged.items() if name == "options" or name not in said}
    return {**said, **added, "model": request.model, "stream": True}


def _options_of(said: Mapping[str, Raw]) -> dict[str, Raw]:
    return msgspec.json.decode(said["options"], type=dict[str, Raw]) if "options" in said else {}


def _common(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    rest = {name: value for name, value in request.options.items() if name not in _TOP_LEVEL}
    members: dict[str, Any] = {name: request.options[name] for name in _TOP_LEVEL if name in request.options}
    if chosen := options.write(sampling, rest):
        members["options"] = chosen
    if request.output is not None:
        members["format"] = options.write_format(request.output)
    if request.reasoning is not None:
        members["think"] = options.write_think(request.reasoning)
    if request.keep_alive_s is not None:
        members["keep_alive"] = keep_alive(request.keep_alive_s)
    if (others := logprobs.asked(request)) is not None:
        members["logprobs"] = True
    if others:
        members["top_logprobs"] = others
    return members


def _tools(request: Request) -> dict[str, Any]:
    if not request.tools or request.tool_choice == "none":
        return {}
    if request.tool_choice not in (None, "auto"):
        raise Unsupported('an Ollama engine cannot be made to call a tool; use tool_choice "auto"', param="tool_choice")
    return {"tools": write_tools(request.tools)}


def _bare(completion: Completion) -> dict[str, Any]:
    if len(completion.prompts) != 1 or not isinstance(completion.prompts[0], str):
        raise Unsupported("an Ollama engine takes one prompt per request, as text", param="prompt")
    if completion.echo:
        raise Unsupported("an Ollama engine does not echo the prompt", param="echo")
    if completion.suffix:
        return {"prompt": completion.prompts[0], "suffix": completion.suffix}
    return {"prompt": completion.prompts[0], "raw": True}


def _turn(messages: tuple[Message, ...]) -> dict[str, Any]:
    """One turn, with or without a system message: all that generate can say of a conversation."""
    if [message.role for message in messages] not in (["user"], ["system", "user"]):
        raise Unsupported(
            "the generate surface of an Ollama engine takes one turn; use its chat surface", param="messages"
        )
    turn: dict[str, Any] = {"prompt": messages[-1].text}
    if len(messages) > 1:
        turn["system"] = messages[0].text
    if images := write_images(messages[-1].content):
        turn["images"] = images
    return turn
