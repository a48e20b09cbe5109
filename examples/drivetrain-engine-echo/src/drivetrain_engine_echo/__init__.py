"""An engine that answers with what it was told, a word at a time: small, and it keeps the whole contract."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any

import anyio
import msgspec

from drivetrain.engines import EngineSettings, Host
from drivetrain.errors import BadRequest, EngineUnavailable, ModelNotFound, Unsupported
from drivetrain.types import (
    ChoiceFinished,
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    Health,
    Loaded,
    Model,
    Request,
    TextDelta,
    Usage,
)

MODEL = "echo"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members of the engine's entry in `drivetrain.yaml` that only this kind has."""

    pause_s: Annotated[float, msgspec.Meta(ge=0)] = 0.02  # before each word


class Echo:
    options_type = Options

    def __init__(self, name: str, settings: EngineSettings, host: Host) -> None:
        try:
            options = msgspec.convert(settings.options, Options)
        except msgspec.ValidationError as error:
            raise BadRequest(f"engines.{name}: {error}") from error
        self.name = name
        self.kind = settings.kind
        self.running = 0
        self._pause_s = options.pause_s
        self._closed = False

    async def models(self) -> Sequence[Model]:
        return [Model(id=MODEL, engine=self.name, capabilities=frozenset({"completion"}))]

    async def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        self._check(request.model)
        heard = _words(_heard(request))
        said = heard[: request.sampling.max_tokens]
        self.running += 1
        try:
            for word in said:
                await anyio.sleep(self._pause_s)  # raises if the caller has gone
                yield [TextDelta(text=word)]
        finally:
            self.running -= 1
        usage = Usage(prompt=len(heard), completion=len(said))
        yield [ChoiceFinished(reason="length" if len(said) < len(heard) else "stop"), Finished(usage=usage)]

    async def embed(self, request: EmbedRequest) -> Embeddings:
        raise Unsupported("an echo has no embeddings")

    async def health(self) -> Health:
        return Health(live=not self._closed, ready=not self._closed, running=self.running)

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        self._check(model)

    async def unload(self, model: str) -> None:
        """Nothing to do: an echo takes no memory."""

    async def loaded(self) -> Sequence[Loaded]:
        return ()

    async def aclose(self) -> None:
        self._closed = True

    def _check(self, model: str) -> None:
        if self._closed:
            raise EngineUnavailable(f"engine {self.name!r} is closed")
        if model != MODEL:
            raise ModelNotFound(f"engine {self.name!r} has no model {model!r}; it has {MODEL!r}")


def _heard(request: Request) -> str:
    """The last message of a chat, or the first prompt."""
    if request.completion is None:
        return request.messages[-1].text if request.messages else ""
    prompt = request.completion.prompts[0]
    if not isinstance(prompt, str):
        raise Unsupported("an echo takes text, not tokens", param="prompt")
    return prompt


def _words(text: str) -> list[str]:
    """Pieces that spell the text again when they are put together."""
    return re.findall(r"\s*\S+|\s+", text)
