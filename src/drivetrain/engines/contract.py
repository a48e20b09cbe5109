"""The definition of done for an engine, as tests that anybody's adapter can run. For test suites only.

    class TestMine(EngineContract):
        @pytest.fixture
        async def subject(self):
            engine = Mine("mine", EngineSettings(kind="mine"), host)
            yield Subject(engine=engine, model="a-model", running=count_of_running_generations)
            await engine.aclose()

It needs pytest with anyio's plugin (`anyio_mode = "auto"`), and in a conftest.py, for helpful failures,
`pytest.register_assert_rewrite("drivetrain.engines.contract")`. The subject may be shared by the tests of a class: only
the last one closes the engine.
"""
# ruff: noqa: S101 - these are tests

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from drivetrain.dialects import Surface
from drivetrain.engines import Engine
from drivetrain.errors import DrivetrainError, EngineError, ModelNotFound
from drivetrain.types import (
    ChoiceFinished,
    Completion,
    EmbedRequest,
    Event,
    Finished,
    Message,
    ReasoningDelta,
    Request,
    Response,
    Sampling,
    Text,
    TextDelta,
    fold,
)

AT_ONCE_S = 1.0  # how soon an engine must have stopped the work of a caller who has gone


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine to test, and what the suite has to know of it."""

    engine: Engine
    model: str  # one that it can run
    running: Callable[[], Awaitable[int]]  # generations in progress, as the engine's own side sees them
    talkative: str | None = None  # a model that answers at length; None: `model` does
    missing: str | None = "no-such-model"  # a model that it refuses; None: it takes any name
    answer: str | None = None  # the text that `model` answers, where that is known
    surfaces: Sequence[Surface] = ()  # those by which it is spoken to, for the rule of fidelity
    completes: bool = True  # takes bare prompts
    embeds: bool = False
    estimates: bool = False  # its server does not report usage
    concurrency: int = 8
    aborts: int = 40


def chat(model: str, max_tokens: int = 24) -> Request:
    message = Message(role="user", content=(Text(text="Tell me about the sea."),))
    return Request(model=model, messages=(message,), sampling=Sampling(max_tokens=max_tokens, seed=1), stream=True)


def bare(model: str, max_tokens: int = 24) -> Request:
    completion = Completion(prompts=("The sea is",))
    return Request(model=model, completion=completion, sampling=Sampling(max_tokens=max_tokens, seed=1), stream=True)


async def collect(engine: Engine, request: Request) -> list[Event]:
    events: list[Event] = []
    async with aclosing(engine.generate(request)) as batches:
        async for batch in batches:
            events.extend(batch)
    return events


async def answer_of(engine: Engine, request: Request) -> Response:
    return fold(await collect(engine, request))


async def idle(subject: Subject, within_s: float = AT_ONCE_S) -> None:
    """Returns when the engine's own side has nothing left to do. Raises `TimeoutError`."""
    async with asyncio.timeout(within_s):
        while await subject.running():  # noqa: ASYNC110 - the other side is a process that tells only when asked
            await anyio.sleep(0.01)


