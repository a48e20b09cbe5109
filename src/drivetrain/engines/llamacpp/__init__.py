"""The embedded engine: llama.cpp, one supervised worker process per model in memory."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from drivetrain.dialects.openai import CHAT, COMPLETIONS
from drivetrain.engines import EngineSettings, Host, logprobs
from drivetrain.engines._remote import stream
from drivetrain.engines.expertstream import plan
from drivetrain.engines.llamacpp import choices, embedding, machine, members, settings, tokens, tools
from drivetrain.engines.llamacpp.fleet import Fleet, Lease
from drivetrain.engines.llamacpp.resident import Running
from drivetrain.engines.llamacpp.watch import Watch
from drivetrain.engines.llamacpp.ways import Limits
from drivetrain.errors import BadRequest, ModelNotFound, Unsupported
from drivetrain.types import (
    Audio,
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    Health,
    Image,
    Loaded,
    Model,
    ModelSpec,
    Progress,
    Request,
    TextDelta,
    Timings,
)

__all__ = ["LlamaCpp"]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members of the engine's entry in `drivetrain.yaml` that only this kind has."""

    memory_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None  # for all models; None: three quarters of RAM
    load_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0


class LlamaCpp:
    """An engine of kind `llamacpp`. Every call that needs a model loads it first."""

    options_type = Options

    def __init__(self, name: str, entry: EngineSettings, host: Host) -> None:
        try:
            options = msgspec.convert(entry.options, Options)
        except msgspec.ValidationError as error:
            raise BadRequest(f"engines.{name}: {error}") from error
        self.name = name
        self.kind = entry.kind
        self._host = host
        self._fleet = Fleet(name, host, limits=_limits(options), load_timeout_s=options.load_timeout_s)

    async def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        spec = self._host.lookup(request.model)
        _refuse_what_it_cannot_see(spec, request)
        _refuse_to_fill_in(spec, request)
        _refuse_to_weigh_the_prompt(request)
        tools.refuse_others(request)
        request = members.known(request)
        with self._fleet.lease(request.model, request.options, request.keep_alive_s) as lease:
            while (running := await lease.step()) is None:
                yield (Progress(stage="queued" if lease.queued else "loading", fraction=lease.fraction),)
            _refuse_what_it_cannot_do(running)
            if running.flow:
                yield (Progress(stage="prompt", experts=running.flow.experts()),)
            async with aclosing(_answer(running, request, lease)) as batches:
                async for events in batches:
                    yield _with_load_time(events, lease) if lease.waited_s else events

    async def embed(self, request: EmbedRequest) -> Embeddings:
        options = _with_embeddings(self._host.lookup(request.model), request)
        with self._fleet.lease(request.model, options, request.keep_alive_s) as lease:
            running = await lease.ready()
            if not running.launch.embedding:
                raise Unsupported(f"model {request.model!r} has embeddings switched off; set its `embedding` to true")
            async with Watch(running, lease) as watch:
                vectors = await embedding.embed(running.upstream, request, context=running.launch.context)
                return replace(vectors, experts=watch.experts())

    async def models(self) -> Sequence[Model]:
        """Those in memory. The library lists the others."""
        return [loaded.model for loaded in await self.loaded()]

    async def loaded(self) -> Sequence[Loaded]:
        ready = [resident for resident in self._fleet.residents.values() if resident.state == "ready"]
        return [resident.loaded(engine=self.name) for resident in ready]

    async def health(self) -> Health:
        await self._fleet.tidy()
        residents = self._fleet.residents.values()
        active = sum(resident.active for resident in residents)
        running = sum(min(resident.active, resident.slots) for resident in residents)
        return Health(live=True, ready=not self._fleet.closed, running=running, waiting=active - running)

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        with self._fleet.lease(model, options, keep_alive_s) as lease:
            await lease.ready()

    async def unload(self, model: str) -> None:
        with suppress(ModelNotFound):  # it may have left the library, but not yet memory
            model = self._host.lookup(model).id
        await self._fleet.retire(model)

    async def aclose(self) -> None:
        await self._fleet.aclose()


async def _answer(running: Running, request: Request, lease: Lease) -> AsyncGenerator[Sequence[Event], None]:
    async with Watch(running, lease) as watch, aclosing(_events(running, request)) as batches:
        async for events in batches:
            watch.answered = True
            yield _with_experts(events, watch)


