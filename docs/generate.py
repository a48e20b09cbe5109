"""Writes what the documentation takes from the code: two whole pages of docs/reference, and marked parts of others.

python docs/generate.py            write them
python docs/generate.py --check    exit with 1 if one of them is out of date

A marked part of any page is what stands between `<!-- from the code: WHAT -->` and `<!-- /from the code -->`. WHAT is a
name in `PARTS`, or `file PATH`: that file as a block of code.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec

from drivetrain import errors, web
from drivetrain.cli.app import ALIASES, COMMANDS
from drivetrain.cli.command import EXIT_CODES
from drivetrain.config import schema
from drivetrain.config.check import bare, section_of, wanted
from drivetrain.dialects import openai
from drivetrain.library import download
from drivetrain.telemetry.exposition import Collected

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "drivetrain"
REFERENCE = ROOT / "docs" / "reference"
WIDTH = 100
NOTE = "<!-- Written by docs/generate.py from the code. Change the code, then run `make docs`. -->"


# --- the command line -------------------------------------------------------------------------------------------------

CLI = """\
# The command line

`drivetrain COMMAND` works on one *home*: the folder with the models, the state and `drivetrain.yaml`. It is
`--home DIR`, else `$DRIVETRAIN_HOME`, else `~/.drivetrain`.

**Which server.** A command that needs a server takes, in this order: `$DRIVETRAIN_URL`; the server that runs on this
home; the one at the address that the configuration or the environment names. Where none answers, it starts a private
server on the same home, which ends with the command, however that ends. `$DRIVETRAIN_API_KEY` is sent as the key.

**Which need none.** `keys`, `orgs`, `teams`, `projects`, `users`, `limits`, `budgets`, `terms`, `prices`, `usage`,
`trace`, `audit` and `config` work on the files and the store of the home, whether a server runs or not. Servers know
of a change within a second.

**Output.** Results go to standard output, progress and errors to standard error. With `--json`, standard output holds
JSON and nothing else: the API's own answer, or one object a line where several things are done or progress is told.
On a terminal progress is shown as bars, elsewhere as plain lines. `--home` and `--json` may stand before or after the
command.

**Names.** {aliases}

## Exit codes

{exits}

## In a chat

```text
{chat}
```
"""


def command_line() -> str:
    from drivetrain.cli.terminal import HELP

    aliases = ", ".join(f"`{short}` is `{name}`" for short, name in ALIASES.items()) + "."
    exits = _table(("Code", "Meaning"), ((f"{code}", meaning) for code, meaning in EXIT_CODES.items()))
    parts = [NOTE, CLI.format(aliases=aliases, exits=exits, chat=HELP)]
    for name, entry in COMMANDS.items():
        module, _, attribute = entry.target.partition(":")
        parts += _command(getattr(import_module(module), attribute), f"drivetrain {name}")
    return "\n".join(parts)


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path, terminal_width=WIDTH, help_option_names=["-h", "--help"])
    yield f"## `{path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(inner, f"{path} {name}")


# --- the configuration ------------------------------------------------------------------------------------------------

CONFIGURATION = """\
# Configuration

`drivetrain.yaml` in the home. Nearly every member has a default, so the file may be short, or missing. It is checked
as a whole: `drivetrain config check` lists every mistake with file, line and column, `drivetrain config show --origin`
every effective value with the place it comes from, and `drivetrain config schema` prints a JSON schema for editors. A
running server reads it again on SIGHUP; a file with a mistake is refused, and what held before still holds.

**Precedence.** A flag of the command line counts before the environment, that before the file, that before the default.
Flags are laid over what is right without them: a mistake in the file is one also where a flag hides it.

**Environment.** `DRIVETRAIN_SERVER__PORT=8080` sets `server.port`: two underscores stand between the names, and any
letter that a variable cannot have becomes one, so `DRIVETRAIN_ENGINES__BOX_1__URL` sets `engines.box-1.url` if the file
has an engine of that name. A value that begins with `[` or `{` is read as YAML, as in
`DRIVETRAIN_SERVER__ORIGINS='["app://*"]'`; any other is text that becomes the type its place wants.

**References.** In any text of the file, `${NAME}` is a variable of the environment and `${NAME:-default}` has a default
for one that is unset or empty; `$$` is a dollar sign. A text that is `file:/path` as a whole is replaced by what that
file holds, without its last line break. Inside `{…}` or `[…]` a reference needs quotes: `api_key: "${NAME}"`.

**Secrets.** What was read from a secret file, a member whose name says that it is a secret (`api_key`, `…_token`,
`password`, `Authorization`), and the password in a URL are never shown: not by `config show`, not in an error.

**YAML.** A strict subset of version 1.2: `yes`, `no`, `on` and `off` are words, not switches; a name written twice, an
anchor, an alias or a tag is refused.