class EngineContract:
    """Every test takes the one fixture `subject`."""

    async def test_it_lists_its_models_under_its_name(self, subject: Subject) -> None:
        models = await subject.engine.models()
        assert subject.model in {model.id.removesuffix(":latest") for model in models} | {model.id for model in models}
        assert {model.engine for model in models} == {subject.engine.name}

    async def test_it_is_live_and_ready(self, subject: Subject) -> None:
        health = await subject.engine.health()
        assert (health.live, health.ready) == (True, True)

    async def test_a_generation_ends_in_exactly_one_finished(self, subject: Subject) -> None:
        events = await collect(subject.engine, chat(subject.model))
        assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
        assert [event.index for event in events if isinstance(event, ChoiceFinished)] == [0]

    async def test_a_generation_folds_to_its_answer(self, subject: Subject) -> None:
        [choice] = (await answer_of(subject.engine, chat(subject.model))).choices
        assert choice.reason in ("stop", "length")
        assert choice.text or choice.reasoning
        assert subject.answer in (None, choice.text)

    async def test_a_bare_prompt_is_completed(self, subject: Subject) -> None:
        if subject.completes:
            [choice] = (await answer_of(subject.engine, bare(subject.model))).choices
            assert choice.text
            assert subject.answer in (None, choice.text)

    async def test_it_reports_what_was_used(self, subject: Subject) -> None:
        usage = (await answer_of(subject.engine, chat(subject.model))).usage
        assert usage.completion > 0
        assert usage.estimated is subject.estimates
        assert usage.prompt > 0 or subject.estimates

    async def test_an_unknown_model_is_the_callers_mistake(self, subject: Subject) -> None:
        if subject.missing is None:
            return
        try:
            await collect(subject.engine, chat(subject.missing))
        except ModelNotFound as error:
            assert error.message
        else:
            raise AssertionError("it took a model that it does not have")

    async def test_closing_stops_the_work_at_once(self, subject: Subject) -> None:
        batches = subject.engine.generate(chat(subject.talkative or subject.model, 4000))
        async for batch in batches:
            if any(isinstance(event, TextDelta | ReasoningDelta) for event in batch):
                break
        assert await subject.running() == 1
        await batches.aclose()
        await idle(subject)

    async def test_cancelling_before_the_first_event_stops_the_work_at_once(self, subject: Subject) -> None:
        task = asyncio.ensure_future(collect(subject.engine, chat(subject.talkative or subject.model, 4000)))
        async with asyncio.timeout(10):
            while not await subject.running():  # noqa: ASYNC110 - as in `idle`
                await anyio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        await idle(subject)

    async def test_a_generator_that_never_starts_does_nothing(self, subject: Subject) -> None:
        await subject.engine.generate(chat(subject.model)).aclose()
        assert await subject.running() == 0

    async def test_generations_at_once_do_not_mix(self, subject: Subject) -> None:
        answers: list[Response] = []

        async def one() -> None:
            answers.append(await answer_of(subject.engine, chat(subject.model)))

        async with anyio.create_task_group() as group:
            for _ in range(subject.concurrency):
                group.start_soon(one)
        assert len(answers) == subject.concurrency
        for answer in answers:
            assert len(answer.choices) == 1
            assert subject.answer in (None, answer.choices[0].text)

    async def test_random_aborts_leak_nothing(self, subject: Subject) -> None:
        chance = random.Random(11)

        async def abort() -> None:
            with anyio.move_on_after(chance.random() * 0.05):
                await collect(subject.engine, chat(subject.talkative or subject.model, 4000))

        for _ in range(max(1, subject.aborts // subject.concurrency)):
            async with anyio.create_task_group() as group:
                for _ in range(subject.concurrency):
                    group.start_soon(abort)
        await idle(subject, within_s=2 * AT_ONCE_S)
        await self.test_a_generation_folds_to_its_answer(subject)

    async def test_frames_are_kept_for_a_caller_of_the_same_surface(self, subject: Subject) -> None:
        for surface in subject.surfaces:
            events = await collect(subject.engine, self._through(surface, subject.model))
            assert b"".join(event.raw or b"" for event in events)
            assert [event for event in events if isinstance(event, TextDelta) and event.raw is None] == []

    async def test_no_frame_is_kept_for_a_caller_of_another_dialect(self, subject: Subject) -> None:
        events = await collect(subject.engine, chat(subject.model))
        assert [event for event in events if event.raw is not None] == []

    @staticmethod
    def _through(surface: Surface, model: str) -> Request:
        """A request as the surface decodes it from a caller."""
        try:
            return surface.decode_request(surface.encode_request(chat(model)))
        except DrivetrainError:
            return surface.decode_request(surface.encode_request(bare(model)))

    async def test_embeddings_come_one_per_input_in_order(self, subject: Subject) -> None:
        if subject.embeds:
            texts = ("the sea", "a mountain", "the sea")
            vectors = (await subject.engine.embed(EmbedRequest(model=subject.model, inputs=texts))).vectors
            assert len(vectors) == len(texts)
            assert len({len(vector) for vector in vectors}) == 1

    async def test_unloading_what_is_not_loaded_is_no_error(self, subject: Subject) -> None:
        await subject.engine.unload(subject.missing or "no-such-model")

    async def test_once_closed_it_fails_cleanly(self, subject: Subject) -> None:
        """The last test: it closes the engine."""
        await subject.engine.aclose()
        await subject.engine.aclose()
        health = await subject.engine.health()
        assert not health.ready
        try:
            await collect(subject.engine, chat(subject.model))
        except EngineError as error:
            assert error.message
        else:
            raise AssertionError("a closed engine generated")
