"""The server that a command talks to: the one that runs on this home, else a private one that ends with the command."""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from drivetrain.cli.command import KINDS, Call, Failure, Missing, Unreachable
from drivetrain.dialects.ndjson import Lines
from drivetrain.errors import BadRequest

if TYPE_CHECKING:
    from drivetrain import web

START_S = 30.0  # how long a private server may take to answer
STOP_S = 5.0  # how long to wait for its end; it ends in any case
_LOOK_S = 0.02
_SERVER = "DRIVETRAIN_SERVER__"  # how variables begin that configure an address
_ANSWER_LIMIT_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20
_NOT_FOUND = re.compile(r"\bmodel\b.*\bnot found\b")

# A private server is for this command alone, whatever the configuration says of the public one.
PRIVATE: Mapping[str, str] = {
    "DRIVETRAIN_SERVER__HOST": "127.0.0.1",
    "DRIVETRAIN_SERVER__WORKERS": "1",
    "DRIVETRAIN_SERVER__DROP_IN": "false",
    "DRIVETRAIN_SERVER__AUTH": "off",
}


class Server:
    """A running server. Every call raises a `Failure` that tells what the server said."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        from drivetrain import web  # an HTTP client takes long to import; not every command needs one

        key = environ.get("DRIVETRAIN_API_KEY", "").strip()
        if not (key.isascii() and key.isprintable()):
            raise BadRequest("DRIVETRAIN_API_KEY holds characters that no key has; set it to a key of this server")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = url
        self._web = web
        self._http = _client(url, headers=headers, connect_s=5.0, idle_s=None)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: str) -> Any:
        return await self._call("GET", path, params=query)

    async def post(self, path: str, body: Any) -> Any:
        return await self._call("POST", path, json=body)

    async def text(self, path: str) -> str:
        with self._web.translated(self.url):
            answer = await self._http.get(path)
        if answer.status_code >= 400:
            raise failure(answer.status_code, answer.content)
        return str(answer.text)

    async def delete(self, path: str, body: Any) -> Any:
        return await self._call("DELETE", path, json=body)

    async def has_blob(self, digest: str) -> bool:
        with self._web.translated(self.url):
            answer = await self._http.head(f"/api/blobs/{digest}")
        if answer.status_code not in (200, 404):
            raise failure(answer.status_code, answer.content)
        return answer.status_code == 200

    async def put_blob(self, digest: str, file: IO[bytes], told: Any) -> None:
        """Sends a file's content; `told` is called with the number of bytes of each piece."""

        async def pieces() -> AsyncGenerator[bytes, None]:
            while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield piece
                told(len(piece))

        await self._call("POST", f"/api/blobs/{digest}", content=pieces())

    async def frames(self, path: str, body: Any) -> AsyncGenerator[dict[str, Any], None]:
        """The objects of a stream as they arrive. Raises a `Failure` for one that tells an error."""
        with self._web.translated(self.url):
            async with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code >= 400:
                    raise failure(answer.status_code, await self._web.read_limited(answer, _ANSWER_LIMIT_BYTES))
                async with aclosing(lines(answer.aiter_bytes())) as each:
                    async for line in each:
                        yield _frame(line)

    async def _call(self, method: str, path: str, **how: Any) -> Any:
        with self._web.translated(self.url):
            answer = await self._http.request(method, path, **how)
        if answer.status_code >= 400:
            raise failure(answer.status_code, answer.content)
        try:
            return json.loads(answer.content) if answer.content else {}
        except ValueError as error:
            raise Failure(f"{self.url} answered what is not JSON; is it a Drivetrain server?") from error


def model_path(model: str) -> str:
    return f"/v1/models/{quote(model, safe='/:@')}"


