"""Tools, where llama.cpp or a model's chat template leaves them out. Pure.

llama.cpp drops tools silently if the template does not mention them. So such a template gets a preface, in Jinja as it
is itself: it tells the model of the tools in a system message, and puts calls and results into plain text. llama.cpp
finds out the form of the calls by trying the template, holds the model to it by a grammar, and reads the calls back.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.json import decode, encode
from msgspec.structs import replace

from drivetrain.dialects.openai.requests import CHAT
from drivetrain.errors import Unsupported
from drivetrain.excerpts import shown
from drivetrain.types import Event, JsonSchema, Message, NamedTool, Request, Text, ToolCallDelta, ToolCallStart

CALL: Final = "<tool_call>\n"


class _Kind(msgspec.Struct, gc=False):
    """All of a tool that is read here: its schema may be long."""

    type: str | None = "function"


_NONE: Final = Raw(b"null")
_kinds = msgspec.json.Decoder(list[_Kind] | None).decode
_choice = msgspec.json.Decoder(dict[str, Any] | str | None).decode

_JINJA: Final = re.compile(r"\{\{|\{%")
_GO: Final = re.compile(r"\{\{-?\s*(?:[.$]|/\*|(?:if|else|range|with|end|define|template|block|break|continue)\b)")
_FOLD: Final = "{%- set fold_system = true -%}\n"  # the template takes no system message
_PREFACE: Final = """\
{%- set said = namespace(messages=[], system='', calls='', tooling=false) -%}
{%- if tools -%}{%- set said.tooling = true -%}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set said.system = message.content ~ '\\n\\n' -%}
{%- elif message.role == 'tool' -%}
{%- set said.tooling = true -%}
{%- set said.messages = said.messages + [{'role': 'user', 'content':
    '<tool_response>\\n' ~ message.content ~ '\\n</tool_response>'}] -%}
{%- elif message.tool_calls -%}
{%- set said.tooling = true -%}
{%- set said.calls = message.content if message.content else '' -%}
{%- for call in message.tool_calls -%}
{%- set said.calls = said.calls ~ '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": '
    ~ (call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson))
    ~ '}\\n</tool_call>' -%}
{%- if not loop.last -%}{%- set said.calls = said.calls ~ '\\n' -%}{%- endif -%}
{%- endfor -%}
{%- set said.messages = said.messages + [{'role': 'assistant', 'content': said.calls}] -%}
{%- else -%}
{%- set said.messages = said.messages + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- if tools -%}
{%- set said.system = said.system ~ 'You can call these functions:\\n<tools>\\n' -%}
{%- for tool in tools -%}
{%- set said.system = said.system ~ (tool | tojson) ~ '\\n' -%}
{%- endfor -%}
{%- set said.system = said.system ~ '</tools>\\nTo call one, answer with its name and arguments, like this:\\n'
    ~ '<tool_call>\\n{"name": "the name", "arguments": {"an argument": "its value"}}\\n</tool_call>' -%}
{%- endif -%}
{%- if said.tooling and said.system -%}
{%- if fold_system and said.messages -%}
{%- set messages = [{'role': said.messages[0].role, 'content': said.system ~ '\\n\\n' ~ said.messages[0].content}]
    + said.messages[1:] -%}
{%- else -%}
{%- set messages = [{'role': 'system', 'content': said.system}] + said.messages -%}
{%- endif -%}
{%- elif said.tooling -%}
{%- set messages = said.messages -%}
{%- endif -%}
"""


def refuse_others(request: Request) -> None:
    """The caller's own words reach llama.cpp, which knows functions alone, and drops a schema that is no object. Raises
    `Unsupported` for other tools, choices and schemas."""
    sent = _NONE if request.source is None else request.source.fields.get("tools", _NONE)
    for place, tool in enumerate(_kinds(sent) or ()):
        if tool.type not in (None, "function"):
            told = f"'tools[{place}].type' is {shown(tool.type)}; the embedded engine knows no tools but functions"
            raise Unsupported(told, param=f"tools[{place}].type")
    _refuse_other_choices(request)
    _refuse_other_schemas(request)


def _refuse_other_choices(request: Request) -> None:
    match _sent_choice(request):
        case "any":  # another engine's word for "required"
            told = "'tool_choice' is \"any\"; the embedded engine knows auto, none, required and functions"
            raise Unsupported(told, param="tool_choice")
        case {"type": "custom"}:
            told = "'tool_choice.type' is \"custom\"; the embedded engine knows no tools but functions"
            raise Unsupported(told, param="tool_choice")
    if request.tool_choice == "required" and not request.tools:
        told = "'tool_choice' allows no functions; the embedded engine knows no other tools"
        raise Unsupported(told, param="tool_choice")


def _refuse_other_schemas(request: Request) -> None:
    if isinstance(request.output, JsonSchema) and not bytes(request.output.schema).startswith(b"{"):
        told = f"'response_format' has the schema {shown(request.output.schema)}; the embedded engine takes an object"
        raise Unsupported(told, param="response_format")


def jinja(template: str | None) -> str | None:
    """A model's template, if llama.cpp can read it: what comes with Ollama's models is Go's, of another language."""
    if template is None or not _JINJA.search(template) or _GO.search(template):
        return None
    return template


