"""Any server that speaks OpenAI's API: a remote service, vLLM, llama-server, SGLang, another Drivetrain."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
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
from drivetrain.engines import EngineSettings, Host
from drivetrain.engines._remote import call, fetch, open_upstream, probe, remote_options, stream, url_of
from drivetrain.errors import BadRequest, EngineError, EngineFailed
from drivetrain.types import Embeddings, EmbedRequest, Event, Health, Loaded, Model, Request

VERSION = re.compile(r"/v\d+[a-z0-9]*(?=/|$)")
NO_ROUTE = frozenset({404, 405})
NO_KEY = frozenset({401, 403})
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
    """An engine of kind `openai`. It looks after its own models: there is nothing to load or unload."""

    def __init__(self, name: str, settings: EngineSettings, host: Host) -> None:
        self.name = name
        self.kind = settings.kind
        root, self._api = split_base(url_of(name, settings))
        self._upstream = open_upstream(name, settings, root)
        self._priorities = _priorities(name, settings)

    def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        surface = CHAT if request.completion is None else COMPLETIONS
        if self._priorities is None:
            return stream(self._upstream, self._api + surface.path, surface, request)
        more = b',"priority":%d' % self._priorities[request.urgency]
        return stream(self._upstream, self._api + surface.path, surface, _unranked(request), more=more)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        asked, path = encode_embed_request(request), self._api + "/embeddings"
        trace, connect_s = request.traceparent, request.connect_s
        body = await call(self._upstream, path, asked, decode_error, traceparent=trace, connect_s=connect_s)
        embeddings = decode_embeddings(body)
        if len(embeddings.vectors) != len(request.inputs):
            got, wanted = len(embeddings.vectors), len(request.inputs)
            raise EngineFailed(f"engine {self.name!r} sent {got} embeddings for {wanted} inputs")
        return embeddings

    async def models(self) -> Sequence[Model]:
        listed = decode_models(await fetch(self._upstream, self._api + "/models", decode_error))
        return [replace(model, engine=self.name) for model in listed]

    async def health(self) -> Health:
        """By `/health`, which engines have, else by the list of models, which services have."""
        try:
            status = await probe(self._upstream, "/health")
            if status not in (200, 503):
                status = await probe(self._upstream, self._api + "/models")
        except EngineError as error:
            return Health(live=False, ready=False, message=error.message)
        return _judge(status)

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        """Nothing to do: the server has its models ready, or sees to it."""

    async def unload(self, model: str) -> None:
        """Nothing to do, as for `load`."""

    async def loaded(self) -> Sequence[Loaded]:
        """None that we could unload."""
        return ()

    async def aclose(self) -> None:
        await self._upstream.aclose()


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
    if source is None or "priority" not in source.fields:
        return request
    fields = {name: value for name, value in source.fields.items() if name != "priority"}
    return replace(request, source=replace(source, fields=fields))


def _judge(status: int) -> Health:
    if status == 200:
        return Health(live=True, ready=True)
    if status in NO_ROUTE:
        return Health(live=True, ready=True, message="it does not tell its state")
    if status in NO_KEY:
        return Health(live=True, ready=False, message=f"it refused our api_key ({status})")
    return Health(live=True, ready=False, message=f"it answered {status} when asked for its state")
