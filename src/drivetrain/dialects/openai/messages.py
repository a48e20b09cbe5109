"""A conversation's messages and tools in OpenAI's form, both ways."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, get_args

import msgspec
from msgspec import Raw

from drivetrain.dialects.openai import wire
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.excerpts import shown
from drivetrain.types import Audio, Image, Message, NamedTool, Part, Role, Text, Tool, ToolCall, ToolChoice

_ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "function": "tool"}
_MODES: Mapping[str, ToolChoice] = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_PARTS = "text, image_url, input_audio, refusal"
_ALLOWED = '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}'


# --- from callers -----------------------------------------------------------------------------------------------------


def decode(messages: Sequence[wire.MessageIn]) -> tuple[Message, ...]:
    if not messages:
        raise BadRequest("'messages' is empty; at least one message is expected", param="messages")
    return tuple([_message(message, place) for place, message in enumerate(messages)])


def _message(given: wire.MessageIn, place: int) -> Message:
    role = _ROLES.get(given.role)
    if role is None:
        refuse(f"messages[{place}].role", given.role, f"one of {', '.join(_ROLES)}")
    content = given.content
    if isinstance(content, list):
        parts = tuple([_part(part, f"messages[{place}].content[{at}]") for at, part in enumerate(content)])
    else:
        text = content or given.refusal
        parts = (Text(text=text),) if text else ()
    return Message(
        role=role,
        content=parts,
        reasoning=given.reasoning_content or given.reasoning or "",
        tool_calls=_calls(given, f"messages[{place}]") if given.tool_calls or given.function_call else (),
        tool_call_id=given.tool_call_id or (given.name if given.role == "function" else None),
        name=given.name,
    )


def _part(part: wire.PartIn, path: str) -> Part:
    match part:
        case wire.PartIn(type="text", text=str(text)):
            return Text(text=text)
        case wire.PartIn(type="refusal", refusal=str(text)):
            return Text(text=text)
        case wire.PartIn(type="image_url", image_url=str(url) | {"url": str(url)}):
            detail = part.image_url.get("detail") if isinstance(part.image_url, dict) else None
            return Image(url=url, detail=detail if isinstance(detail, str) else None)
        case wire.PartIn(type="input_audio", input_audio={"data": str(data), "format": str(format)}):
            return Audio(data=data, format=format)
        case wire.PartIn(type="text" | "refusal" | "image_url" | "input_audio"):
            raise BadRequest(f"'{path}.{part.type}' is missing or incomplete", param=f"{path}.{part.type}")
        case wire.PartIn(type="file"):
            raise Unsupported(f"'{path}' is a file; put its text into a text part instead", param=path)
        case _:
            refuse(f"{path}.type", part.type, f"one of {_PARTS}")


def _calls(given: wire.MessageIn, path: str) -> tuple[ToolCall, ...]:
    if given.function_call is not None:  # of old: one call, known by its function's name
        call = given.function_call
        return (ToolCall(id=call.name, name=call.name, arguments=arguments(call.arguments)),)
    return tuple(_call(call, f"{path}.tool_calls[{at}]") for at, call in enumerate(given.tool_calls or ()))


def _call(call: wire.CallIn, path: str) -> ToolCall:
    if call.function is not None:
        return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments(call.function.arguments))
    if call.custom is not None:  # free text for an argument: shown to other dialects as a JSON string
        text = msgspec.json.encode({"input": call.custom.get("input")}).decode()
        return ToolCall(id=call.id or "", name=str(call.custom.get("name", "")), arguments=text)
    raise BadRequest(f"'{path}.function' is missing", param=f"{path}.function")


def arguments(given: str | Mapping[str, Any] | None) -> str:
    """A call's arguments as JSON text. Some clients and engines send the object itself."""
    return given if isinstance(given, str) else msgspec.json.encode(given).decode() if given is not None else ""


def decode_tools(tools: Iterable[wire.ToolIn]) -> tuple[Tool, ...]:
    """The functions among the tools. Built-in and custom tools reach engines of this dialect only."""
    found = []
    for at, tool in enumerate(tools):
        if tool.function is not None:
            found.append(decode_function(tool.function, f"tools[{at}].function"))
        elif tool.type == "function":
            raise BadRequest(f"'tools[{at}].function' is missing", param=f"tools[{at}].function")
    return tuple(found)


def decode_function(given: wire.FunctionTool, path: str) -> Tool:
    if not given.name.strip():
        raise BadRequest(f"'{path}.name' is empty; name the function", param=f"{path}.name")
    return Tool(
        name=given.name,
        description=given.description or "",
        parameters=schema(given.parameters),
        strict=given.strict,
    )


def schema(given: Raw) -> Raw:
    """A schema verbatim; null is one that allows anything."""
    return Raw(b"{}") if bytes(given) == b"null" else given


