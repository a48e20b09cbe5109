"""Messages, tools and images between Ollama's form and ours, both ways.

Ollama tells which call a tool's result answers by the tool's name, others by the call's id. A result without an id
answers the earliest call of that name (of any name, if it gives none) that has no result yet.
"""

import binascii
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from drivetrain.dialects.ollama.wire import Call, WireMessage, WireTool
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.types import Audio, Image, Message, Part, Role, Text, Tool, ToolCall

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_PLAIN_ROLES = frozenset({"system", "user", "assistant"})
_MAGIC = ((b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"BM", "bmp"))


# --- from callers -----------------------------------------------------------------------------------------------------


def read_messages(wire: Sequence[WireMessage]) -> tuple[Message, ...]:
    open_calls: list[ToolCall] = []
    return tuple([_read_message(message, at, open_calls) for at, message in enumerate(wire)])


def _read_message(wire: WireMessage, at: int, open_calls: list[ToolCall]) -> Message:
    role = _ROLES.get(wire.role) or _ROLES.get(wire.role.lower())
    text = (Text(text=wire.content),) if wire.content else ()
    if role in _PLAIN_ROLES and not (wire.images or wire.tool_calls or wire.thinking):
        return Message(role=role, content=text)
    where = f"messages[{at}]"
    if role is None:
        expected = "system, user, assistant or tool"
        raise BadRequest(f'invalid role "{wire.role}" in {where}; expected {expected}', param=f"{where}.role")
    calls = tuple(_read_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(wire.tool_calls or ()))
    open_calls.extend(calls)
    answered = _answered(wire, open_calls) if role == "tool" else None
    return Message(
        role=role,
        content=text + read_images(wire.images, where),
        reasoning=wire.thinking or "",
        tool_calls=calls,
        tool_call_id=wire.tool_call_id or (answered.id if answered else None),
        name=wire.tool_name or (answered.name if answered else None),
    )


def _answered(wire: WireMessage, open_calls: list[ToolCall]) -> ToolCall | None:
    for call in open_calls:
        named = call.id == wire.tool_call_id if wire.tool_call_id else wire.tool_name in (None, "", call.name)
        if named:
            open_calls.remove(call)
            return call
    return None


def _read_call(call: Call, where: str) -> ToolCall:
    if not call.function.name:
        raise BadRequest(f"{where} has no function name", param=f"{where}.function.name")
    arguments = json_object(bytes(call.function.arguments))
    if arguments is None:
        raise BadRequest(f"{where}.function.arguments is no JSON object", param=f"{where}.function.arguments")
    # Derived from the place, so that the same history gives the same ids, and a prefix cache keeps its worth.
    return ToolCall(id=call.id or f"call_{where}".translate(_PLAIN), name=call.function.name, arguments=arguments)


_PLAIN = str.maketrans({"[": "_", "]": None, ".": "_"})


def json_object(said: bytes) -> str | None:
    """A JSON object as compact text, its keys in order; also if it comes inside a string. None if it is no object."""
    try:
        if said.startswith(b'"'):
            said = msgspec.json.decode(said, type=str).encode()
        said = msgspec.json.format(said or b"{}", indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return None
    if said == b"null":
        return "{}"
    return said.decode() if said.startswith(b"{") else None


def read_tools(wire: Iterable[WireTool]) -> tuple[Tool, ...]:
    return tuple(_read_tool(tool, f"tools[{at}]") for at, tool in enumerate(wire))


def _read_tool(tool: WireTool, where: str) -> Tool:
    said = tool.function
    if not said.name:
        raise BadRequest(f"{where} has no function name", param=f"{where}.function.name")
    parameters = said.parameters if bytes(said.parameters) != b"null" else Raw(b"{}")
    return Tool(name=said.name, description=said.description or "", parameters=parameters)


def read_images(images: Sequence[str] | None, where: str) -> tuple[Part, ...]:
    return tuple(_read_image(image, f"{where}.images[{at}]".lstrip(".")) for at, image in enumerate(images or ()))


def _read_image(image: str, where: str) -> Part:
    """Base64 as a `data:` URL of its format. Ollama carries sound in `images` too."""
    data = image.rpartition(",")[2] if image.startswith("data:") else image
    try:
        whole = binascii.a2b_base64(data.encode().translate(None, b"\r\n"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadRequest(f"illegal base64 data in {where}: {error}", param=where) from error
    if whole[:4] == b"RIFF" and whole[8:12] == b"WAVE":
        return Audio(data=data, format="wav")
    kind = "webp" if whole[:4] == b"RIFF" and whole[8:12] == b"WEBP" else None
    kind = kind or next((name for magic, name in _MAGIC if whole.startswith(magic)), None)
    if kind is None:
        raise BadRequest(f"unknown format of {where}; expected PNG, JPEG, WebP, GIF or BMP", param=where)
    return Image(url=f"data:image/{kind};base64,{data}")


# --- for engines ------------------------------------------------------------------------------------------------------


def write_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Raises `Unsupported` for an image that is not in the request itself."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_write_message(message, names) for message in messages]


def _write_message(message: Message, names: dict[str, str]) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    wire: dict[str, Any] = {"role": role, "content": message.text}
    if message.reasoning:
        wire["thinking"] = message.reasoning
    if images := write_images(message.content):
        wire["images"] = images
    if message.tool_calls:
        wire["tool_calls"] = [write_call(call, at, wire_id=call.id) for at, call in enumerate(message.tool_calls)]
    if role == "tool":
        said = {
            "tool_name": message.name or names.get(message.tool_call_id or ""),
            "tool_call_id": message.tool_call_id,
        }
        wire.update((name, value) for name, value in said.items() if value)
    return wire


def write_call(call: ToolCall, at: int, *, wire_id: str) -> dict[str, Any]:
    """A call with its arguments as an object. Arguments that are none are wrapped, so that nothing is lost."""
    arguments = json_object(call.arguments.encode())
    function = {
        "index": at,
        "name": call.name,
        "arguments": Raw(arguments.encode()) if arguments else {"text": call.arguments},
    }
    return {"id": wire_id, "function": function} if wire_id else {"function": function}


def write_images(content: Sequence[Part]) -> list[str]:
    return [_write_image(part) for part in content if not isinstance(part, Text)]


def _write_image(part: Image | Audio) -> str:
    if isinstance(part, Audio):
        return part.data
    head, comma, data = part.url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise Unsupported("an Ollama engine takes images as base64 data: URLs, not from an address", param="image_url")
    return data


def write_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": _write_function(tool)} for tool in tools]


def _write_function(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parameters": tool.parameters}
