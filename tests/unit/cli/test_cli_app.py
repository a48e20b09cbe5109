"""The command line as a whole: its commands, its speed, its exit codes."""

import os
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from drivetrain import __version__
from drivetrain.cli import main
from drivetrain.cli.app import ALIASES, COMMANDS, app
from tests.unit.cli.kit import Play, Terminal


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "serve"])
def test_the_table_of_commands_says_what_each_command_says(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    found = getattr(import_module(module), attribute)

    assert name == found.name
    assert COMMANDS[name].help == found.help.split("\n\n")[0].replace("\n", " ")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "serve"])
def test_every_command_takes_home_and_json(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    found = getattr(import_module(module), attribute)
    commands = list(found.commands.values()) if isinstance(found, click.Group) else [found]

    for each in commands:
        assert {"home", "json"} <= {parameter.name for parameter in each.params}


def test_every_option_says_what_it_is_for() -> None:
    for entry in COMMANDS.values():
        if entry.target.startswith("drivetrain.cli.serve"):
            continue
        module, _, attribute = entry.target.partition(":")
        options = getattr(import_module(module), attribute).params
        assert [option.name for option in options if isinstance(option, click.Option) and not option.help] == []


def test_help_imports_no_command_and_no_library_but_click() -> None:
    script = """
import sys
from drivetrain.cli import main
assert 0 == main(["--help"]) == main(["--version"])
print(sorted(name for name in sys.modules if name.partition(".")[0] in
      {"drivetrain", "httpx2", "rich", "yaml", "msgspec", "asyncio", "anyio", "sqlalchemy", "starlette"}))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = "['drivetrain', 'drivetrain.cli', 'drivetrain.cli.app', 'drivetrain.cli.command', 'drivetrain.errors']"
    assert loaded == said.splitlines()[-1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert f"drivetrain {__version__}\n" == capsys.readouterr().out


def test_home_and_json_are_taken_before_and_after_the_command(
    drivetrain: Terminal, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    play({"GET /api/tags": (200, {"models": []})})
    home = str(drivetrain.home)

    for words in (
        ["--home", home, "--json", "list"],
        ["list", "--home", home, "--json"],
        ["--json", "list", "--home", home],
    ):
        assert main(words) == 0
        assert capsys.readouterr().out == '{\n  "models": []\n}\n'
    assert main(["--home", "/nowhere", "list", "--home", home]) == 0  # the last one holds


def test_the_environment_names_the_home(
    drivetrain: Terminal, play: Play, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play({"GET /api/tags": (200, {"models": []})})
    monkeypatch.setenv("DRIVETRAIN_HOME", str(drivetrain.home))
    assert main(["list"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "No such command 'lst'. Did you mean 'list'? (see `drivetrain --help`)"),
        (["pull"], "Missing argument 'MODEL...' (see `drivetrain pull --help`)"),
        (["list", "--jsn"], "No such option '--jsn'. Did you mean '--json'? (see `drivetrain list --help`)"),
        (["completion", "csh"], "Invalid value for '{bash|zsh|fish}': 'csh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"Error: {message}" == said.err.strip().removesuffix(" (see `drivetrain completion --help`)")


@pytest.mark.parametrize("words", [["run", "m", "--keepalive", "zork"], ["load", "m", "--keep-alive", "zork"]])
def test_a_time_that_is_none_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = "Error: a model stays for a time such as 10m, for 0, or for ever with -1; got 'zork'\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    "words",
    [["config", "check", "/no.yaml"], ["run", "m", "--image", "/no.png"], ["import", "/no.gguf", "--name", "n"]],
)
def test_a_path_that_is_not_there_is_not_found(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 3
    assert capsys.readouterr().err.startswith("Error: there is no file ")


def test_ls_is_list() -> None:
    context = click.Context(app)
    assert app.get_command(context, "list") is app.get_command(context, "ls")
    assert ALIASES == {"ls": "list"}


def test_ctrl_c_exits_with_130(drivetrain: Terminal, play: Play) -> None:
    def interrupt(body: object) -> tuple[int, object]:
        os.kill(os.getpid(), signal.SIGINT)
        return 200, {"models": []}

    play({"GET /api/tags": interrupt})
    assert drivetrain("list").code == 130


def test_a_reader_that_has_gone_is_no_traceback(drivetrain: Terminal, play: Play, tmp_path: Path) -> None:
    models = [{"name": f"m{number}", "size": 1, "modified_at": "", "digest": ""} for number in range(9000)]
    play({"GET /api/tags": (200, {"models": models})})
    command = [sys.executable, "-c", "import sys; from drivetrain.cli import main; sys.exit(main())", "list", "--home"]
    line = f"{shlex.join([*command, str(drivetrain.home)])} | head -1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout.split()[0], done.stderr) == ("NAME", "")


MAIN = [sys.executable, "-c", "import sys; from drivetrain.cli import main; sys.exit(main())"]


@pytest.mark.parametrize(("how", "code"), [(">&-", 0), ("<&-", 0), (">/dev/full", 1)])
def test_standard_streams_that_are_closed_or_full_are_no_traceback(how: str, code: int) -> None:
    line = f"{shlex.join([*MAIN, 'config', 'schema'])} {how}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    told = "Error: the output: No space left on device\n" if code else ""
    assert (done.returncode, done.stderr) == (code, told)


def test_a_home_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = subprocess.run([*MAIN, "serve", "--home", str(file / "home")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: {file}/home/state: Not a directory\n")


def test_text_that_is_not_utf_8_is_told(drivetrain: Terminal, play: Play) -> None:
    play({"POST /api/show": (404, {"error": "?"})})
    told = drivetrain("show", "caf\udce9")
    assert (told.code, told.out) == (1, "")
    assert told.err == 'Error: \'{"model":"caf\\udce9"}\' is not UTF-8, and no other text is taken\n'


@pytest.mark.parametrize("key", ["dt-abc\rx", "dt-ü", "dt-\udcff"])
def test_a_key_that_is_none_is_not_told(
    key: str, drivetrain: Terminal, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play({"GET /api/tags": (200, {"models": []})})
    monkeypatch.setenv("DRIVETRAIN_API_KEY", key)
    told = drivetrain("list")
    assert (told.code, "DRIVETRAIN_API_KEY holds characters that no key has" in told.err) == (1, True)
    assert "dt-" not in told.err


def test_a_line_break_behind_a_key_is_not_part_of_it(
    drivetrain: Terminal, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play({"GET /api/tags": (200, {"models": []})})
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "dt-abc\r\n")
    assert drivetrain("list").code == 0


def test_a_group_may_have_a_command_that_needs_no_name(drivetrain: Terminal) -> None:
    for words in (["audit"], ["audit", "list"], ["audit", "--kind", "key"], ["audit", "--home", "/nowhere"]):
        assert drivetrain(*words).out == "REVISION   AT   WHO   DID   WHAT   CHANGED\n"
    assert drivetrain("audit", "--json").json == {"changes": []}
    assert drivetrain("audit", "--json", "verify").json["lines"] == 0
    assert "Commands:\n  list" in drivetrain("audit", "--help").out
    assert drivetrain("trace", "--home", str(drivetrain.home), "req_1").code == 3
    assert drivetrain("trace").err.startswith("Error: Missing argument 'REQUEST_ID'")
