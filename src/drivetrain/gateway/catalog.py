"""Which public names exist, and what stands behind each: routes of the configuration, the library, engines' own lists.

A route hides a library model of the same name; a library model hides what engines list. A name that several engines
list is a pool of them. Names match as in Ollama: exactly, with `:latest` added or dropped, in any case.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from drivetrain.config.schema import Config, Policy, Target
from drivetrain.errors import BadRequest, ModelNotFound
from drivetrain.gateway.pool import Member
from drivetrain.policies.access import plain
from drivetrain.rollouts.plan import Prompt
from drivetrain.types import Model, ModelSpec, Value

DEFAULT_POLICY = "default"


class Library(Protocol):
    """The part of the library that the catalog reads."""

    def lookup(self, model: str) -> ModelSpec: ...
    def list(self) -> Sequence[ModelSpec]: ...


class Entry(Value, frozen=True, kw_only=True):
    """A public name, resolved."""

    name: str
    targets: Sequence[Target]
    policy_name: str = DEFAULT_POLICY
    policy: Policy = Policy()
    fallbacks: tuple[str, ...] = ()  # public names to be tried after the targets
    spec: ModelSpec | None = None  # of a library model
    rollout: str = ""  # of an arm of a rollout: "ROLLOUT:ARM", for the ledger
    settings: Mapping[str, Any] = {}  # of the arm, over the policy's
    parameters: Mapping[str, Any] = {}  # likewise
    prompt: Prompt | None = None  # what requests get as their system prompt
    spill: "Entry | None" = None  # where requests of the arm go when its engines fail

    @property
    def prompt_version(self) -> str:
        return self.prompt.reference if self.prompt is not None else ""


class Catalog:
    """A view over one configuration snapshot, the library and the engines; holds nothing of its own but look-ups."""

    def __init__(
        self,
        config: Config,
        library: Library,
        members: Mapping[str, Member],
        families: Mapping[str, Sequence[str]] = {},
    ) -> None:
        """`families`: engines whose instances are discovered, with the names of those."""
        self._library = library
        self._members = members
        self._families = families
        self._drained = frozenset(name for name, member in members.items() if member.drained)
        self._policy = config.policies.get(DEFAULT_POLICY, Policy())
        self._routes = {
            name: Entry(
                name=name,
                targets=self.placed(route.targets),
                policy_name=route.policy,
                policy=config.policies.get(route.policy, Policy()),
                fallbacks=route.fallbacks,
            )
            for name, route in config.models.items()
        }

    def resolve(self, model: str) -> Entry:
        """Raises `ModelNotFound`, naming what there is."""
        if (entry := self._routes.get(model)) is not None:
            return entry
        if (entry := self._routed_alike(model)) is not None:
            return entry
        try:
            return self._from_library(self._library.lookup(model))
        except ModelNotFound:
            if targets := self._discovered(model):
                return Entry(name=targets[0].model, targets=targets, policy=self._policy)  # one for all spellings
            raise

    def _routed_alike(self, model: str) -> Entry | None:
        wanted = plain(model)
        return next((entry for name, entry in self._routes.items() if plain(name) == wanted), None)

    def _from_library(self, spec: ModelSpec) -> Entry:
        target = Target(engine=spec.engine, model=spec.remote_model or spec.id)
        return Entry(name=spec.id, targets=self.placed((target,)), policy=self._policy, spec=spec)

    def placed(self, targets: Sequence[Target]) -> Sequence[Target]:
        """The same, with every instance in the place of the engine that it is one of, and those that were taken out of
        rotation without weight; if that is all of them, whoever asks one is told so."""
        if not self._families and not self._drained:
            return targets
        found = tuple(one for target in targets for one in self._instances(target))
        able = tuple(replace(one, weight=0) if one.engine in self._drained else one for one in found)
        return able if any(one.weight for one in able) else found

    def _instances(self, target: Target) -> Sequence[Target]:
        names = self._families.get(target.engine)
        return [replace(target, engine=name) for name in names] if names else (target,)

    def _discovered(self, model: str) -> Sequence[Target]:
        wanted = plain(model)
        found = [
            Target(engine=member.name, model=found.id, weight=member.config.weight)
            for member in self._members.values()
            if not member.embedded
            for found in member.models
            if plain(found.id) == wanted
        ]
        return self.placed(tuple(found))

    def models(self) -> Sequence[Model]:
        """Every public model once, as far as known with its details."""
        listed: dict[str, Model] = {}
        for model in self._all():
            listed.setdefault(plain(model.id), model)
        return tuple(listed.values())

    def _all(self) -> Iterator[Model]:
        for entry in self._routes.values():
            yield self._described(entry)
        for spec in self._library.list():
            yield replace(spec.model, id=spec.id, engine=spec.engine)
        for member in self._members.values():
            if not member.embedded:
                yield from (_with_digest(replace(model, engine=member.name)) for model in member.models)

    def describe(self, name: str) -> Model:
        """One model's details. Raises `ModelNotFound`."""
        return self._described(self.resolve(name))

    def _described(self, entry: Entry) -> Model:
        if entry.spec is not None:
            return replace(entry.spec.model, id=entry.spec.id, engine=entry.spec.engine)
        target = entry.targets[0]
        member = self._members.get(target.engine)
        known = next((model for model in member.models if model.id == target.model), None) if member else None
        if known is None and member is not None and member.embedded:
            known = stored(self._library, target.model)
        model = known or Model(id=entry.name, capabilities=frozenset({"completion"}))
        return _with_digest(replace(model, id=entry.name, engine=target.engine))


def stored(library: Library, name: str) -> Model | None:
    """A library model; None if there is none, or a broken one, of which nothing is known until it is mended."""
    try:
        return library.lookup(name).model
    except (BadRequest, ModelNotFound):
        return None


def _with_digest(model: Model) -> Model:
    """Clients of Ollama expect a digest of every model: for one without weights here, that of its name and engine."""
    if model.digest:
        return model
    return replace(model, digest=hashlib.sha256(f"{model.engine}/{model.id}".encode()).hexdigest())
