"""`drivetrain migrate`: from one engine to another without an outage, and back at once.

Each public name gets a rollout of its own in the store, so a migration works whether a server runs or not, and holds on
every replica within a second.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.command import FAILED, Call, Existing, Failure, Missing, Misused, command, shared_options
from drivetrain.cli.migrating import comparing, planning
from drivetrain.cli.migrating.comparing import Comparison, Kind
from drivetrain.cli.migrating.judging import WORDS, Judged, verdict_of
from drivetrain.cli.migrating.survey import How, Survey, survey, validated
from drivetrain.cli.moments import LENGTH, PAST, shown
from drivetrain.cli.office import Office, office, told
from drivetrain.cli.plans import GUARDS, described
from drivetrain.cli.rollouts import stage_of
from drivetrain.cli.words import TAG
from drivetrain.config.schema import Policy
from drivetrain.errors import Conflict, DrivetrainError
from drivetrain.rollouts.evidence import mean_answer
from drivetrain.rollouts.plan import Rollout
from drivetrain.store.evidence import Sighting

NEXT = "next"
_WHY = "migrate {word} by {actor}"
Command = Callable[..., Any]


def _between(*, required: bool = True) -> Callable[[Command], Command]:
    """The options that name both engines."""

    def decorate(function: Command) -> Command:
        for option in (
            click.option("--map", "maps", type=TAG, multiple=True, help="What a model becomes: SOURCE=TARGET."),
            click.option("--to", "target", metavar="ENGINE", required=required, help="Where to."),
            click.option("--from", "source", metavar="ENGINE", required=required, help="Where from."),
        ):
            function = option(function)
        return function

    return decorate


_SINCE = click.option(
    "--since", "since_s", type=PAST, default="7d", show_default=True, help="From when on the ledger is looked at."
)
_WHICH = click.option("--migration", "which", metavar="NAME", help="Such as ollama-to-gpu. [default: the newest]")


# --- before it begins -------------------------------------------------------------------------------------------------


@command()
@_between()
@_SINCE
def check(call: Call, source: str, target: str, maps: Sequence[tuple[str, str]], since_s: float) -> int:
    """Tell what stands against a migration.

    Which model becomes which and why, what the new engine lacks, and what of it callers used. Exits with 1 if something
    blocks it.
    """
    with office(call) as at:
        found = asyncio.run(survey(call, at, source, target, dict(maps), since_s))
    verdict = verdict_of(found.judged)
    if call.json:
        output.emit({"verdict": verdict, "models": [_judged(one) for one in found.judged]})
    else:
        _show(found)
        click.echo(WORDS[verdict])
    return FAILED if verdict == "blocked" else 0


def _judged(one: Judged) -> dict[str, Any]:
    return {
        "name": one.name,
        "verdict": one.verdict,
        "match": told(one.match),
        "requests": one.used.requests,
        "dialects": dict(one.used.dialects),
        "findings": [told(finding) for finding in one.findings],
    }


def _show(found: Survey) -> None:
    headings = ("MODEL", found.source.name.upper(), found.target.name.upper(), "WHY", "REQUESTS", "VERDICT")
    output.table(headings, map(_row, found.judged))
    for one in found.judged:
        if one.findings:
            used = ", ".join(f"{times:,} x {dialect}" for dialect, times in sorted(one.used.dialects.items()))
            click.echo(f"\n{one.name}" + (f" (used: {used})" if used else ""))
        for finding in one.findings:
            click.echo(f"  {'blocks: ' if finding.blocks else ''}{finding.text}")
    click.echo()


def _row(one: Judged) -> tuple[str, ...]:
    becomes = one.match.target or "-"
    return (one.name, one.match.source, becomes, one.match.why, f"{one.used.requests:,}", WORDS[one.verdict])


@command()
@_between()
@_SINCE
@click.option("--model", "models", multiple=True, help="Move this public name alone; may be given several times.")
@click.option("--anyway", is_flag=True, help="Also what `check` says is blocked, but for what has no counterpart.")
@click.option("--least", "least_s", type=LENGTH, default="5m", show_default=True, help="How long a stage lasts.")
@click.option(
    "--requests", "least_requests", type=click.IntRange(1), default=100, show_default=True, help="Of each side in one."
)
@click.option("--guard", "guards", type=GUARDS, multiple=True, help="errors=0.02, first_token=1.5, cost=none, …")
@click.option("--shadow-usd", type=click.FloatRange(0, min_open=True), default=10.0, help="What copies may cost.")
def plan(
    call: Call,
    source: str,
    target: str,
    maps: Sequence[tuple[str, str]],
    since_s: float,
    models: Sequence[str],
    anyway: bool,
    least_s: float,
    least_requests: int,
    guards: Sequence[tuple[str, Any]],
    shadow_usd: float,
) -> None:
    """Write the rollouts of a migration.

    One for each public name that the source answers: copies first, then 1, 5, 25 and 100 % of the callers, with guards.
    They are paused, so nothing changes for callers before `migrate shift`.
    """
    with office(call) as at:
        found = asyncio.run(survey(call, at, source, target, dict(maps), since_s))
        going = _going(found, models, anyway=anyway)
        stage = {"least_s": least_s, "least_requests": least_requests}
        made = _make(at, found, going, stage=stage, guards=dict(guards), shadow={"usd": shadow_usd})
    _tell(call, planning.label(source, target), made)
    if not call.json:
        click.echo("planned, and paused; begin with: drivetrain migrate shift", err=True)


def _going(found: Survey, models: Sequence[str], *, anyway: bool) -> Sequence[Judged]:
    asked = found.named(models)
    blocked = [one for one in asked if one.verdict == "blocked"]
    if blocked and not anyway:
        raise Failure(f"{blocked[0].name!r} is blocked; see `drivetrain migrate check`, or name others with --model")
    going = [one for one in asked if one.match.target is not None]
    if not going:
        raise Failure("nothing is to be moved: no model has a counterpart; write --map SOURCE=TARGET")
    return going


def _make(at: Office, found: Survey, going: Sequence[Judged], **how: Mapping[str, Any]) -> Sequence[Rollout]:
    """All of them, or none."""
    made: list[Rollout] = []
    try:
        for one in going:
            public = found.public(one.name)
            policy = at.config.policies.get(public.policy, Policy())
            fields = planning.fields(public, one, found.source, found.target, policy, **how)
            begun = at.rollouts.create(fields, engines=at.config.engines, actor=at.actor)
            made.append(begun)
            made[-1] = at.rollouts.move(begun.id, None, "pause", why="planned", actor=at.actor)
    except DrivetrainError:
        for one_made in made:
            at.rollouts.move(one_made.id, None, "rollback", why="another could not be planned", actor=at.actor)
        raise
    return made


# --- side by side -----------------------------------------------------------------------------------------------------


@command()
@_between(required=False)
@_SINCE
@click.option("--model", "models", multiple=True, help="This public name alone; may be given several times.")
@click.option("--prompts", "path", type=Existing(), help="Prompts to ask, one a line, instead.")
@click.option("--count", type=click.IntRange(1), default=20, show_default=True, help="Of kept requests, at most.")
@click.option("--concurrency", type=click.IntRange(1), default=2, show_default=True, help="Requests at once.")
@click.option("--tokens", type=click.IntRange(1), default=64, show_default=True, help="Of each answer, at most.")
@click.option(
    "--alike", type=click.FloatRange(0, 1), default=0.0, help="Exit with 1 if they are less alike, of 0 to 1."
)
def validate(
    call: Call,
    source: str | None,
    target: str | None,
    maps: Sequence[tuple[str, str]],
    since_s: float,
    models: Sequence[str],
    alike: float,
    **how: Any,
) -> int:
    """Ask both engines the same, and compare them.

    What is asked are kept requests of callers, where their policy keeps them, else the prompts of a file or a few of
    our own: for words, and where callers have the model embed, for vectors. Nobody is charged. Without --from and --to
    it is the migration that is planned. Exits with 1 if the new engine fails where the old one does not, or if its
    vectors are of another length.
    """
    if (source is None) is not (target is None):
        raise Misused("name both --from and --to, or neither: then it is the migration that is planned")
    with office(call) as at:
        planned: Mapping[str, str] = {}
        if source is None or target is None:
            source, target, planned = _planned_pair(at)
        found = asyncio.run(survey(call, at, source, target, dict(maps), since_s, planned))
        compared = asyncio.run(validated(call, at, found, models, since_s, How(**how)))
        name = planning.label(source, target)
        both = [(one, _shadows(at, one.name, name) if one.of == "answers" else None) for one in compared]
    if call.json:
        output.emit({"models": [{**told(one), "shadows": shadows} for one, shadows in both]})
    else:
        for one, shadows in both:
            _compare(one, shadows)
    return FAILED if any(one.worse or one.apart(alike) for one in compared) else 0


def _planned_pair(at: Office) -> tuple[str, str, Mapping[str, str]]:
    """The engines of the newest migration, and which model becomes which in it."""
    name = _name_of(at, None)
    pairs = [(one, two) for one in at.config.engines for two in at.config.engines if planning.label(one, two) == name]
    if not pairs:
        raise Misused(f"the engines of migration {name!r} are not configured any more; name them with --from and --to")
    return (*pairs[0], planning.mapped(_of(at, name), *pairs[0]))


def _shadows(at: Office, model: str, name: str) -> dict[str, Any] | None:
    """What copies of requests told so far."""
    found = [one for one in at.all_rollouts(model=model) if planning.is_of(one, name)]
    if not found:
        return None
    sighting = Sighting(at.store, found[-1])
    sighting.read()
    answers = sighting.evidence().arm.answers
    return {"comparisons": sum(answers.values()), "alike": mean_answer(answers)}


_ALIKE: Mapping[Kind, str] = {
    "answers": "answers are alike by {:.0%}",
    "vectors": "vectors are alike by {:.1%} (cosine similarity)",
}


def _compare(one: Comparison, shadows: Mapping[str, Any] | None) -> None:
    headings = (one.name, f"{one.source.engine}/{one.source.model}", f"{one.target.engine}/{one.target.model}", "")
    output.table(headings, comparing.rows(one))
    if one.alike is not None:
        click.echo(_ALIKE[one.of].format(one.alike))
    if not one.fits:
        click.echo("vectors have another length: no index that is made already takes them")
    for side in (one.source, one.target):
        if side.failures:
            click.echo(f"{side.engine} failed: {side.why}")
    if shadows is not None and shadows["comparisons"]:
        click.echo(f"{shadows['comparisons']:,} copies of requests in this stage: alike by {shadows['alike']:.0%}")
    click.echo()


# --- on the way -------------------------------------------------------------------------------------------------------


class Share(click.ParamType[str | float]):
    """An option's value: a percent, or the next stage."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        if value == NEXT:
            return NEXT
        try:
            share = float(str(value).removesuffix("%"))
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            self.fail(f"{value!r} is neither a percent nor `{NEXT}`", param, ctx)
        return share


