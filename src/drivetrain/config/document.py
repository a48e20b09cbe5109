"""YAML with positions: a file as plain values, and where each of them stands.

A strict subset of YAML 1.2: `yes`, `no`, `on` and `off` are words, `012` is twelve and `1:30` is text. Duplicate keys,
anchors, aliases and tags are refused, so what is read is what is written.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import yaml

from drivetrain.config.problems import ConfigError, Path, Place, Problem

_DEPTH = 32  # deeper than any configuration, far below Python's own limit

_SCALARS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "null": (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": (re.compile(r"[-+]?[0-9]+"), int),
    "octal": (re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    "hex": (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    "float": (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
}


class Document(msgspec.Struct):
    """Values under construction, and where they come from. Each layer of the configuration writes over it."""

    data: dict[str, Any] = {}
    values: dict[Path, Place] = {}  # where a value stands
    keys: dict[Path, Place] = {}  # where its name stands
    plain: set[Path] = set()  # scalars without quotes: their type is read from their text
    loose: dict[Path, str] = {}  # text from outside YAML, whose type is what its place wants; and how to show it
    secret: set[Path] = set()  # read from a secret file: never shown

    def at(self, path: Path) -> Place:
        """Where to point for what is wrong with a value."""
        return self.values.get(path) or self.place(path)

    def place(self, path: Path) -> Place:
        """Where to point for what is wrong with a name, or missing below it: the nearest that was written somewhere."""
        while path and path not in self.values and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path) or self.values.get(path) or Place("defaults")

    def move(self, old: Path, new: Path) -> None:
        """What is known of a path, and of all below it, is known of another."""
        known: tuple[dict[Path, Any], ...] = (self.values, self.keys, self.loose)
        for table in known:
            below = [path for path in table if path[: len(old)] == old]
            table.update({new + path[len(old) :]: table.pop(path) for path in below})
        for marked in (self.plain, self.secret):
            under = {path for path in marked if path[: len(old)] == old}
            marked ^= under | {new + path[len(old) :] for path in under}


def scalar(text: str) -> Any:
    """A plain scalar's value by the core schema of YAML 1.2."""
    for pattern, read in _SCALARS.values():
        if pattern.fullmatch(text):
            return read(text)
    return text


def parse(text: str, source: str) -> Document:
    """The one document in `text`. Raises `ConfigError`, which places the problem in `source`."""
    reader = _Reader(source)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax(error, source)]) from error
    except yaml.YAMLError as error:
        raise ConfigError([Problem(Place(source), (), f"is not YAML: {error}".replace("\n", " "))]) from error
    reader.document.data = reader.read(node, ()) if node is not None else {}
    if reader.problems:
        raise ConfigError(reader.problems)
    return reader.document


def write(value: Any) -> str:
    """Plain values as YAML."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def _syntax(error: yaml.MarkedYAMLError, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
    return Problem(place, (), " ".join(filter(None, (error.problem, error.context))))


class _Loader(yaml.SafeLoader):
    """Composes nodes only, and refuses what makes a file mean something else than it says."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's own table, emptied: types are ours to decide

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs
        refused = _refusal(event) or ("values are nested too deeply" if self.depth > _DEPTH else None)
        if refused:
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _refusal(event: Any) -> str | None:
    if isinstance(event, yaml.AliasEvent):
        return f"aliases (*{event.anchor}) are not supported; write the value out"
    if event.anchor is not None:
        return f"anchors (&{event.anchor}) are not supported; write the value out"
    if event.tag is not None:
        return f"tags ({event.tag}) are not supported; write a plain value"
    return None


class _Reader:
    """Turns nodes into values, and notes where each of them stands."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.document = Document()
        self.problems: list[Problem] = []

    def read(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode):
            if path not in self.document.keys:  # else its name is the better place to point to
                self.document.values[path] = self._place(node)
            return self._mapping(node, path)
        self.document.values[path] = self._place(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, position)) for position, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101  # there is no fourth kind of node
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(self._place(key), path, "a name must be plain text"))
                continue
            here = (*path, key.value)
            if key.value in found:
                first = self.document.keys[here].line
                self.problems.append(Problem(self._place(key), here, f"is written twice; first on line {first}"))
            self.document.keys[here] = self._place(key)
            found[key.value] = self.read(value, here)
        return found

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if node.style:  # quoted, or a block of text
            return node.value
        self.document.plain.add(path)
        return scalar(node.value)

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._source, node.start_mark.line + 1, node.start_mark.column + 1)
