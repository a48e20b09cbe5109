"""A process that ends while tests look at it is not there, and fails none of them."""

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.kin import ended, sockets_of, under

COMMAND = (sys.executable, "-c", "import sys; sys.stdin.read()", "one of ours")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_one_that_runs_is_found_by_its_words(child: subprocess.Popen[bytes]) -> None:
    assert [process.pid for process in under(word="one of ours")] == [child.pid]
    assert under(word="one of theirs") == []
    assert not ended(psutil.Process(child.pid))


def test_one_that_ended_and_is_not_waited_for_yet_is_not_there(child: subprocess.Popen[bytes]) -> None:
    process = psutil.Process(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.status() == psutil.STATUS_ZOMBIE
    assert under(word="one of ours") == []
    assert sockets_of(process) == set()
    assert ended(process)


def test_one_that_ends_between_two_looks_is_not_there(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = psutil.Process(child.pid)
    child.kill()
    child.wait()
    monkeypatch.setattr(psutil.Process, "children", lambda _self, recursive: [process])
    assert under(word="one of ours") == []
    assert sockets_of(process) == set()
    monkeypatch.setattr(psutil.Process, "is_running", lambda _self: True)
    assert ended(process)
