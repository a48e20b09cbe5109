"""Any server that speaks OpenAI's API: a remote service, vLLM, llama-server, SGLang, another Drivetrain."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from drivetrain.dialects.openai import (
    CHAT,
    COMPLETIONS,
    decode_embeddings,
    decode_error,
    decode_models,
    encode_embed_request,
)
from drivetrain.engines import EngineSettings, Host, gauges, llamaserver, logprobs
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import (
    RemoteOptions,
    call,
    fetch,
    look,
    open_upstream,
    probe,
    remote_options,
    stream,
    url_of,
)
from drivetrain.engines.naps import Naps
from drivetrain.errors import BadRequest, EngineError, EngineFailed
from drivetrain.types import Embeddings, EmbedRequest, Event, Health, Loaded, Model, Progress, Request

VERSION = re.compile(r"/v\d+[a-z0-9]*(?=/|$)")
VLLM, LLAMA_SERVER = "vllm", "llama-server"
NO_ROUTE = frozenset({404, 405})
NO_KEY = frozenset({401, 403})
# Members of a request that make a kind go on with the last message, where it does not do so by itself.
RESUMES: Mapping[str, bytes] = {
    "vllm": b',"continue_final_message":true,"add_generation_prompt":false',
    "sglang": b',"continue_final_message":true',
}
# What kinds with a queue by priorities call each class, from bulk to system: for vLLM the lowest number goes first, for
# SGLang the highest (vLLM `--scheduling-policy priority`, SGLang `--enable-priority-scheduling`).
PRIORITIES: Mapping[str, Sequence[int]] = {"vllm": (3, 2, 1, 0), "sglang": (0, 1, 2, 3)}


def split_base(url: str) -> tuple[str, str]:
    """The server's root and the prefix of its API: `http://box:8000` and `http://box:8000/v1` are the same server."""
    if url.startswith("unix:"):
        return url, "/v1"
    path = urlsplit(url).path.rstrip("/")
    version = VERSION.search(path)
    if version is None:
        return url, "/v1"
    return url.rstrip("/").removesuffix(path) + path[: version.start()], path[version.start() :]


