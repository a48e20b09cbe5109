"""One configuration from its layers: flag > environment > file > default, and which layer each value came from."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial, reduce
from pathlib import Path as FilePath
from typing import Any

import msgspec

from drivetrain.config import document, secrets
from drivetrain.config.check import Checker, fields, member_type, section_of
from drivetrain.config.document import Document
from drivetrain.config.problems import ConfigError, Path, Place, Problem, dotted, suggestion
from drivetrain.config.schema import Config, Engine, Policy
from drivetrain.config.sense import Finding, OptionsOf, findings

FILE = "drivetrain.yaml"
PREFIX = "DRIVETRAIN_"
Sense = Callable[[Config], Iterable[Finding]]
_JOINT = "__"  # DRIVETRAIN_SERVER__PORT is server.port
_ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "engines": {"local": Engine(kind="llamacpp")},
    "policies": {"default": Policy()},
}


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, and how it came to be. `origins` has every value's path (`server.port`) and its place."""

    config: Config
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    secrets: frozenset[Path] = frozenset()  # values read from secret files


def home(environ: Mapping[str, str]) -> FilePath:
    """The folder that holds everything a user owns: $DRIVETRAIN_HOME, else ~/.drivetrain. It need not exist."""
    return FilePath(environ.get("DRIVETRAIN_HOME") or "~/.drivetrain").expanduser().absolute()


def find(home: FilePath) -> FilePath | None:
    """The configuration file of a home, None where there is none."""
    return path if (path := home / FILE).exists() else None


def load(
    path: FilePath | None,
    environ: Mapping[str, str],
    *,
    flags: Mapping[str, Any] | None = None,
    kinds: Collection[str] | None = None,
) -> Config:
    """The configuration in `path` (None: no file) and the environment, validated whole.

    `flags` are values of the command line by path (`{"server.port": 8080}`); None counts as not given. `kinds` are the
    installed engine kinds; None leaves kinds unchecked. Raises `ConfigError` listing every problem with file, line,
    column, path, value and what is expected.
    """
    return resolve(path, environ, flags=flags, kinds=kinds).config


def resolve(
    path: FilePath | None,
    environ: Mapping[str, str],
    *,
    flags: Mapping[str, Any] | None = None,
    kinds: Collection[str] | None = None,
    options_of: OptionsOf | None = None,
) -> Resolved:
    """Like `load`, with origins and warnings. `options_of` tells the type of a kind's options: they are checked too."""
    whole = document.parse(_read(path), str(path)) if path else Document()
    problems = secrets.expand(whole, environ)
    problems += _overlay(whole, environ)
    checker = Checker(whole)
    whole.data = checker.check(whole.data, Config, ())
    problems += checker.problems
    sense = partial(findings, kinds=kinds, options_of=options_of)
    config = _sound(whole, problems, path, sense)
    if given := {name: value for name, value in (flags or {}).items() if value is not None}:
        config = _sound(whole, _flags(whole, given), path, sense)  # over what is right: a flag hides no mistake
    warnings = tuple(map(str, checker.warnings))
    return Resolved(config=config, origins=_origins(config, whole), warnings=warnings, secrets=frozenset(whole.secret))


def dump(config: Config, hidden: Collection[Path] = ()) -> dict[str, Any]:
    """The configuration as plain values for showing: secrets are replaced, as are the values at `hidden`."""
    return dict(secrets.shown(msgspec.to_builtins(config), (), Document(secret=set(hidden))))


def to_yaml(value: Mapping[str, Any]) -> str:
    """What `dump` returned as the text of a file."""
    return document.write(value)


def json_schema() -> dict[str, Any]:
    """The JSON schema of `drivetrain.yaml`, for editors. An engine may have members that only its kind knows."""
    built = msgspec.json.schema(Config)
    built["$defs"]["Engine"]["additionalProperties"] = True
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "drivetrain.yaml", **built}


