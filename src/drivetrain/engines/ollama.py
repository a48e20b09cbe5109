"""Any Ollama server, by its own API."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

from drivetrain.dialects.ollama import (
    EMBED_PATH,
    GENERATE,
    decode_embeddings,
    decode_error,
    decode_ps,
    decode_show,
    decode_tags,
    encode_embed_request,
    encode_load_request,
    surface_for,
)
from drivetrain.engines import EngineSettings, Host
from drivetrain.engines._remote import RemoteOptions, call, fetch, open_upstream, stream, url_of
from drivetrain.errors import (
    DrivetrainError,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    LoadFailed,
    ModelNotFound,
    Unsupported,
)
from drivetrain.types import Embeddings, EmbedRequest, Event, Health, Loaded, Model, Request

SHOWS_AT_ONCE = 4


class Ollama:
    """An engine of kind `ollama`. It loads a model when it is asked for; `load` and `unload` do so ahead of time."""

    options_type = RemoteOptions

    def __init__(self, name: str, settings: EngineSettings, host: Host) -> None:
        self.name = name
        self.kind = settings.kind
        self._upstream = open_upstream(name, settings, url_of(name, settings).rstrip("/").removesuffix("/api"))
        self._shown: dict[tuple[str, str], Model] = {}  # id and digest → what `show` told

    def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        surface = surface_for(request)
        return stream(self._upstream, surface.path, surface, request)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        asked, trace, connect_s = encode_embed_request(request), request.traceparent, request.connect_s
        body = await call(self._upstream, EMBED_PATH, asked, decode_error, traceparent=trace, connect_s=connect_s)
        embeddings = decode_embeddings(body)
        if len(embeddings.vectors) != len(request.inputs):
            got, wanted = len(embeddings.vectors), len(request.inputs)
            raise EngineFailed(f"engine {self.name!r} sent {got} embeddings for {wanted} inputs")
        return embeddings

    async def models(self) -> Sequence[Model]:
        """Servers of before 2026 do not list what their models can do: those are asked about each, once."""
        listed = decode_tags(await fetch(self._upstream, "/api/tags", decode_error))
        unknown = [model for model in listed if not model.capabilities and (model.id, model.digest) not in self._shown]
        limiter = anyio.CapacityLimiter(SHOWS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for model in unknown:
                group.start_soon(self._show, model, limiter)
        return [replace(self._known(model), engine=self.name) for model in listed]

    def _known(self, model: Model) -> Model:
        return model if model.capabilities else self._shown.get((model.id, model.digest), model)

    async def _show(self, model: Model, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            try:
                body = await call(self._upstream, "/api/show", msgspec.json.encode({"model": model.id}), decode_error)
                self._shown[model.id, model.digest] = decode_show(body, model)
            except DrivetrainError:
                return  # removed meanwhile, or too old to say: then its abilities stay unknown

    async def health(self) -> Health:
        try:
            version = msgspec.json.decode(await fetch(self._upstream, "/api/version", decode_error), type=_Version)
            loaded = await self.loaded()
        except DrivetrainError as error:
            answers = not isinstance(error, EngineUnavailable | EngineTimeout)
            return Health(live=answers, ready=False, message=error.message)
        except msgspec.DecodeError as error:
            return Health(live=True, ready=False, message=f"it is no Ollama server: {error}")
        return Health(live=True, ready=True, message=f"version {version.version}, models loaded: {len(loaded)}")

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        """A model that only embeds is loaded by embedding nothing. `keep_alive_s` 0 would unload it: then the server's
        own default holds."""
        keep = keep_alive_s or None
        try:
            await self._ask(encode_load_request(model, keep_alive_s=keep, said=options))
        except Unsupported:
            nothing = EmbedRequest(model=model, inputs=(), keep_alive_s=keep, options=options)
            await call(self._upstream, EMBED_PATH, encode_embed_request(nothing), decode_error)
        except (EngineOverloaded, EngineUnavailable, LoadFailed):
            raise
        except EngineError as error:
            raise LoadFailed(error.message) from error

    async def unload(self, model: str) -> None:
        try:
            await self._ask(encode_load_request(model, keep_alive_s=0))
        except (ModelNotFound, Unsupported):
            return  # a model that is not there is not loaded

    async def _ask(self, body: bytes) -> None:
        await call(self._upstream, GENERATE.path, body, decode_error)

    async def loaded(self) -> Sequence[Loaded]:
        listed = decode_ps(await fetch(self._upstream, "/api/ps", decode_error))
        return [replace(one, model=replace(one.model, engine=self.name)) for one in listed]

    async def aclose(self) -> None:
        await self._upstream.aclose()


class _Version(msgspec.Struct):
    version: str
