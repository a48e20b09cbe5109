"""Which arm of a rollout a request goes to, which system prompt it gets, and what that changes of its model's entry."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from drivetrain.config.schema import Target
from drivetrain.errors import BadRequest, StoreAway
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.meter import Call
from drivetrain.rollouts.plan import SHADOW, Arm, Plan, Prompt, Rollout, assigned
from drivetrain.types import EmbedRequest, Request

HEADER = "x-drivetrain-prompt"
SYSTEM = ("system", "developer")
MOST = 512  # entries that are remembered
_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_metadata = msgspec.json.Decoder(Mapping[str, str | int | float]).decode


class _Made(NamedTuple):
    """An entry, and what it was made of."""

    entry: Entry
    rollout: Rollout | None
    prompt: Prompt | None
    side: Entry


class Arms:
    """Owns the entries of arms that were met, for as long as what they are made of stays the same."""

    def __init__(self, plan: Callable[[], Plan], placed: Callable[[Sequence[Target]], Sequence[Target]]) -> None:
        """`placed`: targets as they are now, see `Catalog.placed`."""
        self._plan = plan
        self._placed = placed
        self._made: dict[tuple[str, str, str], _Made] = {}

    def of(self, entry: Entry, request: Request | EmbedRequest, call: Call) -> Entry:
        """The entry as this request finds it.

        Raises `BadRequest` for a prompt that the caller asked for in vain, `StoreAway` for one of a policy or rollout
        that is not known here.
        """
        plan = self._plan()
        rollout = plan.rollouts.get(entry.name)
        if rollout is None and entry.policy.prompt is None and not call.prompt:
            return entry
        if rollout is not None and call.prompt and any(arm.prompt for arm in rollout.arms):
            rollout = None  # who says which prompt it has to be takes no part
        arm = assigned(rollout, subject(request, call)) if rollout is not None else None
        prompt = self._prompt(plan, entry, arm, request, call)
        return self._side(entry, rollout, arm, prompt)

    def sides(self, entry: Entry) -> Iterator[Entry]:
        """The entry as each arm of its rollout makes it; itself where there is none."""
        plan = self._plan()
        rollout = plan.rollouts.get(entry.name)
        if rollout is None and entry.policy.prompt is None:
            yield entry
            return
        for arm in rollout.arms if rollout is not None else (None,):
            prompt = plan.prompts.get((arm.prompt if arm is not None else None) or entry.policy.prompt or "")
            yield self._side(entry, rollout, arm, prompt)

    def mirror(self, entry: Entry, rollout: Rollout, request: Request, call: Call) -> Entry:
        """The entry as the new arm makes it, for a copy of a request. Raises as `of`."""
        arm = rollout.arms[1]
        changed = self._with(entry, arm, self._prompt(self._plan(), entry, arm, request, call))
        return replace(changed, rollout=f"{rollout.id}:{arm.name}{SHADOW}", fallbacks=())

    def rollout(self, model: str) -> Rollout | None:
        """The one of a public model name."""
        return self._plan().rollouts.get(model)

    def _prompt(
        self, plan: Plan, entry: Entry, arm: Arm | None, request: Request | EmbedRequest, call: Call
    ) -> Prompt | None:
        """None also where it has no place: a raw text, or a request with a system prompt of its own."""
        wanted = call.prompt or (arm.prompt if arm is not None else None) or entry.policy.prompt
        if wanted is None or not isinstance(request, Request) or not request.messages:
            return None
        if any(message.role in SYSTEM for message in request.messages):
            if call.prompt:
                raise BadRequest(f"{HEADER} and a system message do not go together; send one of them", param=HEADER)
            return None
        if (found := plan.prompts.get(wanted)) is not None:
            return found
        if call.prompt:
            known = ", ".join(sorted(plan.prompts)[:10]) or "none"
            raise BadRequest(f"there is no prompt {wanted!r}; there is: {known}", param=HEADER)
        raise StoreAway(f"prompt {wanted!r} of model {entry.name!r} is not known here", retry_after_s=1.0)

    def _side(self, entry: Entry, rollout: Rollout | None, arm: Arm | None, prompt: Prompt | None) -> Entry:
        place = (entry.name, arm.name if arm is not None else "", prompt.reference if prompt is not None else "")
        made = self._made.get(place)
        if made is None or made.entry is not entry or made.rollout is not rollout or made.prompt is not prompt:
            if len(self._made) >= MOST:
                self._made.clear()
            made = self._made[place] = _Made(entry, rollout, prompt, self._changed(entry, rollout, arm, prompt))
        return made.side

    def _changed(self, entry: Entry, rollout: Rollout | None, arm: Arm | None, prompt: Prompt | None) -> Entry:
        """The entry with what an arm changes of it."""
        if rollout is None or arm is None:
            return replace(entry, prompt=prompt)
        baseline = rollout.arms[0]
        spill = None
        if arm is not baseline and rollout.state != "done" and (arm.targets or arm.settings or arm.parameters):
            spill = replace(self._with(entry, baseline, prompt), rollout=f"{rollout.id}:{baseline.name}:spill")
        return replace(self._with(entry, arm, prompt), rollout=f"{rollout.id}:{arm.name}", spill=spill)

    def _with(self, entry: Entry, arm: Arm, prompt: Prompt | None) -> Entry:
        """With targets of its own it is no longer the one model of the library that it was."""
        own = arm.targets is not None
        return replace(
            entry,
            targets=self._placed(arm.targets) if arm.targets is not None else entry.targets,
            spec=None if own else entry.spec,
            settings=arm.settings,
            parameters=arm.parameters,
            prompt=prompt,
        )


def subject(request: Request | EmbedRequest, call: Call) -> str:
    """Whom a request counts for when callers are told apart: its key, else what tells it from others."""
    user = request.user if isinstance(request, Request) else None
    return call.who.key_id or call.session or user or call.client or call.id


def rendered(prompt: Prompt, request: Request) -> str:
    """The text of a prompt. `{name}` stands for a value of the request's `metadata`; what has none stays as it is."""
    if "{" not in prompt.text:
        return prompt.text
    values = _values(request)
    return _VARIABLE.sub(lambda found: str(values.get(found[1], found[0])), prompt.text)


def _values(request: Request) -> Mapping[str, str | int | float]:
    given = request.source.fields.get("metadata") if request.source is not None else None
    if given is None:
        return {}
    try:
        return _metadata(given)
    except msgspec.DecodeError:
        return {}