def _events(running: Running, request: Request) -> AsyncGenerator[Sequence[Event], None]:
    surface = CHAT if request.completion is None else COMPLETIONS
    if choices.several(request):
        return _one_by_one(running, request)
    asked, bare = tools.demanded(request, prefaced=running.launch.prefaced), logprobs.alone(request)
    asked = logprobs.with_one(asked) if bare else asked
    batches = stream(running.upstream, "/v1" + surface.path, surface, asked)
    batches = logprobs.without_any(batches) if bare else batches
    return _with_one_call(batches) if tools.one_call(request) else batches


async def _with_one_call(answer: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[Sequence[Event], None]:
    async with aclosing(answer) as batches:
        async for events in batches:
            yield tools.without_further_calls(events)


async def _one_by_one(running: Running, request: Request) -> AsyncGenerator[Sequence[Event], None]:
    ends: list[Finished] = []
    for index, single in enumerate(choices.singles(request)):
        before = await _echo(running, request, single)
        async with aclosing(_events(running, single)) as batches:
            async for events in batches:
                if request.sampling.max_tokens == 0:
                    events = choices.silent(events)
                ends += [event for event in events if isinstance(event, Finished)]
                numbered = choices.numbered(events, index)
                yield [TextDelta(index=index, text=before), *numbered] if before and numbered else numbered
                before = "" if numbered else before
    yield (choices.total(ends, request.sampling.n),)


async def _echo(running: Running, request: Request, single: Request) -> str:
    """The prompt of one of the request's answers, if it is to be repeated before it."""
    if single.completion is None or request.completion is None or not request.completion.echo:
        return ""
    (prompt,) = single.completion.prompts
    return prompt if isinstance(prompt, str) else await tokens.text_of(running.upstream, prompt)


def _with_experts(events: Sequence[Event], watch: Watch) -> Sequence[Event]:
    """The end of an answer of a streamed model tells how its experts fared."""
    if not events or not isinstance(end := events[-1], Finished) or (experts := watch.experts()) is None:
        return events
    return [*events[:-1], replace(end, experts=experts)]


def _with_load_time(events: Sequence[Event], lease: Lease) -> Sequence[Event]:
    """The caller waited for the model: its end says so."""
    if not events or not isinstance(end := events[-1], Finished):
        return events
    timings = replace(end.timings or Timings(), load_s=lease.waited_s)
    return [*events[:-1], replace(end, timings=timings)]


def _with_embeddings(spec: ModelSpec, request: EmbedRequest) -> Mapping[str, Any]:
    """A streamed model makes embeddings only if somebody wants them, as this request does; settings may forbid it."""
    said = settings.chosen({**spec.settings, **request.options})
    return request.options if "embedding" in said else {**request.options, "embedding": True}


def _limits(options: Options) -> Limits:
    memory_bytes = machine.memory_bytes()
    return Limits(
        cores=machine.cores(),
        memory_bytes=memory_bytes,
        room_bytes=min(options.memory_bytes or memory_bytes * 3 // 4, memory_bytes),
        fixed=options.memory_bytes is not None,
        switch=plan.switch(os.environ),
    )


def _refuse_what_it_cannot_see(spec: ModelSpec, request: Request) -> None:
    parts = [part for message in request.messages for part in message.content if isinstance(part, Image | Audio)]
    if parts and not (spec.projector or spec.settings.get("mmproj") or spec.settings.get("projector")):
        what = "images" if isinstance(parts[0], Image) else "audio"
        raise BadRequest(f"model {spec.id!r} takes no {what}: it has no projector (mmproj)", param="messages")
    if any(isinstance(part, Image) and not part.url.startswith("data:") for part in parts):
        # The worker would fetch it, from wherever this machine can reach.
        raise BadRequest(
            "an image must be sent as a data: URL with base64 content, not as an address", param="messages"
        )


def _refuse_to_fill_in(spec: ModelSpec, request: Request) -> None:
    if request.completion is not None and request.completion.suffix and "insert" not in spec.model.capabilities:
        raise Unsupported(f'"{spec.id}" does not support insert', param="suffix")


def _refuse_to_weigh_the_prompt(request: Request) -> None:
    completion = request.completion
    if completion is not None and completion.echo and completion.logprobs is not None:
        raise Unsupported(
            "the embedded engine has no log-probabilities of a prompt; leave out 'echo' or 'logprobs'", param="logprobs"
        )


def _refuse_what_it_cannot_do(running: Running) -> None:
    if running.launch.encoder:
        raise Unsupported(f"model {running.model!r} only makes embeddings; it does not generate text", param="model")
