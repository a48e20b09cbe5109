"""BigQuery for tests: an emulator in a virtual environment of its own, and a wire in between that can be cut.

The environment is made in the ignored `build/` folder, once, from the package index. The emulator keeps its tables on
the disk and its write streams in memory: after a restart the streams are gone, as they are one day at BigQuery.
"""

import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types
from google.rpc.status_pb2 import Status

from tests.listening import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "bqemulator"
PINS = ("bqemulator==1.4.0", "duckdb==1.5.5", "duckdb-extension-spatial==1.5.5", "numpy==2.4.6", "setuptools==84.2.1")
START_S = 90.0
PROJECT = "drivetrain"


def installed() -> Path:
    """The emulator's program. Skips the test where it cannot be had."""
    program, ready = FOLDER / "bin" / "bqemulator", FOLDER / "ready.txt"
    if not ready.exists() or ready.read_text() != "\n".join(PINS):
        shutil.rmtree(FOLDER, ignore_errors=True)
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv is None:
            pytest.skip("the BigQuery emulator is not installed, and there is no uv to install it with: `make setup`")
        made = [uv, "venv", "--quiet", "--python", sys.executable, str(FOLDER)]
        filled = [uv, "pip", "install", "--quiet", "--python", str(FOLDER / "bin" / "python"), *PINS]
        for command in (made, filled):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"the BigQuery emulator cannot be installed: {done.stderr.strip()[-500:]}")
        ready.write_text("\n".join(PINS))
    return program


class Emulator:
    """One emulator. `kill` and `start` it as faults."""

    def __init__(self, folder: Path) -> None:
        self._program = installed()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.rest, self.grpc = free_port(), free_port()
        _lay_out_extension(folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc}"

    def start(self) -> None:
        ports = ("--rest-port", str(self.rest), "--grpc-port", str(self.grpc))
        kept = ("--persistent", "--data-dir", str(self._folder / "data"))
        environ = {"HOME": str(self._folder), "BQEMU_ENABLE_FORMAT_EXTENSIONS": "false", "PATH": "/usr/bin:/bin"}
        with (self._folder / "log").open("ab") as log:
            command = [str(self._program), "start", *ports, *kept, "--log-level", "warning"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        deadline = time.monotonic() + START_S
        channel = grpc.insecure_channel(self.address)
        while True:
            assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
            try:
                grpc.channel_ready_future(channel).result(timeout=0.5)
                break
            except grpc.FutureTimeoutError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
        channel.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def client(self) -> bigquery.Client:
        return bigquery.Client(
            project=PROJECT, credentials=AnonymousCredentials(), client_options={"api_endpoint": self.url}
        )

    def query(self, asked: str) -> list[tuple[Any, ...]]:
        client = self.client()
        try:
            return [tuple(row.values()) for row in client.query_and_wait(asked, wait_timeout=60)]
        finally:
            client.close()


def _lay_out_extension(folder: Path) -> None:
    """DuckDB looks for its extensions below its home, and would download this one."""
    (packed,) = FOLDER.glob("lib/*/site-packages/duckdb_extension_spatial/extensions/v*/spatial.duckdb_extension")
    system = "osx" if sys.platform == "darwin" else "linux"
    machine = "arm64" if platform.machine() in ("arm64", "aarch64") else "amd64"
    there = folder / ".duckdb" / "extensions" / packed.parent.name / f"{system}_{machine}"
    there.mkdir(parents=True)
    (there / packed.name).symlink_to(packed)
    (folder / "data").mkdir()


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The emulator of the session. A test that kills it starts it again."""
    one = Emulator(tmp_path_factory.mktemp("bigquery"))
    try:
        one.start()
        yield one
    finally:
        one.kill()


class Wire(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Passes every call on as it is, but for two faults of the real service that the emulator does not know: rows that
    it refuses by their number, and answers that get lost after the rows were taken."""

    def __init__(self, emulator: Emulator) -> None:
        self._channel = grpc.insecure_channel(emulator.address)
        self.refuses: Callable[[bytes], bool] = lambda row: False
        self.lose = 0  # so many answers to appends
        self.appends = 0

    def service(self, details: Any) -> Any:
        method = details.method
        if method.endswith("/AppendRows"):
            return grpc.stream_stream_rpc_method_handler(lambda asked, _: self._append(method, asked))
        passing = self._channel.unary_unary(method)

        def passed(request: bytes, context: Any) -> bytes:
            try:
                return bytes(passing(request, timeout=30))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
                raise AssertionError("unreachable") from error

        return grpc.unary_unary_rpc_method_handler(passed)

    def _append(self, method: str, asked: Iterable[bytes]) -> Iterator[bytes]:
        for request in asked:
            self.appends += 1
            rows = types.AppendRowsRequest.deserialize(request).proto_rows.rows.serialized_rows
            bad = [position for position, row in enumerate(rows) if self.refuses(row)]
            if bad:
                yield _refusal(bad)
                continue
            (answer,) = list(self._channel.stream_stream(method)(iter([request]), timeout=30))
            if self.lose:
                self.lose -= 1
                return
            yield bytes(answer)

    def close(self) -> None:
        self._channel.close()


def _refusal(positions: list[int]) -> bytes:
    fields = types.RowError.RowErrorCode.FIELDS_ERROR
    errors = [types.RowError(index=position, code=fields, message="Field is bad") for position in positions]
    status = Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="Errors found while processing rows.")
    return bytes(types.AppendRowsResponse.serialize(types.AppendRowsResponse(error=status, row_errors=errors)))


@contextmanager
def wired(emulator: Emulator) -> Iterator[tuple[Wire, str]]:
    """A wire to the emulator, and its address."""
    wire, server = Wire(emulator), grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((wire,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield wire, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        wire.close()