def decode_choice(choice: str | Mapping[str, Any] | None, param: str = "tool_choice") -> ToolChoice | None:
    match choice:
        case None:
            return None
        case str(mode) if mode in _MODES:
            return _MODES[mode]
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*_]}}:
            return _MODES[mode]
        case {"type": "allowed_tools"}:
            refuse(param, choice, _ALLOWED)
        case {"type": "custom"}:
            return "required"
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return NamedTool(name=name)
        case _:
            refuse(param, choice, 'auto, none, required or {"type": "function", "function": {"name": …}}')


def check_choice(choice: ToolChoice | None, tools: Sequence[Tool], *, any_tools: bool, param: str) -> None:
    """Raises `BadRequest` for a choice that demands what is not there. `any_tools`: also ones that are no functions."""
    if isinstance(choice, NamedTool):
        _check_name(choice.name, tools, param)
    if choice == "required" and not any_tools:
        raise BadRequest(f"'{param}' demands a call, but the request has no tools", param=param)


def allowed(choice: Mapping[str, Any], tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The functions that a choice that was read leaves to call: all, unless it lists some. Raises `BadRequest` for one
    that is not there, and for a demand that lists nothing."""
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}:
            if mode == "required" and not listed:
                raise BadRequest("'tool_choice' demands a call, but allows no tools", param="tool_choice")
            names = {name for each in listed if (name := _allowed_name(each)) is not None}
            for name in sorted(names):
                _check_name(name, tools, "tool_choice")
            return tuple(tool for tool in tools if tool.name in names)
    return tools


def _allowed_name(entry: object) -> str | None:
    """A function's name; None for other tools, which reach engines of this dialect only."""
    match entry:
        case {"type": str(kind)} if kind != "function":
            return None
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
        case _:
            refuse("tool_choice", entry, 'tools like {"type": "function", "function": {"name": …}}')


def _check_name(name: str, tools: Sequence[Tool], param: str) -> None:
    if all(tool.name != name for tool in tools):
        known = ", ".join(tool.name for tool in tools) or "none"
        wrong = f"'{param}' names {shown(name)}, which is no function of the request; it has {known}"
        raise BadRequest(wrong, param=param)


def refuse(param: str, value: object, expected: str) -> NoReturn:
    raise BadRequest(f"'{param}' is {shown(value)}; expected {expected}", param=param)


# --- to engines -------------------------------------------------------------------------------------------------------


def encode(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_encode_message(message) for message in _with_ids(messages)]


def _encode_message(message: Message) -> dict[str, Any]:
    given: dict[str, Any] = {"role": message.role, "content": _encode_content(message)}
    if message.name is not None:
        given["name"] = message.name
    if message.reasoning:  # llama.cpp and SGLang read the one name, vLLM and Ollama the other
        given["reasoning_content"] = given["reasoning"] = message.reasoning
    if message.tool_calls:
        given["tool_calls"] = [encode_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        given["tool_call_id"] = message.tool_call_id
    return given


def _encode_content(message: Message) -> Any:
    match message.content:
        case ():
            return None if message.tool_calls else ""
        case (Text(text=text),) if text:
            return text
        case parts:
            return [_encode_part(part) for part in parts]


def _encode_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            detail = {} if part.detail is None else {"detail": part.detail}
            return {"type": "image_url", "image_url": {"url": part.url, **detail}}
        case Audio():
            return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}


def encode_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def encode_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def encode_choice(choice: ToolChoice) -> Any:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice


def _with_ids(messages: Sequence[Message]) -> Iterable[Message]:
    """Calls and their results joined by ids, which this dialect demands and others leave out: results of a function
    answer its calls in order."""
    open_calls: list[ToolCall] = []
    for at, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(_with_id(call, f"call_{at}_{n}") for n, call in enumerate(message.tool_calls))
            open_calls = list(calls)
            message = msgspec.structs.replace(message, tool_calls=calls)
        elif message.role == "tool":
            message = _answering(message, open_calls)
        yield message


def _with_id(call: ToolCall, id: str) -> ToolCall:
    return call if call.id else msgspec.structs.replace(call, id=id)


def _answering(message: Message, open_calls: list[ToolCall]) -> Message:
    """A tool's message with the id of the call it answers, which is taken off the open ones."""
    if message.tool_call_id is not None:
        open_calls[:] = [call for call in open_calls if call.id != message.tool_call_id]
        return message
    answered = next((call for call in open_calls if message.name in (None, call.name)), None)
    if answered is None:
        return msgspec.structs.replace(message, tool_call_id=f"call_{message.name or 'unknown'}")
    open_calls.remove(answered)
    return msgspec.structs.replace(message, tool_call_id=answered.id)
