"""Which public names there are, what stands behind each, and where each is to go. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from drivetrain.config.schema import Config, Target
from drivetrain.policies.access import plain
from drivetrain.rollouts.plan import Plan, Rollout, assigned
from drivetrain.types import Model, ModelSpec, Value

DEFAULT = "default"


class Public(Value, frozen=True, kw_only=True):
    """A name that callers use."""

    name: str
    targets: tuple[Target, ...]  # what answers it today
    policy: str = DEFAULT
    written: bool = True  # in the configuration or the library; else an engine lists it
    busy: Rollout | None = None  # a rollout or an experiment of it, on its way


def publics(
    config: Config, library: Sequence[ModelSpec], listed: Mapping[str, Sequence[Model]], plan: Plan
) -> Sequence[Public]:
    """`listed`: what each engine has, in the order of the configuration."""
    found: dict[str, Public] = {}
    for public in (*_routed(config), *_stored(library), *_listed(listed, config)):
        found.setdefault(plain(public.name), _now(public, plan.rollouts.get(public.name)))
    return tuple(found.values())


def _routed(config: Config) -> Iterator[Public]:
    for name, route in config.models.items():
        yield Public(name=name, targets=route.targets, policy=route.policy)


def _stored(library: Sequence[ModelSpec]) -> Iterator[Public]:
    for spec in library:
        yield Public(name=spec.id, targets=(Target(engine=spec.engine, model=spec.remote_model or spec.id),))


def _listed(listed: Mapping[str, Sequence[Model]], config: Config) -> Iterator[Public]:
    """A name that several engines list is a pool of them, and is spelled as the first of them does."""
    pools: dict[str, list[Target]] = {}
    for engine, models in listed.items():
        for model in models:
            target = Target(engine=engine, model=model.id, weight=config.engines[engine].weight)
            pools.setdefault(plain(model.id), []).append(target)
    for targets in pools.values():
        yield Public(name=targets[0].model, targets=tuple(targets), written=False)


def _now(public: Public, rollout: Rollout | None) -> Public:
    if rollout is None:
        return public
    if rollout.state in ("running", "paused"):
        return replace(public, busy=rollout)
    return replace(public, targets=assigned(rollout, "").targets or public.targets, written=True)


def behind(public: Public, engine: str) -> str | None:
    """The engine's own name of the model that it answers this name with."""
    return next((target.model for target in public.targets if is_at(target, engine)), None)


def is_at(target: Target, engine: str) -> bool:
    """The engine itself, or an instance of it."""
    return target.engine == engine or target.engine.startswith(f"{engine}@")


def baseline(public: Public, target: str) -> tuple[Target, ...]:
    """What answers until it is shifted. A name that both engines list is answered by both, unless somebody says no."""
    kept = tuple(one for one in public.targets if public.written or not is_at(one, target))
    return kept or public.targets


def moved(public: Public, source: str, target: str, model: str) -> tuple[Target, ...]:
    """The same, with the new engine in the place of the old one."""
    found: dict[tuple[str, str], Target] = {}
    for one in baseline(public, target):
        new = replace(one, engine=target, model=model) if is_at(one, source) else one
        found.setdefault((new.engine, new.model), new)
    return tuple(found.values())
