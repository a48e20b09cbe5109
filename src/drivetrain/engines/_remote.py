"""What the engines behind a URL share: their options, an upstream made of their settings, and the exchanges with it."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from drivetrain.dialects import Decoder, Surface
from drivetrain.engines import EngineSettings
from drivetrain.engines._http import Answer, Upstream
from drivetrain.errors import BadRequest, DrivetrainError, EngineError, EngineFailed
from drivetrain.types import ChoiceFinished, Event, Finished, Progress, Request

MAX_BODY_BYTES = 256 * 2**20  # of an answer that is no stream: lists of models, embeddings
MAX_ERROR_BYTES = 2**20
MAX_PAGE_BYTES = 8 * 2**20  # of metrics
PROBE_S = 2.0  # a healthy engine answers a free probe sooner
MOST_RETRY_AFTER_S = 24 * 3600.0  # that an engine is believed
DRAIN_S = 0.5  # how long to wait for the end of a stream whose last event has come
ENDING_S = 10.0  # how long to wait for the last event when all choices have finished

Seconds = Annotated[float, msgspec.Meta(gt=0)]
DecodeError = Callable[[int, bytes], DrivetrainError]


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members of an engine's entry in `drivetrain.yaml` that only engines behind a URL have."""

    headers: Mapping[str, str] = {}  # sent with every request
    ca_file: str | None = None  # PEM; trusted instead of the system's authorities
    first_byte_s: Seconds = 600.0  # how long the engine may think before it answers; policies have shorter limits
    idle_s: Seconds = 600.0  # the longest pause in an answer
    keep_idle_s: Seconds = 4.0  # keep below the engine's own keep-alive limit
    sleep_level: Literal[0, 1, 2] = 0  # vllm: how deep it may be put to sleep when it is idle; 0: not at all
    sleep_idle_s: Seconds = 900.0  # vllm: how long it has to be idle
    priorities: bool = False  # vllm, sglang: it was started to put requests in order by theirs


def remote_options(name: str, settings: EngineSettings) -> RemoteOptions:
    """Raises `BadRequest` that names the key."""
    try:
        return msgspec.convert(settings.options, RemoteOptions)
    except msgspec.ValidationError as error:
        raise BadRequest(f"engines.{name}: {error}") from error


def open_upstream(name: str, settings: EngineSettings, url: str) -> Upstream:
    """The upstream at `url`. Raises `BadRequest` that names the key at fault."""
    options = remote_options(name, settings)
    try:
        return Upstream(
            url,
            settings.api_key,
            label=f"engine {name!r}",
            headers=options.headers,
            connect_timeout_s=settings.connect_timeout_s,
            first_byte_s=options.first_byte_s,
            idle_s=options.idle_s,
            keep_idle_s=options.keep_idle_s,
            tls=_trust(options.ca_file),
        )
    except BadRequest as error:
        raise BadRequest(f"engines.{name}: {error.message}") from error
    except OSError as error:
        raise BadRequest(f"engines.{name}.ca_file: {options.ca_file!r} cannot be used: {error}") from error


def url_of(name: str, settings: EngineSettings) -> str:
    """Raises `BadRequest` if the settings hold none."""
    if not settings.url:
        raise BadRequest(
            f"engines.{name}.url is missing: an engine of kind {settings.kind!r} needs the address of its server, "
            "such as http://10.0.0.5:8000"
        )
    return settings.url


def _trust(ca_file: str | None) -> ssl.SSLContext | None:
    return None if ca_file is None else ssl.create_default_context(cafile=ca_file)