**Always there**, named or not: the engine `local`, which is embedded (`kind: llamacpp`), and the policy `default`.
"""


def configuration() -> str:
    parts = [NOTE, CONFIGURATION]
    for path, section in _sections(schema.Config, ""):
        said = Described(section)
        about = f"{said.doc}\n\n" if said.doc and path else ""
        parts.append(f"## `{path}`\n\n{about}{said.table()}\n")
    return "\n".join(parts)


def _sections(section: type[schema.Section], path: str) -> Iterator[tuple[str, type[schema.Section]]]:
    """Every section with where it stands, as a reader meets them."""
    for field in msgspec.structs.fields(section):
        here, kind = f"{path}.{field.name}".lstrip("."), bare(field.type)
        inner = section_of(kind)
        if get_origin(kind) is Mapping:
            inner, here = section_of(get_args(kind)[1]), f"{here}.<name>"
        elif get_origin(kind) is tuple:
            inner, here = section_of(get_args(kind)[0]), f"{here}[]"
        if inner:
            yield here, inner
            yield from _sections(inner, here)


class Described:
    """A section as its source describes it: the comment behind each member."""

    def __init__(self, section: type[schema.Section]) -> None:
        self._section = section
        self._comments = COMMENTS[section.__name__]
        self.doc = section.__doc__ or ""

    def table(self) -> str:
        rows = []
        for field in msgspec.structs.fields(self._section):
            if not section_of(field.type) and not section_of(_value_type(field.type)):
                default = "required" if field.required else f"`{_default(field)}`"
                meaning = self._comments.get(field.name, "")
                rows.append((f"`{field.name}`", wanted(field.type), default, meaning))
        return _table(("Member", "Value", "Default", "Meaning"), rows) if rows else "Sections only."


def _value_type(expected: Any) -> Any:
    """What stands in a mapping; else the type itself."""
    kind = bare(expected)
    return get_args(kind)[1] if get_origin(kind) is Mapping else kind


def _default(field: msgspec.structs.FieldInfo) -> str:
    made = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return msgspec.json.encode(made).decode()


def comments() -> dict[str, dict[str, str]]:
    """The comment at the end of each member's line in the schema, by section and member."""
    source = Path(schema.__file__).read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    return {
        node.name: {
            member.target.id: by_line.get(member.end_lineno or 0, "")
            for member in node.body
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


COMMENTS = comments()


# --- parts of pages ---------------------------------------------------------------------------------------------------


# Where errors are declared that callers may see.
TOLD = frozenset(module.__name__ for module in (errors, web, download))


def error_table() -> str:
    """What callers can be answered, by status."""
    rows = []
    for error in sorted(_leaves(errors.DrivetrainError), key=lambda error: (error.status, error.code)):
        kind = msgspec.json.decode(openai.encode_error(error("")))["error"]["type"]
        again = "yes" if issubclass(error, errors.EngineError) and error.retryable else "no"
        meaning = (error.__doc__ or "").split("\n\n")[0].replace("\n    ", " ")
        rows.append((f"{error.status}", f"`{error.code}`", f"`{kind}`", again, meaning))
    return _table(("Status", "`code`", "`type`", "Another engine is tried", "Meaning"), rows)


def _leaves(error: type[errors.DrivetrainError]) -> Iterator[type[errors.DrivetrainError]]:
    if error.__doc__ and error.__module__ in TOLD and error is not errors.DrivetrainError:
        yield error
    for narrower in error.__subclasses__():
        yield from _leaves(narrower)


def metric_table() -> str:
    rows = []
    for family in Collected([], "").collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # type: ignore[attr-defined] # said nowhere else
        rows.append((f"`{name}`", family.type, labels or "none", family.documentation))
    return _table(("Metric", "Type", "Labels", "Meaning"), rows)


def module_list() -> str:
    """Each module in its own words: the first sentences of its docstring."""
    parts = []
    for group, files in _modules().items():
        rows = [(f"`{path.relative_to(SOURCE)}`", _owns(path)) for path in files]
        parts.append(f"### {group}\n\n{_table(('Module', 'What it owns'), rows)}\n")
    return "\n".join(parts).rstrip()


def _modules() -> Mapping[str, list[Path]]:
    """The files of each package, in the order of the layers; what lies directly below the root comes first."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        below = path.relative_to(SOURCE).parts
        found.setdefault(f"`{below[0]}`" if len(below) > 1 else "The values and the pure decisions", []).append(path)
    order = (
        "The",
        "`dialects",
        "`config",
        "`policies",
        "`engines",
        "`library",
        "`store",
        "`telemetry",
        "`quota",
        "`sinks",
        "`gateway",
        "`server",
        "`cli",
    )
    return {name: found[name] for start in order for name in found if name.startswith(start)}


def _owns(path: Path) -> str:
    words = ast.get_docstring(ast.parse(path.read_text())) or ""
    return words.split("\n\n")[0].replace("\n", " ")


def included(path: str) -> str:
    kinds = {".py": "python", ".toml": "toml", ".yaml": "yaml"}
    return f"```{kinds.get(Path(path).suffix, 'text')}\n{(ROOT / path).read_text().rstrip()}\n```"


PARTS = {"errors": error_table, "metrics": metric_table, "modules": module_list}
MARKED = re.compile(r"(<!-- from the code: (.+?) -->\n).*?(<!-- /from the code -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with its marked parts as the code says them now."""

    def fill(found: re.Match[str]) -> str:
        name, _, path = found[2].partition(" ")
        return f"{found[1]}\n{included(path) if name == 'file' else PARTS[name]()}\n\n{found[3]}"

    return MARKED.sub(fill, page)


# --- all --------------------------------------------------------------------------------------------------------------


def _table(headings: tuple[str, ...], rows: Any) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PAGES = {"cli.md": command_line, "configuration.md": configuration}


def pages() -> Iterator[tuple[Path, str]]:
    """Every page that takes something from the code, and what it should be."""
    for name, write in PAGES.items():
        yield REFERENCE / name, write().rstrip() + "\n"
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        text = path.read_text()
        if path.name not in PAGES and MARKED.search(text):
            yield path, filled(text)


def outdated() -> list[str]:
    """The pages that do not say what the code says."""
    return [str(path.relative_to(ROOT)) for path, text in pages() if not path.exists() or path.read_text() != text]


def main() -> int:
    if "--check" in sys.argv[1:]:
        old = outdated()
        sys.stdout.write("".join(f"{name} is out of date; run `make docs`\n" for name in old))
        return 1 if old else 0
    for path, text in pages():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
