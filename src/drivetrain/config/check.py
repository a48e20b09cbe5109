"""Whether values fit the schema: every misfit is found, not only the first, and placed where it was written."""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from drivetrain import parameters
from drivetrain.config import schema
from drivetrain.config.document import Document, scalar
from drivetrain.config.problems import Path, Problem, suggestion
from drivetrain.config.secrets import HIDDEN, is_secret
from drivetrain.excerpts import bounded


def fields(section: type[schema.Section]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(section)}


def bare(expected: Any) -> Any:
    """A type without its constraints and without `| None`."""
    if get_origin(expected) is Annotated:
        return bare(get_args(expected)[0])
    if get_origin(expected) in (Union, types.UnionType):
        choices = [choice for choice in get_args(expected) if choice is not type(None)]
        return bare(choices[0]) if len(choices) == 1 else expected
    return expected


def section_of(expected: Any) -> type[schema.Section] | None:
    kind = bare(expected)
    return kind if isinstance(kind, type) and issubclass(kind, schema.Section) else None


def member_type(expected: Any, name: str) -> Any:
    """The type of a member of a section or a mapping: `Any` for an engine's own, None if there is none."""
    if section := section_of(expected):
        field = fields(section).get(name)
        return field.type if field else (Any if section is schema.Engine else None)
    if get_origin(bare(expected)) is Mapping:
        return get_args(bare(expected))[1]
    return Any if bare(expected) is Any else None


class Checker:
    """Walks values and schema side by side. Collects `problems` and `warnings`; returns what `msgspec` can convert."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def check(self, value: Any, expected: Any, path: Path) -> Any:
        section, kind = section_of(expected), bare(expected)
        if section:
            if value is None and type(None) in get_args(expected):
                return None
            return self._section({} if value is None else value, section, path)
        if get_origin(kind) is Mapping:
            return self._mapping({} if value is None else value, get_args(kind)[1], path)
        if get_origin(kind) is tuple and section_of(get_args(kind)[0]):
            return self._list(value, expected, path)
        return self._leaf(value, expected, path)

    def _section(self, value: Any, section: type[schema.Section], path: Path) -> Any:
        if not isinstance(value, dict):
            return self._misfit(value, section, path)
        known = fields(section)
        if section is schema.Engine:
            value = self._options(value, known, path)
        for name in value.keys() - known.keys():
            where = self._document.place((*path, name))
            self.problems.append(Problem(where, (*path, name), f"is not known here{suggestion(name, known)}"))
        for name, field in known.items():
            if field.required and name not in value:
                self.problems.append(Problem(self._document.place(path), path, f"needs {name!r}, {wanted(field.type)}"))
        here = {name: item for name, item in value.items() if name in known}
        checked = {name: self.check(item, known[name].type, (*path, name)) for name, item in here.items()}
        if section is schema.Policy:
            self._parameters(checked.get("parameters"), (*path, "parameters"))
        return checked

    def _parameters(self, value: Any, path: Path) -> None:
        """Those of requests have the types that requests take."""
        for name, wrong in parameters.flaws(value) if isinstance(value, dict) else ():
            where = (*path, name)
            self.problems.append(Problem(self._document.at(where), where, wrong))

    def _options(self, value: dict[str, Any], known: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """An engine's entry with the members that only its kind knows moved into `options`."""
        own = {name: item for name, item in value.items() if name not in known}
        written = value.get("options") or {}
        if not isinstance(written, dict):
            return value
        for name in own:
            place = self._document.place((*path, name))
            if name in written:
                self.problems.append(Problem(place, (*path, name), "is written twice: here and in 'options'"))
            if (hint := suggestion(name, known)).startswith("; did"):
                self.warnings.append(Problem(place, (*path, name), f"is an option of the engine's kind{hint}"))
            self._document.move((*path, name), (*path, "options", name))
        rest = {name: item for name, item in value.items() if name in known}
        return rest | ({"options": {**written, **own}} if own or written else {})

    def _mapping(self, value: Any, item_type: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            return self._misfit(value, Mapping[str, item_type], path)
        return {name: self.check(item, item_type, (*path, name)) for name, item in value.items()}

    def _list(self, value: Any, expected: Any, path: Path) -> Any:
        told = inspect.type_info(expected)
        if not isinstance(value, list) or len(value) < (getattr(told, "min_length", None) or 0):
            return self._misfit(value, expected, path)
        item_type = get_args(bare(expected))[0]
        return [self.check(item, item_type, (*path, position)) for position, item in enumerate(value)]

    def _leaf(self, value: Any, expected: Any, path: Path) -> Any:
        if bare(expected) is Any:
            return self._free(value, path)
        try:
            return msgspec.convert(value, expected, strict=path not in self._document.loose)
        except msgspec.ValidationError:
            return self._misfit(value, expected, path)

    def _free(self, value: Any, path: Path) -> Any:
        """A value of any type: text that came from outside is read as YAML where it stands without quotes."""
        if isinstance(value, dict):
            return {name: self._free(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self._free(item, (*path, position)) for position, item in enumerate(value)]
        outside = path in self._document.loose and path in self._document.plain
        return scalar(value) if outside and not is_secret(path) else value

    def _misfit(self, value: Any, expected: Any, path: Path) -> Any:
        kind, outside = inspect.type_info(bare(expected)), self._document.loose.get(path, value)
        text = HIDDEN if is_secret(path) else brief(outside)
        hint = ""
        if isinstance(kind, inspect.LiteralType) and isinstance(value, str) and outside == value:
            hint = suggestion(value, map(str, kind.values))
        got = f"got {text}" if outside == value else f"got the value of {text}"
        message = f"expected {wanted(expected)}, {got}{hint if hint.startswith('; did') else ''}"
        self.problems.append(Problem(self._document.at(path), path, message))
        return value


def brief(value: Any) -> str:
    """A value for a message: never long, whatever was written."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return bounded(text)


def wanted(expected: Any) -> str:
    """What a type accepts, in words."""
    return _words(inspect.type_info(expected))


def _words(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(type=inner):
            return _words(inner)
        case inspect.UnionType(types=choices):
            return " or ".join(_words(choice) for choice in choices)
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(repr, values))}"
        case inspect.IntType() | inspect.FloatType():
            return ("an integer" if isinstance(kind, inspect.IntType) else "a number") + _range(kind)
        case inspect.VarTupleType(item_type=inner, min_length=least):
            return f"a list of {_words(inner).split(' ', 1)[1]}s" + (f", {least} or more" if least else "")
        case inspect.StructType() | inspect.DictType():
            return "a mapping"
    return {inspect.BoolType: "true or false", inspect.StrType: "a text", inspect.NoneType: "null"}[type(kind)]


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.ge is not None:
        return f" of at least {kind.ge}"
    return f" above {kind.gt}" if kind.gt is not None else ""