@command()
@click.option("--to", "share", type=Share(), default=NEXT, show_default=True, help="So many percent of the callers.")
@_WHICH
def shift(call: Call, share: str | float, which: str | None) -> None:
    """Send callers to the new engine.

    What is paused goes on in its stage; what runs goes to the next one. From there it goes on by itself, as the guards
    allow. `--to 25` goes to the stage with so many percent at once, whatever the guards say; there has to be such a
    stage.
    """
    with office(call) as at:
        name = _name_of(at, which)
        going = _on_its_way(at, name)
        if not isinstance(share, str):
            _check_share(going, share)
        moved = [_shifted(at, one, share) for one in going]
    _tell(call, name, moved)


def _check_share(going: Sequence[Rollout], share: float) -> None:
    """Before anything is moved. Raises `Misused` for a share that no stage has, or that callers are beyond already."""
    for one in going:
        shares = [stage.percent for stage in one.stages if stage.percent > 0]
        if share not in shares:
            there = ", ".join(f"{percent:g}" for percent in shares)
            raise Misused(f"--to {share:g}: {one.model!r} has no such stage; there are {there}")
    if all(_beyond(one, share) for one in going):
        now = going[0].stages[going[0].stage].percent
        back = "a share only grows; to send everybody back: drivetrain migrate rollback"
        raise Misused(f"--to {share:g}: {going[0].model!r} is at {now:g} % already; {back}")


