"""What the engine writes is what Python reads: the page of counters and the trace, from both sides."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.engines.expertstream import page, trace
from native import build


@pytest.fixture
def writer(archive: Callable[[build.Variant], Path]) -> Path:
    return build.program(build.NATIVE / "tests" / "page_writer.cpp", archive(build.PLAIN), build.PLAIN)


def test_page_and_trace_are_read_as_they_were_written(writer: Path, tmp_path: Path) -> None:
    counters, asked = tmp_path / "page", tmp_path / "trace"
    with subprocess.Popen(
        [writer, counters, asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        now = page.read(counters)
        assert page.abort_below(counters, 2**40 + 1)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.readline() == f"{2**40 + 1}\n"
    assert now is not None
    assert now == page.Page(
        pid=process.pid,
        started_ns=now.started_ns,
        experts=101,
        expert_bytes=102,
        budget=103,
        resident=104,
        least=105,
        most=106,
        hits=107,
        misses=108,
        reads=109,
        read_bytes=110,
        read_ns=111,
        wait_ns=112,
        compute_ns=113,
        tokens=114,
        passes=115,
        evictions=116,
        failures=118,  # 117, and the one that is told
        retries=118,
        crc_errors=119,
        abort_below=0,
        error="reading model.gguf at byte 4096: input/output error é",
        reader="uring direct",
        kernel="avx2",
        layer_hits=(7, 0, 8),
        layer_misses=(0, 9, 0),
    )
    assert trace.read(asked) == trace.Trace(layers=3, experts=300, groups=[(1, 299), (605,)])
