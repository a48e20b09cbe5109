"""Modelfiles: text to values and back. Reads no file: `from_` and `adapters` are as written.

A statement is a word and a value; a value that starts with three double quotes, or one, runs to where they close, over
lines if need be. A line that starts with `#` between statements is a comment.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.dialects.ollama import options
from drivetrain.errors import BadRequest
from drivetrain.types import Message, Role, Text, Value

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_WORDS = ("from", "license", "template", "system", "adapter", "draft", "renderer", "parser", "parameter", "message")
_DEPRECATED = frozenset(
    {"penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat"}
    | {"mirostat_tau", "mirostat_eta", "tfs_z", "numa"}
)


class Modelfile(Value, frozen=True, kw_only=True):
    from_: str  # a model's name, or a path
    parameters: Mapping[str, Any] = {}  # typed; `stop` is a list
    template: str | None = None
    system: str | None = None
    adapters: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    renderer: str = ""
    parser: str = ""
    requires: str = ""


def parse(text: str) -> Modelfile:
    """Raises `BadRequest` in Ollama's words, with the number of the line."""
    found: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    many: dict[str, list[Any]] = {"adapter": [], "draft": [], "license": [], "message": []}
    for line, word, rest in _statements(text.removeprefix("\ufeff").replace("\r\n", "\n")):
        if word == "parameter":
            _add_parameter(parameters, rest, line)
        elif word == "message":
            many[word].append(_message(rest, line))
        elif word in many:
            many[word].append(_unquoted(rest))
        else:
            found[word] = _unquoted(rest)
    if not found.get("from"):
        raise BadRequest("no FROM line")
    return Modelfile(
        from_=found.pop("from"),
        parameters=parameters,
        adapters=tuple(many["adapter"]),
        drafts=tuple(many["draft"]),
        licenses=tuple(many["license"]),
        messages=tuple(many["message"]),
        **found,
    )


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, lower-case word and value, quotes still on, of each statement."""
    lines = iter(enumerate(text.split("\n"), start=1))
    for number, line in lines:
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        word = said.split(None, 1)[0].lower()
        if word not in _WORDS and word != "requires":
            expected = ", ".join(f'"{known}"' for known in _WORDS)
            raise BadRequest(f'(line {number}): command must be one of {expected}, or "requires"')
        rest = line.lstrip()[len(word) :].lstrip()
        while not _closed(_value_of(word, rest)):
            _, more = next(lines, (0, None))
            if more is None:
                raise BadRequest(f"(line {number}): unexpected EOF: the quotes of {word.upper()} are never closed")
            rest = f"{rest}\n{more}"
        yield number, word, rest


def _value_of(word: str, rest: str) -> str:
    """The part of a statement that may be quoted: what comes after a parameter's name or a message's role."""
    return _split(rest)[1] if word in ("parameter", "message") else rest


def _split(rest: str) -> tuple[str, str]:
    name, *value = rest.split(None, 1)[:2] if rest.strip() else [""]
    return name, value[0] if value else ""


def _closed(value: str) -> bool:
    said = value.strip()
    if said.startswith('"""'):
        return said.endswith('"""') and len(said) >= 6
    return not said.startswith('"') or (said.endswith('"') and len(said) >= 2)


def _unquoted(value: str) -> str:
    said = value.strip()
    if said.startswith('"""'):
        return said[3:-3]
    return said[1:-1] if said.startswith('"') else said


def _add_parameter(parameters: dict[str, Any], rest: str, line: int) -> None:
    name, text = _split(rest)
    if not name or not text:
        raise BadRequest(f"(line {line}): PARAMETER needs a name and a value")
    if name in _DEPRECATED:
        return  # Ollama warns and goes on
    try:
        value = options.parameter(name, _unquoted(text))
    except BadRequest as error:
        raise BadRequest(f"(line {line}): {error.message}") from error
    if options.KINDS[name] == "array":
        parameters.setdefault(name, []).append(value)
    else:
        parameters[name] = value


def _message(rest: str, line: int) -> Message:
    role, text = _split(rest)
    if role not in _ROLES:
        raise BadRequest(f'(line {line}): message role must be one of "system", "user", or "assistant"')
    said = _unquoted(text)
    return Message(role=_ROLES[role], content=(Text(text=said),) if said else ())


# --- writing ----------------------------------------------------------------------------------------------------------


def write(file: Modelfile, *, comment: str = "") -> str:
    """The text that `parse` reads back. Raises `BadRequest` for a value that no quotes can hold."""
    lines = [*(f"# {line}".rstrip() for line in comment.splitlines()), f"FROM {_quoted(file.from_)}"]
    for word in ("template", "system", "renderer", "parser", "requires"):
        value = getattr(file, word)
        if value is not None and (value or word in ("template", "system")):
            lines.append(f"{word.upper()} {_quoted(value)}")
    lines += [f"ADAPTER {_quoted(path)}" for path in file.adapters]
    lines += [f"DRAFT {_quoted(path)}" for path in file.drafts]
    for name, value in file.parameters.items():
        lines += [
            f"PARAMETER {name} {_quoted(_text(item))}" for item in (value if isinstance(value, list) else [value])
        ]
    lines += [f"MESSAGE {message.role} {_quoted(message.text)}" for message in file.messages]
    lines += [f"LICENSE {_quoted(text)}" for text in file.licenses]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    plain = text == text.strip() and text and "\n" not in text
    for candidate in (text, f'"{text}"', f'"""{text}"""') if plain else (f'"{text}"', f'"""{text}"""'):
        if _reads_back(candidate, text):
            return candidate
    raise BadRequest(f"a Modelfile cannot hold a text with three double quotes at the end of a line: {text[:80]!r}")


def _reads_back(candidate: str, text: str) -> bool:
    """No line but the last closes the quotes, and what is inside is the text."""
    lines = candidate.split("\n")
    early = any(_closed("\n".join(lines[:end])) for end in range(1, len(lines)))
    return not early and _closed(candidate) and _unquoted(candidate) == text
