"""What is found out about both engines of a migration, and how they compare when they are asked the same."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from drivetrain.cli.command import Call, Failure, Missing, Misused
from drivetrain.cli.migrating import ledger, replay, sides
from drivetrain.cli.migrating.comparing import Answer, Comparison, Kind, column, compared
from drivetrain.cli.migrating.judging import EMBEDS, Judged, Side, Used, judge
from drivetrain.cli.migrating.today import Public, behind, publics
from drivetrain.cli.office import Office
from drivetrain.engines import Engine
from drivetrain.policies.access import plain
from drivetrain.rollouts.plan import Plan
from drivetrain.types import Value

Ask = Callable[[Engine, str], Coroutine[Any, Any, Sequence[Answer]]]  # an engine and its model → what became of each


class Survey(Value, frozen=True, kw_only=True):
    source: Side
    target: Side
    publics: tuple[Public, ...]
    judged: tuple[Judged, ...]

    def public(self, name: str) -> Public:
        return next(one for one in self.publics if one.name == name)

    def named(self, models: Sequence[str]) -> Sequence[Judged]:
        """Those that are named, or all. Raises `Missing`."""
        wanted = {plain(model): model for model in models}
        found = [one for one in self.judged if not wanted or plain(one.name) in wanted]
        if missing := sorted(wanted.keys() - {plain(one.name) for one in found}):
            raise Missing(f"{self.source.name} does not answer {wanted[missing[0]]!r}; see: drivetrain migrate check")
        return found


async def survey(
    call: Call,
    at: Office,
    source: str,
    target: str,
    given: Mapping[str, str],
    since_s: float,
    planned: Mapping[str, str] = {},
) -> Survey:
    """Every public name that the source answers today. What was `planned` to become of a model counts where nobody
    says otherwise now. Raises `Failure` if an engine cannot be asked."""
    if source == target:
        raise Misused(f"--from and --to are both {source!r}")
    library = sides.stored(call)
    one, two = [await sides.side(call, at.config, name, library) for name in (source, target)]
    _check_given(given, one)
    becomes = {**given, **{name: one for name, one in planned.items() if name not in given}}
    listed = await sides.listed(call, at.config.engines, (one, two))
    names = tuple(publics(at.config, library, listed, Plan(rollouts=at.in_force())))
    judged = []
    for public in names:
        used = ledger.used(at.store, public.name, since_s) if behind(public, source) is not None else Used()
        if (found := judge(public, one, two, becomes, used, at.config)) is not None:
            judged.append(found)
    if not judged:
        raise Missing(f"engine {source!r} answers no public name: there is nothing to move")
    return Survey(source=one, target=two, publics=names, judged=tuple(judged))


def _check_given(given: Mapping[str, str], source: Side) -> None:
    """That each --map is of a model of the source; whether the target has the other is told model by model. Raises
    `Misused`."""
    for name, becomes in given.items():
        if all(plain(model.id) != plain(name) for model in source.models):
            there = ", ".join(sorted(model.id for model in source.models))
            raise Misused(f"--map {name}={becomes}: {source.name} has no model {name!r}; there are {there}")


class How(Value, frozen=True, kw_only=True):
    """How both engines are asked."""

    path: str | None  # of prompts, one a line
    count: int  # of kept requests, at most
    concurrency: int
    tokens: int  # of an answer, at most


async def validated(
    call: Call, at: Office, found: Survey, models: Sequence[str], since_s: float, how: How
) -> Sequence[Comparison]:
    """Both engines, asked the same one after the other, name by name."""
    wanted = [one for one in found.named(models) if one.match.target is not None]
    if not wanted:
        raise Failure("there is nothing to ask: no model has a counterpart")
    given = replay.written(how.path) if how.path is not None else ()
    return [
        await _compared(call, at, found, one, of, ask)
        for one in wanted
        for of, ask in _questions(found, one, given, partial(_kept, at, one, since_s, how.count), how)
    ]


def _questions(
    found: Survey, one: Judged, given: Sequence[str], kept: Callable[[Any], Iterator[Any]], how: How
) -> Iterator[tuple[Kind, Ask]]:
    """In words, unless it only embeds; for vectors if it only embeds, or if callers have it embed."""
    only_embeds = found.source.model(one.match.source).capabilities == {"embedding"}
    if not only_embeds:
        requests = replay.chosen(replay.prompt, given, kept(ledger.WORDS))
        yield "answers", partial(replay.in_words, requests=requests, at_once=how.concurrency, most_tokens=how.tokens)
    if only_embeds or one.used.embeds:
        texts = replay.chosen(replay.text, given, kept(EMBEDS))
        yield "vectors", partial(replay.as_vectors, requests=texts, at_once=how.concurrency)


def _kept(at: Office, one: Judged, since_s: float, count: int, readers: Mapping[str, Any]) -> Iterator[Any]:
    """The newest requests that are kept, looked for when the first is wanted. Those in words, the survey has seen as
    far as it looks."""
    if readers is ledger.WORDS and (count <= ledger.MOST_SAMPLES or len(one.used.samples) < ledger.MOST_SAMPLES):
        yield from one.used.samples[:count]
    else:
        yield from ledger.samples(at.store, ledger.asked(at.store, one.name, since_s), count, readers)


async def _compared(call: Call, at: Office, found: Survey, one: Judged, of: Kind, ask: Ask) -> Comparison:
    answers, columns = [], []
    for side, model in ((found.source, one.match.source), (found.target, one.match.target or "")):
        async with sides.reached(call, side.name, at.config.engines[side.name]) as engine:
            answers.append(await ask(engine, model))
        columns.append(column(side.name, model, answers[-1]))
    return compared(one.name, of, source=columns[0], target=columns[1], both=answers)
