"""Ollama's own routes, `/api/*`: generation and embeddings through the gateway, the rest on the library."""

import asyncio
import time

from msgspec.structs import replace

from drivetrain.dialects import Surface, ollama
from drivetrain.errors import ContextOverflow, Forbidden, ModelNotFound, NotFound
from drivetrain.library import Library, about
from drivetrain.server import errand
from drivetrain.server.auth import check_model, may_use
from drivetrain.server.exchange import Exchange
from drivetrain.server.inference import Inference
from drivetrain.server.models import delete
from drivetrain.server.reach import check_source, check_target
from drivetrain.types import Embeddings, EmbedRequest, ModelSpec, Request, Timings

CHAT, GENERATE = ollama.CHAT.timed(time.time_ns), ollama.GENERATE.timed(time.time_ns)
COPILOT = b"GitHubCopilotChat"


class Ollama:
    def __init__(self, inference: Inference, library: Library) -> None:
        self._inference = inference
        self._gateway = inference.gateway
        self._library = library

    # --- generation ---------------------------------------------------------------------------------------------------

    async def chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, CHAT)

    async def generate(self, exchange: Exchange) -> None:
        await self._generate(exchange, GENERATE)

    async def _generate(self, exchange: Exchange, surface: Surface) -> None:
        request = surface.decode_request(await self._inference.body(exchange))
        check_model(exchange.who, request.model)
        await self._check_thinking(request)
        if ollama.wants_load(request):
            await self._load(exchange, request)
        else:
            await self._answer(exchange, surface, request)

    async def _answer(self, exchange: Exchange, surface: Surface, request: Request) -> None:
        """A conversation too long for the model is asked again with its oldest turns left out."""
        headers = tuple(exchange.extra)
        for left in reversed(range(ollama.MOST_TRIES)):
            try:
                return await self._inference.answer(exchange, surface, request)
            except ContextOverflow as error:
                following = ollama.shortened(request, error.fits) if left else None
                if exchange.started or following is None:
                    raise
                request, exchange.extra[:] = following, headers  # without what was told of this try

    async def _check_thinking(self, request: Request) -> None:
        """Ollama refuses to have a model think that cannot, where OpenAI's callers find their wish ignored."""
        if request.reasoning in (None, "none"):
            return
        entry = await self._gateway.resolve(request.model)
        if entry.spec is not None and "thinking" not in entry.spec.model.capabilities:
            raise ollama.errors.does_not_support(request.model, "thinking")

    async def _load(self, exchange: Exchange, request: Request) -> None:
        """A request that holds nothing to answer brings the model into memory, or takes it out."""
        if request.keep_alive_s == 0:
            await self._gateway.dismiss(request.model)
        else:
            await self._gateway.load(request.model, keep_alive_s=request.keep_alive_s, options=request.options)
        await exchange.respond(200, ollama.encode_load(request, created_s=time.time()))

    async def embed(self, exchange: Exchange) -> None:
        request = ollama.decode_embed_request(await self._inference.body(exchange))
        answer, timings = await self._vectors(exchange, "ollama.embed", request)
        await exchange.respond(200, ollama.encode_embeddings(request, answer, timings=timings))

    async def embeddings(self, exchange: Exchange) -> None:
        request = ollama.decode_legacy_embed_request(await self._inference.body(exchange))
        answer, _ = await self._vectors(exchange, "ollama.embeddings", request)
        await exchange.respond(200, ollama.encode_legacy_embedding(answer))

    async def _vectors(self, exchange: Exchange, dialect: str, request: EmbedRequest) -> tuple[Embeddings, Timings]:
        """An empty input asks for no vector: it only loads the model."""
        check_model(exchange.who, request.model)
        if request.inputs:
            return await self._embedded(exchange, dialect, request)
        await self._gateway.load(request.model, keep_alive_s=request.keep_alive_s, options=request.options)
        return Embeddings(vectors=()), Timings()

    async def _embedded(self, exchange: Exchange, dialect: str, request: EmbedRequest) -> tuple[Embeddings, Timings]:
        try:
            return await self._inference.embeddings(exchange, dialect, request)
        except ContextOverflow as error:
            raise ContextOverflow("the input length exceeds the context length", param="input") from error

    # --- what there is ------------------------------------------------------------------------------------------------

    async def root(self, exchange: Exchange) -> None:
        await exchange.respond(200, b"Ollama is running", b"text/plain; charset=utf-8")

    async def version(self, exchange: Exchange) -> None:
        await exchange.respond(200, ollama.encode_version())

    async def status(self, exchange: Exchange) -> None:
        await exchange.respond(200, b'{"cloud":{"disabled":true,"source":"drivetrain"}}')

    async def tags(self, exchange: Exchange) -> None:
        models = [model for model in self._gateway.catalog.models() if may_use(exchange.who, model.id)]
        await exchange.respond(200, ollama.encode_tags(models))

    async def ps(self, exchange: Exchange) -> None:
        loaded = [model for models in (await self._gateway.loaded()).values() for model in models]
        await exchange.respond(200, ollama.encode_ps(loaded))

    async def show(self, exchange: Exchange) -> None:
        asked = ollama.decode_show_request(await exchange.body())
        entry = await self._gateway.resolve(asked.model)
        check_model(exchange.who, entry.name)
        copilot = exchange.headers.get(b"user-agent", b"").startswith(COPILOT)
        basename = asked.model if copilot else None
        spec = entry.spec
        if spec is None:
            spec = ModelSpec(id=entry.name, model=self._gateway.catalog.describe(entry.name))
            shown = ollama.Shown(remote_model=entry.targets[0].model, remote_host=entry.targets[0].engine)
        else:
            members = self._library.members(spec.id)
            spec = replace(spec, system=asked.system or spec.system)
            made = replace(spec, parameters={**spec.parameters, **asked.options})
            shown = await asyncio.to_thread(about.shown, made, members, verbose=asked.verbose)
        await exchange.respond(200, ollama.encode_show(spec, shown, basename=basename))

    # --- changes ------------------------------------------------------------------------------------------------------

    async def pull(self, exchange: Exchange) -> None:
        asked = ollama.decode_pull_request(await exchange.body())
        check_source(exchange.who, asked.model, insecure=asked.insecure)
        await self._report(exchange, self._library.pull(asked.model, insecure=asked.insecure), stream=asked.stream)

    async def push(self, exchange: Exchange) -> None:
        asked = ollama.decode_push_request(await exchange.body())
        check_target(exchange.who, asked.model, insecure=asked.insecure)
        await self._report(exchange, self._library.push(asked.model, insecure=asked.insecure), stream=asked.stream)

    async def create(self, exchange: Exchange) -> None:
        asked = ollama.decode_create_request(await exchange.body())
        check_model(exchange.who, asked.model)
        if asked.from_ and not asked.files:
            self._check_base(exchange, asked.from_)
        await self._report(exchange, self._library.create(asked), stream=asked.stream)

    def _check_base(self, exchange: Exchange, base: str) -> None:
        """A model that is not here yet would be pulled."""
        try:
            check_model(exchange.who, self._library.lookup(base).id)
        except ModelNotFound:
            check_source(exchange.who, base)

    async def copy(self, exchange: Exchange) -> None:
        asked = ollama.decode_copy_request(await exchange.body())
        check_model(exchange.who, asked.source)
        check_model(exchange.who, asked.destination)
        await self._library.copy(asked.source, asked.destination)
        await exchange.respond(200)

    async def delete(self, exchange: Exchange) -> None:
        model = ollama.decode_delete_request(await exchange.body())
        check_model(exchange.who, model)
        await delete(self._gateway, self._library, model)
        await exchange.respond(200)

    async def head_blob(self, exchange: Exchange, digest: str) -> None:
        if not self._library.has_blob(digest):
            raise NotFound(f'blob "{digest}" not found')
        await exchange.respond(200)

    async def put_blob(self, exchange: Exchange, digest: str) -> None:
        if self._library.has_blob(digest):
            await exchange.respond(200)
            return
        await self._library.put_blob(digest, exchange.pieces())
        await exchange.respond(201)

    async def account(self, exchange: Exchange, _key: str = "") -> None:
        """Nobody signs in here: there is no cloud behind us."""
        await exchange.respond(401, b'{"error":"unauthorized","signin_url":""}')

    async def web(self, exchange: Exchange) -> None:
        """Searching and reading the web is the cloud's."""
        raise Forbidden(
            f"{exchange.path} needs Ollama's cloud, which is disabled here: there is none behind this server"
        )

    async def _report(self, exchange: Exchange, statuses: errand.Statuses, *, stream: bool) -> None:
        """How a long errand goes, or only its end."""
        if stream:
            await errand.told(exchange, statuses)
        else:
            await errand.done(statuses)
            await exchange.respond(200, ollama.SUCCESS)
