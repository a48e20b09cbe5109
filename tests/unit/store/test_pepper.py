"""The pepper: from the setting, or from a file that is made once, whoever comes first."""

import hashlib
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.errors import BadRequest, Internal
from drivetrain.store import pepper


def test_the_first_start_makes_one_that_only_its_owner_reads(tmp_path: Path) -> None:
    made = pepper.read(None, tmp_path / "state")
    path = tmp_path / "state" / "pepper"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == made.secret
    assert len(made.secret) == 64
    assert [file.name for file in path.parent.iterdir()] == ["pepper"]
    assert pepper.read(None, tmp_path / "state") == made


def test_it_is_named_by_the_beginning_of_its_hash_and_never_shown() -> None:
    made = pepper.of(b"rather secret")
    assert made.id == hashlib.sha256(b"rather secret").hexdigest()[:16]
    assert "rather secret" not in repr(made)


def test_of_processes_that_start_together_all_get_the_same(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from drivetrain.store import pepper; sys.stdin.read();"
        f"print(pepper.read(None, Path({str(tmp_path)!r})).id)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    told = {process.communicate()[0] for process in started}
    assert told == {f"{pepper.read(None, tmp_path).id}\n".encode()}
    assert [file.name for file in tmp_path.iterdir()] == ["pepper"]


def test_the_setting_goes_before_the_file(tmp_path: Path) -> None:
    assert pepper.read("sixteen letters!", tmp_path).secret == b"sixteen letters!"
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has 6 characters; use at least 16") as caught:
        pepper.read("secret", tmp_path)
    assert caught.value.param == "keys.pepper"
    assert "secret" not in caught.value.message


def test_a_file_that_lost_its_content_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "pepper").touch(0o600)
    with pytest.raises(Internal, match="has 0 bytes instead of 64; restore it from a backup"):
        pepper.read(None, tmp_path)
    assert (tmp_path / "pepper").read_bytes() == b""


def test_a_file_that_others_can_read_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = pepper.read(None, tmp_path)
    (tmp_path / "pepper").chmod(0o644)
    assert pepper.read(None, tmp_path) == made
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/pepper can be read by others than its owner; chmod 600 it"
    ]