def _beyond(one: Rollout, share: float) -> bool:
    return one.stages[one.stage].percent > share


def _shifted(at: Office, one: Rollout, share: str | float) -> Rollout:
    if not isinstance(share, str) and _beyond(one, share):
        return one
    why = _WHY.format(word="shift", actor=at.actor)
    begun = one.state == "paused"
    if begun:
        one = at.rollouts.move(one.id, None, "resume", why=why, actor=at.actor)
    if isinstance(share, str):
        return one if begun else at.rollouts.move(one.id, one.version, "advance", why=why, actor=at.actor)
    stage = planning.reached(one.stages, share)
    while one.state == "running" and one.stage < stage:
        try:
            one = at.rollouts.move(one.id, one.version, "advance", why=why, actor=at.actor)
        except Conflict:  # it went on by itself meanwhile
            one = at.rollouts.get(one.id)
    return one


@command()
@click.option("--why", default="", help="For the history.")
@_WHICH
def rollback(call: Call, why: str, which: str | None) -> None:
    """Send everybody back to the old engine.

    Everywhere within a second, also after the last stage, and for good: another try is another `migrate plan`.
    """
    with office(call) as at:
        name = _name_of(at, which)
        reason = why or _WHY.format(word="rollback", actor=at.actor)
        back = [_taken_back(at, one, reason) for one in _of(at, name)]
    _tell(call, name, back)