def _read(path: FilePath) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError([Problem(Place(str(path)), (), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(Place(str(path)), (), f"is not UTF-8 text: byte {error.start}")]) from error


def _convert(clean: Any, path: FilePath | None) -> Config:
    """The last word is the schema's own: what the checker let pass must convert."""
    try:
        return msgspec.convert(clean, Config)
    except msgspec.ValidationError as error:
        raise ConfigError([Problem(Place(str(path)), (), str(error))]) from error


def _sound(whole: Document, problems: list[Problem], path: FilePath | None, sense: Sense) -> Config:
    """The checked values as a configuration that makes sense. Raises the `problems`, or what makes none."""
    if problems:
        raise ConfigError(problems)
    config = _complete(_convert(whole.data, path))
    if senseless := [Problem(whole.at(where), where, wrong) for where, wrong in sense(config)]:
        raise ConfigError(senseless)
    return config


def _complete(config: Config) -> Config:
    """With what is always there, named or not: the embedded engine `local` and the policy `default`."""
    added = {name: {**always, **getattr(config, name)} for name, always in _ALWAYS.items()}
    return msgspec.structs.replace(config, **added)


# --- the layers above the file ----------------------------------------------------------------------------------------


def _overlay(whole: Document, environ: Mapping[str, str]) -> list[Problem]:
    """Writes the environment's variables over the file's values. Returns those that lead nowhere."""
    problems = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and _JOINT in name.removeprefix(PREFIX):
            place = Place(f"${name}")
            words = name.removeprefix(PREFIX).split(_JOINT)
            path, wrong = _path(words, whole.data, whole_section=environ[name].startswith("{"))
            if wrong:
                problems.append(Problem(place, path, wrong))
            else:
                _set(whole, path, *_value(environ[name], place), place)
    return problems


def _path(words: list[str], data: Any, *, whole_section: bool) -> tuple[Path, str]:
    """Where a variable leads, by the schema and by the names in the file; and what is wrong with it, "" if nothing."""
    path: tuple[str, ...] = ()
    expected: Any = Config
    for word in words:
        names = [*fields(section)] if (section := section_of(expected)) else []
        names += data if isinstance(data, dict) else []
        name = next((name for name in names if _spelt(name) == _spelt(word)), word.lower())
        path = (*path, name)
        if (inner := member_type(expected, name)) is None:
            return path, f"is not known here{suggestion(name, names)}"
        expected, data = inner, data.get(name) if isinstance(data, dict) else None
    if (section := section_of(expected)) and not whole_section:
        return path, f"is a section; name one of its members: {', '.join(fields(section))}"
    return path, ""


def _spelt(name: str) -> str:
    """A name as a variable can spell it: `box-1` is BOX_1."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.upper())


def _value(text: str, place: Place) -> tuple[Any, bool]:
    """A variable's value, and whether it is text: what begins like a YAML list or mapping is one."""
    if text[:1] in ("[", "{"):
        return document.parse(text, str(place)).data, False
    return text, True


def _set(whole: Document, path: Path, value: Any, text: bool, place: Place) -> None:
    inner: Any = whole.data
    for part in path[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[path[-1]] = value
    for table in (whole.values, whole.keys):
        for below in [known for known in table if known[: len(path)] == path]:
            del table[below]
    whole.values[path] = place
    whole.loose.pop(path, None)
    whole.secret.discard(path)
    if text:
        whole.loose[path] = value
        whole.plain.add(path)


def _flags(whole: Document, flags: Mapping[str, Any]) -> list[Problem]:
    """Writes the values of flags over those that were checked. Returns what is wrong with the flags."""
    checker = Checker(whole)
    for name, value in flags.items():
        path = tuple(name.split("."))
        _set(whole, path, value, False, Place(f"--{path[-1].replace('_', '-')}"))
        checker.check(value, reduce(member_type, path, Config), path)
    return checker.problems


# --- origins ----------------------------------------------------------------------------------------------------------


def _origins(config: Config, whole: Document) -> dict[str, str]:
    return {dotted(path): str(_origin(path, whole)) for path, _ in _leaves(msgspec.to_builtins(config), ())}


def _origin(path: Path, whole: Document) -> Place:
    """A value's own place, or the variable or flag that gave the list or mapping around it. A section in a file lends
    its place to nobody."""
    for end in range(len(path), 0, -1):
        place = whole.values.get(path[:end])
        if place and (end == len(path) or not place.line):
            return place
    return Place("default")


def flat(value: Any) -> dict[str, Any]:
    """Every value by its path as text, as in `Resolved.origins`."""
    return {dotted(path): leaf for path, leaf in _leaves(value, ())}


def _leaves(value: Any, path: Path) -> list[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in _leaves(item, (*path, name))]
    if isinstance(value, list | tuple) and value:
        return [leaf for position, item in enumerate(value) for leaf in _leaves(item, (*path, position))]
    return [(path, value)]
