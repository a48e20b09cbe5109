"""Writes the pages of docs/reference that are made from the code: `cli.md` and `configuration.md`.

python docs/generate.py            write them
python docs/generate.py --check    exit with 1 if one of them is out of date
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec

from drivetrain.cli.app import ALIASES, COMMANDS
from drivetrain.cli.command import EXIT_CODES
from drivetrain.config import schema
from drivetrain.config.check import bare, section_of, wanted

REFERENCE = Path(__file__).parent / "reference"
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
    context = click.Context(command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH)
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


# --- both -------------------------------------------------------------------------------------------------------------


def _table(headings: tuple[str, ...], rows: Any) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PAGES = {"cli.md": command_line, "configuration.md": configuration}


def outdated() -> list[str]:
    """The pages that do not say what the code says."""
    return [name for name, write in PAGES.items() if _text(name) != write().rstrip() + "\n"]


def _text(name: str) -> str:
    path = REFERENCE / name
    return path.read_text() if path.exists() else ""


def main() -> int:
    if "--check" in sys.argv[1:]:
        old = outdated()
        sys.stdout.write("".join(f"docs/reference/{name} is out of date; run `make docs`\n" for name in old))
        return 1 if old else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (REFERENCE / name).write_text(write().rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