class OpenAI:
    """An engine of kind `openai`. Most look after their own models: there is nothing to load or unload. One of kind
    `vllm` may be put to sleep, one of kind `llama-server` may have several models."""

    options_type = RemoteOptions

    def __init__(self, name: str, settings: EngineSettings, host: Host) -> None:
        self.name = name
        self.kind = settings.kind
        root, self._api = split_base(url_of(name, settings))
        self._upstream = open_upstream(name, settings, root)
        self._priorities = _priorities(name, settings)
        self._naps = _naps(name, settings, self._upstream)
        self._silent: set[str] = set()  # pages that the server does not have

    def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        return self._answer(request) if self._naps is None else self._woken(self._naps, request)

    async def _woken(self, naps: Naps, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        with naps.need(request.keep_alive_s) as need:
            while not await need.step():
                yield (Progress(stage="loading"),)
            async with aclosing(self._answer(request)) as batches:
                async for events in batches:
                    yield events

    def _answer(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        surface, more = CHAT if request.completion is None else COMPLETIONS, b""
        if request.resumes:
            more = RESUMES.get(self.kind, b"")
        if self._priorities is not None:
            more += b',"priority":%d' % self._priorities[request.urgency]
            request = _unranked(request)
        if self.kind == LLAMA_SERVER and logprobs.alone(request):
            asked = logprobs.with_one(request)
            return logprobs.without_any(stream(self._upstream, self._api + surface.path, surface, asked, more=more))
        return stream(self._upstream, self._api + surface.path, surface, request, more=more)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        if self._naps is None:
            return await self._embed(request)
        with self._naps.need(request.keep_alive_s) as need:
            await need.awake()
            return await self._embed(request)

    async def _embed(self, request: EmbedRequest) -> Embeddings:
        asked, path = encode_embed_request(request), self._api + "/embeddings"
        trace, connect_s = request.traceparent, request.connect_s
        more = llamaserver.embedding(request) if self.kind == LLAMA_SERVER else b""
        body = await call(self._upstream, path, asked, decode_error, more=more, traceparent=trace, connect_s=connect_s)
        embeddings = decode_embeddings(body)
        if len(embeddings.vectors) != len(request.inputs):
            got, wanted = len(embeddings.vectors), len(request.inputs)
            raise EngineFailed(f"engine {self.name!r} sent {got} embeddings for {wanted} inputs")
        return embeddings

    async def models(self) -> Sequence[Model]:
        listed = decode_models(await fetch(self._upstream, self._api + "/models", decode_error))
        return [replace(model, engine=self.name) for model in listed]

    async def health(self) -> Health:
        """By `/health`, which engines have, else by the list of models, which services have. Engines tell also how much
        they have to do, and whether they sleep."""
        try:
            status = await probe(self._upstream, "/health")
            if status == 200:
                return await self._with_work()
            self._silent.clear()  # it may be another server when it is back
            if status != 503:
                status = await probe(self._upstream, self._api + "/models")
        except EngineError as error:
            self._silent.clear()
            return Health(live=False, ready=False, message=error.message)
        return _judge(status)

    async def _with_work(self) -> Health:
        """Of one that is healthy."""
        page = await self._told("/metrics")
        found = gauges.read(page) if page is not None else gauges.Gauges()
        awake = found.awake
        if awake is None and self.kind == "vllm" and (said := await self._told("/is_sleeping")) is not None:
            awake = b"true" not in said
        if awake is False:
            wakes = self._naps is not None
            message = "it sleeps, and is woken by a request" if wakes else "it sleeps"
            return Health(live=True, ready=wakes, awake=False, message=message)
        return Health(live=True, ready=True, running=found.running, waiting=found.waiting)

    async def _told(self, path: str) -> bytes | None:
        """What is there, if anything: one that has no such page is not asked for it again while it is up."""
        if path in self._silent:
            return None
        try:
            page = await look(self._upstream, path)
        except EngineError:
            return None  # busy perhaps; its health is known
        if page is None:
            self._silent.add(path)
        return page

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        """Nothing to do where the server has its models ready, or sees to it."""
        if self._naps is not None:
            with self._naps.need(keep_alive_s) as need:
                await need.awake()
        elif self.kind == LLAMA_SERVER:
            await llamaserver.load(self._upstream, model)

    async def unload(self, model: str) -> None:
        if self._naps is not None:
            await self._naps.rest()
        elif self.kind == LLAMA_SERVER:
            await llamaserver.unload(self._upstream, model)

    async def loaded(self) -> Sequence[Loaded]:
        """Those that we could unload."""
        if self._naps is not None:
            listed = () if await self._naps.asleep() else await self.models()
            return [Loaded(model=model, size_bytes=0, active=self._naps.needed) for model in listed]
        if self.kind != LLAMA_SERVER:
            return ()
        known = await llamaserver.statuses(self._upstream)
        there = [id for id, status in known.items() if status.value == llamaserver.IN_MEMORY]
        return [Loaded(model=Model(id=id, engine=self.name), size_bytes=0) for id in there]

    async def aclose(self) -> None:
        if self._naps is not None:
            await self._naps.aclose()
        await self._upstream.aclose()


def _naps(name: str, settings: EngineSettings, upstream: Upstream) -> Naps | None:
    """Raises `BadRequest` for a kind that cannot sleep."""
    options = remote_options(name, settings)
    if not options.sleep_level:
        return None
    if settings.kind != VLLM:
        raise BadRequest(f"engines.{name}.sleep_level: kind {settings.kind!r} cannot sleep; {VLLM!r} can")
    return Naps(upstream, level=options.sleep_level, idle_s=options.sleep_idle_s)


def _priorities(name: str, settings: EngineSettings) -> Sequence[int] | None:
    """By urgency; None if it is not to be told. Raises `BadRequest` for a kind that has none."""
    if not remote_options(name, settings).priorities:
        return None
    if settings.kind not in PRIORITIES:
        known = ", ".join(sorted(PRIORITIES))
        raise BadRequest(f"engines.{name}.priorities: kind {settings.kind!r} has none; those that have: {known}")
    return PRIORITIES[settings.kind]


def _unranked(request: Request) -> Request:
    """Without a priority in the caller's own words: what a caller may have, its class says."""
    source = request.source
    return replace(request, source=source.without(("priority",))) if source is not None else request


def _judge(status: int) -> Health:
    if status == 200:
        return Health(live=True, ready=True)
    if status in NO_ROUTE:
        return Health(live=True, ready=True, message="it does not tell its state")
    if status in NO_KEY:
        return Health(live=True, ready=False, message=f"it refused our api_key ({status})")
    return Health(live=True, ready=False, message=f"it answered {status} when asked for its state")
