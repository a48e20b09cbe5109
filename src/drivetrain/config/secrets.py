"""Values that are not in the file: `${NAME}`, `${NAME:-default}` and `file:/path`, in any text of the configuration.

`$$` is a dollar sign. What is put in is never read again for further references. A text read by `file:` loses its
last line break and is never shown; so is a member whose name says that it is a secret.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from drivetrain.config.document import Document
from drivetrain.config.problems import Path, Problem

_LIMIT_BYTES = 64 * 1024
_REFERENCE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{(?P<bad>[^}]*)\}?")
_FILE = re.compile(r"file:(/[^/].*)", re.DOTALL)
_SECRET = re.compile(r"(^|[_-]|api)(keys?|secrets?|token|passw(or)?d|authorization|credentials?)$", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):([^@/\s]*)(?=@)")

HIDDEN = "***"


def is_secret(path: Path) -> bool:
    """Whether the name of a member, or of one around it, says that its value must not be shown."""
    return path == ("keys", "pepper") or any(isinstance(part, str) and _SECRET.search(part) for part in path[2:])


def shown(value: Any, path: Path, document: Document | None = None) -> Any:
    """The value as it may be shown: secrets and passwords in URLs are replaced."""
    if isinstance(value, Mapping):
        return {name: shown(item, (*path, name), document) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item, (*path, position), document) for position, item in enumerate(value)]
    if value in (None, ""):
        return value
    if is_secret(path) or (document is not None and path in document.secret):
        return HIDDEN
    return _PASSWORD.sub(rf"\1:{HIDDEN}", value) if isinstance(value, str) else value


class _Unset(Exception):
    pass


def expand(document: Document, environ: Mapping[str, str]) -> list[Problem]:
    """Puts in, in place, what the document refers to. Returns what could not be."""
    problems: list[Problem] = []

    def walk(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {name: walk(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, position)) for position, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        try:
            return _text(value, path, document, environ)
        except _Unset as error:
            problems.append(Problem(document.values[path], path, str(error)))
            return value

    document.data = walk(document.data, ())
    return problems


def _text(text: str, path: Path, document: Document, environ: Mapping[str, str]) -> str:
    if found := _FILE.fullmatch(text):
        document.secret.add(path)
        document.loose[path] = text
        document.plain.discard(path)
        return _read(found[1])
    expanded = _REFERENCE.sub(lambda match: _reference(match, environ), text)
    if expanded != text:
        document.loose[path] = text
    return expanded


def _reference(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match[0] == "$$":
        return "$"
    if match["bad"] is not None:
        raise _Unset(f"{match[0]!r} is no reference; write ${{NAME}} or ${{NAME:-default}}, and $$ for a dollar sign")
    name, default = match["name"], match["default"]
    value = environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise _Unset(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return value


def _read(name: str) -> str:
    try:
        with open(name, "rb") as file:
            if os.fstat(file.fileno()).st_size > _LIMIT_BYTES:
                raise _Unset(f"the secret file {name} is larger than {_LIMIT_BYTES // 1024} KiB")
            return file.read(_LIMIT_BYTES).decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise _Unset(f"the secret file {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _Unset(f"the secret file {name} is not UTF-8 text") from error
