"""Completion: the scripts of three shells, and the names of models from the files of the home."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.kit import Terminal

RUN = "import sys; from drivetrain.cli import main; sys.exit(main())"


def completed(home: Path, *words: str) -> list[str]:
    """What bash would be offered for the last of the words."""
    environ = {
        **os.environ,
        "_DRIVETRAIN_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "DRIVETRAIN_HOME": str(home),
    }
    said = subprocess.run([sys.executable, "-c", RUN], env=environ, capture_output=True, text=True, check=False)
    return [line.partition(",")[2] for line in said.stdout.splitlines() if line]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder, record in (("smollm2%3A135m", {}), ("x", {"id": "org/name:7b"}), ("broken", None)):
        (tmp_path / "models" / folder).mkdir(parents=True)
        text = json.dumps(record) if record is not None else "{"
        (tmp_path / "models" / folder / "model.json").write_text(text)
    return tmp_path


def test_commands_are_completed(home: Path) -> None:
    assert completed(home, "drivetrain", "p") == ["pull", "push", "ps", "pack", "projects", "prices", "prompts"]
    assert completed(home, "drivetrain", "config", "c") == ["check"]
    assert completed(home, "drivetrain", "audit", "") == ["list", "verify"]


def test_models_are_completed_from_the_files_of_the_home(home: Path) -> None:
    assert completed(home, "drivetrain", "run", "") == ["broken", "org/name:7b", "smollm2:135m"]
    assert completed(home, "drivetrain", "rm", "smol") == ["smollm2:135m"]


def test_options_are_completed(home: Path) -> None:
    assert completed(home, "drivetrain", "ps", "--ho") == ["--home"]


def test_the_home_on_the_line_is_the_one_whose_models_are_offered(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert completed(home, "drivetrain", "run", "--home", str(other), "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(drivetrain: Terminal, shell: str) -> None:
    outcome = drivetrain("completion", shell)
    assert (outcome.code, f"_DRIVETRAIN_COMPLETE={shell}_complete" in outcome.out) == (0, True)


def test_bash_reads_its_script(drivetrain: Terminal) -> None:
    script = drivetrain("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