def failure(status: int, body: bytes) -> Failure:
    """What the server said went wrong, in whichever dialect."""
    try:
        text = _said(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace").strip()[:200] or "no reason given"
    kinds: Mapping[int, type[Failure]] = {404: Missing}
    hint = "; set DRIVETRAIN_API_KEY to a key of this server" if status == 401 else ""
    return kinds.get(status, Failure)(f"{text}{hint}" if status < 500 else f"{text} (the server answered {status})")


def _said(error: Any) -> str:
    """The text of an error: Ollama's is a string, OpenAI's an object."""
    return error if isinstance(error, str) else str(error["message"])


def _frame(line: bytes) -> dict[str, Any]:
    try:
        frame = json.loads(line)
    except ValueError as error:
        raise Failure("the server sent a line that is not JSON") from error
    if not isinstance(frame, dict):
        raise Failure("the server sent a line that is not a JSON object")
    if "error" in frame:
        raise _kind(frame["error"])(_said(frame["error"]))
    return frame


def _kind(error: Any) -> type[Failure]:
    """An error inside a stream has no status: OpenAI's has a code, Ollama's the words that clients match on."""
    if isinstance(error, str):
        return Missing if _NOT_FOUND.search(error) else Failure
    kind = KINDS.get(str(error.get("code")), Failure)
    return Failure if kind is Unreachable else kind  # it answered: what it did not reach is another's


async def lines(data: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Lines that end in LF alone: a text may hold every other character that Unicode calls a line break."""
    framing = Lines()
    async for piece in data:
        for line in framing.feed(piece):
            yield line
    if rest := framing.rest():
        yield rest


# --- which server -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connect(call: Call) -> AsyncIterator[Server]:
    """The server of this home. Where none runs, a private one is started, and stopped at the end."""
    if url := await running(call):
        async with _session(url, call) as server:
            yield server
    else:
        async with _private(call) as url, _session(url, call) as server:
            yield server


@asynccontextmanager
async def _session(url: str, call: Call) -> AsyncIterator[Server]:
    server = Server(url, call.environ)
    try:
        yield server
    finally:
        await server.aclose()


async def running(call: Call) -> str | None:
    """The URL of the server to use, None if there is none: $DRIVETRAIN_URL, the home's own, the configured one."""
    if url := call.environ.get("DRIVETRAIN_URL"):
        return url.rstrip("/")
    recorded = _recorded(call.home)
    url = recorded.url if recorded else _configured(call)
    return url if url and await _answers(url) else None


async def process_of(home: Path) -> int | None:
    """The process of the server that runs on this home. One that died may have left its number to somebody else."""
    recorded = _recorded(home)
    return recorded.pid if recorded and await _answers(recorded.url) else None


class _Record(NamedTuple):
    pid: int
    url: str


def _recorded(home: Path) -> _Record | None:
    """What a server writes down while it runs, if its process still lives."""
    try:
        state = json.loads((home / "state" / "server.json").read_bytes())
        record = _Record(int(state["pid"]), str(state["url"]).rstrip("/"))
        os.kill(record.pid, 0)
    except PermissionError:  # it lives, and belongs to somebody else
        return record
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record


def _configured(call: Call) -> str | None:
    """The address that the configuration names. The default one does not count: another home's server may be there."""
    if not (call.home / "drivetrain.yaml").exists() and not any(name.startswith(_SERVER) for name in call.environ):
        return None
    from drivetrain import config  # takes long to import, and most homes have no file

    resolved = config.resolve(config.find(call.home), call.environ)
    origins = (resolved.origins["server.host"], resolved.origins["server.port"])
    server = resolved.config.server
    if all(origin == "default" for origin in origins) or not server.port:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104  # read, not bound
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"


async def _answers(url: str) -> bool:
    """Whether a Drivetrain server is there. A key may be needed for more, so the free probe has to do."""
    from drivetrain import web  # as above

    try:
        async with _client(url, connect_s=1.0, idle_s=5.0) as http:
            with web.translated(url):
                return "version" in (await http.get("/healthz")).json()
    except (web.Unreachable, BadRequest, ValueError):  # nobody, or somebody else
        return False


def is_local(url: str) -> bool:
    """Whether it is a server on this machine, without encryption."""
    return url.startswith(("http://127.", "http://[::1]", "http://localhost"))


def _client(url: str, **how: Any) -> "web.Client":
    """For a server on this machine: no proxy is asked, and no certificates are read, which takes longest of all."""
    from drivetrain import web  # as above

    local = is_local(url)
    return web.open_client(url, proxies=not local, verify=not local, **how)


@asynccontextmanager
async def _private(call: Call) -> AsyncIterator[str]:
    """Starts a server that ends when its standard input does: at the end of the block, and if this process dies."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "drivetrain.cli.private", str(call.home)),
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**call.environ, **PRIVATE},
            start_new_session=True,  # Ctrl-C on the terminal is for this process alone
        )
        try:
            yield await _started(process, call, log)
        finally:
            await _stop(process)


async def _started(process: asyncio.subprocess.Process, call: Call, log: IO[bytes]) -> str:
    """Its URL, as soon as it answers."""
    import drivetrain.web  # noqa: F401  # while the server starts, not when it waits for us

    try:
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if (recorded := _recorded(call.home)) and await _answers(recorded.url):
                    return recorded.url
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise Unreachable(f"the server did not start within {START_S:g} s; {_last_words(log)}") from error
    raise Unreachable(f"the server could not start: {_last_words(log)}")


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return " ".join(said[-3:]).removeprefix("Error: ") or "it said nothing"


async def _stop(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None  # noqa: S101  # it was asked for
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        return  # somebody else uses it too: it drains, and then ends by itself