def _taken_back(at: Office, one: Rollout, why: str) -> Rollout:
    try:
        return at.rollouts.move(one.id, None, "rollback", why=why, actor=at.actor)
    except Conflict:  # a guard was faster
        return at.rollouts.get(one.id)


@command()
@_WHICH
def status(call: Call, which: str | None) -> None:
    """Tell where a migration stands."""
    with office(call) as at:
        name = _name_of(at, which)
        newest = {one.model: one for one in at.all_rollouts() if planning.is_of(one, name)}
    _tell(call, name, list(newest.values()))


def _name_of(at: Office, which: str | None) -> str:
    """The migration that is meant: the newest that has not been rolled back, else the newest."""
    every = at.all_rollouts()
    found = which or planning.newest(list(at.in_force().values())) or planning.newest(every)
    if found is None:
        raise Missing("no migration is planned; begin with `drivetrain migrate check`, then `drivetrain migrate plan`")
    if not any(planning.is_of(one, found) for one in every):
        raise Missing(f"there is no migration {found!r}; write SOURCE-to-TARGET, such as ollama-to-gpu")
    return found


def _of(at: Office, name: str) -> Sequence[Rollout]:
    """Those of its rollouts that are in force. Raises `Missing` if none is."""
    found = [one for one in at.in_force().values() if planning.is_of(one, name)]
    if not found:
        raise Missing(f"no rollout of migration {name!r} is in force; see: drivetrain migrate status")
    return found


def _on_its_way(at: Office, name: str) -> Sequence[Rollout]:
    found = [one for one in _of(at, name) if one.state != "done"]
    if not found:
        raise Missing(f"migration {name!r} is done; everybody is at the new engine")
    return found


def _tell(call: Call, name: str, rollouts: Sequence[Rollout]) -> None:
    if call.json:
        output.emit({"migration": name, "rollouts": [told(one) for one in rollouts]})
        return
    click.echo(f"migration {name}")
    output.table(("MODEL", "STATE", "STAGE", "SINCE", "NEW", "WHY", "ID"), map(_line, rollouts))


def _line(one: Rollout) -> tuple[str, ...]:
    new = described(one.arms[1])
    return (one.model, one.state.replace("_", " "), stage_of(one), shown(one.since_s), new, one.why or "-", one.id)


migrate = click.Group(
    "migrate",
    commands=[check, plan, validate, shift, rollback, status],
    params=shared_options(),
    help="Move models from one engine to another without an outage, and back at once.",
)
