"""What is found out about both engines of a migration, and how they compare when they are asked the same."""

from collections.abc import Mapping, Sequence

from drivetrain.cli.command import Call, Failure, Missing, Misused
from drivetrain.cli.migrating import ledger, replay, sides
from drivetrain.cli.migrating.comparing import Comparison, column, likeness
from drivetrain.cli.migrating.judging import Judged, Side, Used, judge
from drivetrain.cli.migrating.today import Public, behind, publics
from drivetrain.cli.office import Office
from drivetrain.policies.access import plain
from drivetrain.rollouts.plan import Plan
from drivetrain.types import Request, Value

WARM = "Hi."


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


async def survey(call: Call, at: Office, source: str, target: str, given: Mapping[str, str], since_s: float) -> Survey:
    """Every public name that the source answers today. Raises `Failure` if an engine cannot be asked."""
    if source == target:
        raise Misused(f"--from and --to are both {source!r}")
    library = sides.stored(call)
    one, two = [await sides.side(call, at.config, name, library) for name in (source, target)]
    listed = await sides.listed(call, at.config, (one, two))
    names = tuple(publics(at.config, library, listed, Plan(rollouts=at.in_force())))
    judged = []
    for public in names:
        used = ledger.used(at.store, public.name, since_s) if behind(public, source) is not None else Used()
        if (found := judge(public, one, two, given, used, at.config)) is not None:
            judged.append(found)
    if not judged:
        raise Missing(f"engine {source!r} answers no public name: there is nothing to move")
    return Survey(source=one, target=two, publics=names, judged=tuple(judged))


async def validated(
    call: Call,
    at: Office,
    found: Survey,
    models: Sequence[str],
    since_s: float,
    *,
    path: str | None,
    count: int,
    concurrency: int,
    tokens: int,
) -> Sequence[Comparison]:
    """Both engines, asked the same one after the other, name by name."""
    wanted = [one for one in found.named(models) if one.match.target is not None]
    spoken = [one for one in wanted if found.source.model(one.match.source).capabilities != {"embedding"}]
    if not spoken:
        raise Failure("there is nothing to ask: no model that answers in words has a counterpart")
    return [
        await _compared(call, at, found, one, _prompts(at, one.name, since_s, path, count), concurrency, tokens)
        for one in spoken
    ]


def _prompts(at: Office, name: str, since_s: float, path: str | None, count: int) -> Sequence[Request]:
    """Those of a file, else those that are kept, else our own."""
    if path is not None:
        return replay.written(path)
    kept = tuple(ledger.samples(at.store, ledger.asked(at.store, name, since_s), count))
    return kept or [replay.prompt(text) for text in replay.OPENING]


async def _compared(
    call: Call, at: Office, found: Survey, one: Judged, prompts: Sequence[Request], at_once: int, tokens: int
) -> Comparison:
    becomes = one.match.target or ""
    answers, columns = [], []
    for side, model in ((found.source, one.match.source), (found.target, becomes)):
        asked = [replay.settled(request, model, tokens) for request in prompts]
        async with sides.reached(call, side.name, at.config.engines[side.name]) as engine:
            await replay.answer(engine, replay.settled(replay.prompt(WARM), model, 1))  # loading it is not compared
            answers.append(await replay.answers(engine, asked, at_once))
        columns.append(column(side.name, model, answers[-1]))
    return Comparison(name=one.name, source=columns[0], target=columns[1], alike=likeness(*answers))