def with_tools(template: str) -> str | None:
    """The template with the preface; None if it knows of tools itself, or is empty."""
    if not template or "tools" in template:
        return None
    takes_system = "system" in template and not re.search("system role not supported", template, re.IGNORECASE)
    return ("" if takes_system else _FOLD) + _PREFACE + template


def demanded(request: Request, *, prefaced: bool) -> Request:
    """The request, put so that a call that its `tool_choice` demands does come.

    llama.cpp takes no names in a `tool_choice`: only the tools that it names are left to choose. And it lets a model
    talk before a call that is required; where the form of calls is that of our preface, the answer is made to begin
    with one.
    """
    request = _without_names(request)
    if request.tool_choice != "required" or not prefaced or not request.tools:
        return request
    start = Message(role="assistant", content=(Text(text=CALL),))
    sent = _sent(request, "messages")
    messages = {} if sent is None else {"messages": encode([*sent, {"role": "assistant", "content": CALL}])}
    return _changed(replace(request, messages=(*request.messages, start)), **messages)


def _without_names(request: Request) -> Request:
    """The request with a choice of one word, and of its tools only those to choose from."""
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        tools = tuple(tool for tool in request.tools if tool.name == choice.name)
        request = replace(request, tools=tools, tool_choice="required")
    elif not isinstance(_sent_choice(request), dict):  # else it lists tools, and the others are left out already
        return request
    return _changed(request, tool_choice=encode(request.tool_choice), **_kept_tools(request))


def one_call(request: Request) -> bool:
    """Whether the caller takes one call at most. llama.cpp's grammar lets a model go on calling all the same."""
    return request.parallel_tool_calls is False or isinstance(request.tool_choice, NamedTool)


def without_further_calls(events: Iterable[Event]) -> list[Event]:
    """The events but for those of calls after the first."""
    return [event for event in events if not (isinstance(event, ToolCallStart | ToolCallDelta) and event.call > 0)]


def _kept_tools(request: Request) -> dict[str, bytes]:
    """Those of the request, as the caller sent them."""
    sent, names = _sent(request, "tools"), {tool.name for tool in request.tools}
    return {} if sent is None else {"tools": encode([tool for tool in sent if tool["function"]["name"] in names])}


def _sent_choice(request: Request) -> dict[str, Any] | str | None:
    """The `tool_choice` of a chat in the caller's own words; the other forms of a request have none that goes on."""
    source = request.source
    return None if source is None or source.dialect != CHAT else _choice(source.fields.get("tool_choice", _NONE))


def _sent(request: Request, member: str) -> list[Any] | None:
    """A member of the body as the caller sent it."""
    source = request.source
    return None if source is None or member not in source.fields else decode(source.fields[member])


def _changed(request: Request, **fields: bytes) -> Request:
    """The request with members of the caller's own body changed too, for those go to the engine as they are."""
    source = request.source
    if source is None:
        return request
    changed = {name: Raw(value) for name, value in fields.items()}
    return replace(request, source=replace(source, fields={**source.fields, **changed}))