async def stream(
    upstream: Upstream, path: str, surface: Surface, request: Request, *, more: bytes = b""
) -> AsyncGenerator[Sequence[Event], None]:
    """One generation. `more`: members that the body has beside those of the request, `,"name":value` each.

    Raises the error that the engine answers, or `EngineFailed` if its stream ends early.
    """
    decoder = surface.decoder(request)
    body = _with(surface.encode_request(request), more)
    async with upstream.post(path, body, traceparent=request.traceparent, connect_s=request.connect_s) as answer:
        if answer.status != 200:
            raise await refusal(answer, surface.decode_error)
        gather_s = 0.0  # the first content is awaited: how soon it comes is measured, and has limits
        while data := await answer.next(gather_s):
            if not (events := decoder.feed(data)):
                continue
            yield events
            if decoder.failure is not None:
                raise decoder.failure
            if isinstance(last := events[-1], Finished):
                await answer.drain(DRAIN_S)
                return
            if type(last) is ChoiceFinished and decoder.complete:
                yield await _ending(answer, decoder)
                return
            if type(last) is not Progress:
                gather_s = request.gather_s
        yield decoder.close()


async def _ending(answer: Answer, decoder: Decoder) -> Sequence[Event]:
    """What follows the last choice's finish. An answer that is complete stays so if the engine is lost now, or says no
    more: what it took is an estimate then."""
    events: list[Event] = []
    try:
        async with asyncio.timeout(ENDING_S):
            while data := await answer.next():
                events += decoder.feed(data)
                if events and isinstance(events[-1], Finished):
                    await answer.drain(DRAIN_S)
                    return events
                if decoder.failure is not None:
                    break
    except (EngineError, TimeoutError):
        pass  # unless the engine told it, which `close` raises again
    return [*events, *decoder.close()]


async def call(
    upstream: Upstream,
    path: str,
    body: bytes,
    decode_error: DecodeError,
    *,
    more: bytes = b"",
    traceparent: str | None = None,
    connect_s: float | None = None,
) -> bytes:
    """The body of a 200. `more` as for `stream`. Raises the error that the engine answers."""
    async with upstream.post(path, _with(body, more), traceparent=traceparent, connect_s=connect_s) as answer:
        return await _body(answer, decode_error)


def _with(body: bytes, more: bytes) -> bytes:
    return b"%b%b}" % (body.removesuffix(b"}"), more) if more else body


async def fetch(upstream: Upstream, path: str, decode_error: DecodeError, *, within_s: float = 10.0) -> bytes:
    """The body of a 200 that an engine gives without work. Raises the error that the engine answers."""
    async with upstream.get(path, first_byte_s=within_s, idle_s=within_s) as answer:
        return await _body(answer, decode_error)


async def probe(upstream: Upstream, path: str) -> int:
    """The status of an answer. Raises an `EngineError` if there is none."""
    async with upstream.get(path, first_byte_s=PROBE_S, idle_s=PROBE_S) as answer:
        await answer.drain(PROBE_S)
        return answer.status


async def look(upstream: Upstream, path: str) -> bytes | None:
    """A page that the engine may have or not. Raises an `EngineError` if it cannot be read."""
    async with upstream.get(path, first_byte_s=PROBE_S, idle_s=PROBE_S) as answer:
        if answer.status != 200:
            await answer.drain(PROBE_S)
            return None
        return await answer.read(MAX_PAGE_BYTES)


async def _body(answer: Answer, decode_error: DecodeError) -> bytes:
    if answer.status != 200:
        raise await refusal(answer, decode_error)
    return await answer.read(MAX_BODY_BYTES)


async def refusal(answer: Answer, decode_error: DecodeError) -> DrivetrainError:
    """The error that an answer outside 200 tells, with how long to wait where the engine says it."""
    if 300 <= answer.status < 400:
        target = answer.headers.get("location", "another address")
        return EngineFailed(f"the engine points to {target} ({answer.status}); set its final address as `url`")
    error = decode_error(answer.status, await answer.read(MAX_ERROR_BYTES))
    retry_after = answer.headers.get("retry-after", "")
    if error.retry_after_s is None and retry_after.isascii() and retry_after.isdigit():
        error.retry_after_s = min(float(retry_after), MOST_RETRY_AFTER_S)
    return error
