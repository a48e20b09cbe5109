"""What stands against moving a model from one engine to another. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from drivetrain.cli.migrating.mapping import Match, match, traits
from drivetrain.cli.migrating.today import Public, behind, is_at
from drivetrain.config.schema import Config
from drivetrain.dialects import ollama, openai
from drivetrain.errors import Unsupported
from drivetrain.parameters import PARAMETERS
from drivetrain.types import Audio, Capability, EmbedRequest, Image, Model, Request, Value

Verdict = Literal["ready", "remarks", "blocked"]
WORDS: Mapping[Verdict, str] = {"ready": "ready", "remarks": "ready with remarks", "blocked": "blocked"}
_NEEDED: Mapping[Capability, str] = {
    "tools": "tools",
    "vision": "images",
    "audio": "audio",
    "embedding": "embeddings",
    "thinking": "thinking",
    "insert": "text with a gap to fill",
}
# How requests for vectors come, and how each is read.
EMBEDS: Mapping[str, Callable[[bytes], EmbedRequest]] = {
    "ollama.embed": ollama.decode_embed_request,
    "ollama.embeddings": ollama.decode_legacy_embed_request,
    openai.EMBEDDINGS: openai.decode_embed_request,
}
_OPENAI = frozenset({"openai", "vllm", "sglang", "llama-server"})
_CONTEXT = "num_ctx"


class Made(Value, frozen=True, kw_only=True):
    """What the source does with a model that no other engine knows of: a Modelfile's lines."""

    system: str = ""
    parameters: Mapping[str, Any] = {}  # by Ollama's names
    messages: int = 0


class Side(Value, frozen=True, kw_only=True):
    """An engine of a migration."""

    name: str
    kind: str
    models: tuple[Model, ...]
    made: Mapping[str, Made] = {}  # by model

    @property
    def speaks(self) -> str:
        """Which API requests go out by: "" for an engine of another kind."""
        return "openai" if self.kind in _OPENAI else self.kind if self.kind == "ollama" else ""

    def model(self, name: str) -> Model:
        return next((model for model in self.models if model.id == name), Model(id=name))


class Used(Value, frozen=True, kw_only=True):
    """What callers did with a public name lately, as far as it is kept."""

    requests: int = 0
    dialects: Mapping[str, int] = {}  # requests by how they came: "ollama.chat", …
    longest: int = 0  # tokens of the longest prompt with its answer
    samples: tuple[Request, ...] = ()  # of bodies that are kept: those that are answered in words

    @property
    def embeds(self) -> bool:
        return bool(EMBEDS.keys() & self.dialects.keys())


class Finding(Value, frozen=True, kw_only=True):
    blocks: bool = False
    text: str


class Judged(Value, frozen=True, kw_only=True):
    """A public name whose requests the source answers."""

    name: str
    match: Match
    used: Used
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        if any(finding.blocks for finding in self.findings):
            return "blocked"
        return "remarks" if self.findings else "ready"

    @property
    def goes(self) -> bool:
        """Whether it is moved: a name that nobody wrote or used stays where it is if it has no counterpart."""
        return self.match.target is not None and self.verdict != "blocked"


def judge(
    public: Public, source: Side, target: Side, given: Mapping[str, str], used: Used, config: Config
) -> Judged | None:
    """None for a name that the source does not answer."""
    model = behind(public, source.name)
    if model is None:
        return None
    found = match(source.model(model), target.models, given)
    findings = tuple(_findings(public, source, target, found, used, config))
    return Judged(name=public.name, match=found, used=used, findings=findings)


def verdict_of(judged: Sequence[Judged]) -> Verdict:
    """Of all together; where nothing would be moved, it is blocked."""
    verdicts = {one.verdict for one in judged}
    blocked = "blocked" in verdicts or not any(one.goes for one in judged)
    return "blocked" if blocked else "remarks" if "remarks" in verdicts else "ready"


def _findings(
    public: Public, source: Side, target: Side, found: Match, used: Used, config: Config
) -> Iterator[Finding]:
    if public.busy is not None:
        end = f"end it first: drivetrain {public.busy.kind}s"
        yield Finding(blocks=True, text=f"{public.busy.kind} {public.busy.id} of it is {public.busy.state}; {end}")
    if found.target is None:
        yield _homeless(public, found, used)
        return
    one, other = source.model(found.source), target.model(found.target)
    yield from _of_models(one, other, found, used)
    yield from _of_abilities(one, other, target, used)
    yield from _of_context(one, other, source, used)
    yield from _of_making(source.made.get(found.source, Made()), target)
    yield from _of_use(used, target)
    yield from _of_policy(public, target, config)
    if not public.written and any(is_at(one, target.name) for one in public.targets):
        yield Finding(text=f"both engines list it, so both answer it today; `plan` leaves it to {source.name} alone")


def _homeless(public: Public, found: Match, used: Used) -> Finding:
    choices = f" ({', '.join(found.choices)})" if found.choices else ""
    needed = public.written or used.requests > 0
    return Finding(blocks=needed, text=f"{found.why}{choices}" if needed else f"stays: {found.why}{choices}, not used")


def _of_models(one: Model, other: Model, found: Match, used: Used) -> Iterator[Finding]:
    mine, yours = traits(one), traits(other)
    if mine.quantization and yours.quantization and mine.quantization != yours.quantization:
        was, becomes = mine.quantization.upper(), yours.quantization.upper()
        yield Finding(text=f"{was} becomes {becomes}: its answers will differ, and so will memory and speed")
    if "not told" in found.why:
        yield Finding(text=f"matched by {found.why}: make sure that {other.id} is the same model")
    if (one.capabilities == {"embedding"} or used.embeds) and mine != yours:
        yield Finding(text="vectors of another engine or quantisation may not fit an index that is made already")


def _of_abilities(one: Model, other: Model, target: Side, used: Used) -> Iterator[Finding]:
    lacking = [ability for ability in _NEEDED if ability in one.capabilities - other.capabilities]
    if not lacking:
        return
    words = ", ".join(_NEEDED[ability] for ability in lacking)
    if not other.capabilities:
        how = "; vLLM calls tools only with --enable-auto-tool-choice" if target.kind == "vllm" else ""
        yield Finding(text=f"{target.name} does not tell whether {other.id} has {words}{how}")
    else:
        wanted = [ability for ability in lacking if ability in _wanted(used)]
        yield Finding(blocks=bool(wanted), text=f"{other.id} has no {words}" + (", and is asked for" if wanted else ""))


def _wanted(used: Used) -> set[Capability]:
    """What callers are known to need."""
    wanted: set[Capability] = {"embedding"} if used.embeds else set()
    wanted |= {"tools"} if any(sample.tools for sample in used.samples) else set()
    parts = [part for sample in used.samples for message in sample.messages for part in message.content]
    wanted |= {"vision"} if any(isinstance(part, Image) for part in parts) else set()
    wanted |= {"audio"} if any(isinstance(part, Audio) for part in parts) else set()
    return wanted | ({"insert"} if any(one.completion and one.completion.suffix for one in used.samples) else set())


def _of_context(one: Model, other: Model, source: Side, used: Used) -> Iterator[Finding]:
    has = other.context_length
    loaded = source.made.get(one.id, Made()).parameters.get(_CONTEXT)
    if has is not None and used.longest > has:
        yield Finding(blocks=True, text=f"a request had {used.longest:,} tokens, and {other.id} takes {has:,}")
    elif has is not None and (wants := loaded or one.context_length) is not None and has < wants:
        yield Finding(text=f"context of {has:,} tokens instead of {wants:,}; the longest seen had {used.longest:,}")
    elif has is None and one.context_length is not None:
        yield Finding(text=f"its context is not told; the longest request seen had {used.longest:,} tokens")


def _of_making(made: Made, target: Side) -> Iterator[Finding]:
    if made.system:
        how = "keep it with `drivetrain prompts add`, and name it as `prompt` of its policy"
        yield Finding(text=f"its Modelfile has a system prompt, which {target.name} does not know; {how}")
    if made.messages:
        yield Finding(text=f"its Modelfile begins with {made.messages} messages, which {target.name} does not know")
    if lost := sorted(name for name in made.parameters if name not in PARAMETERS and name != _CONTEXT):
        yield Finding(text=f"its Modelfile sets {', '.join(lost)}, for which {target.name} has no word")


def _of_use(used: Used, target: Side) -> Iterator[Finding]:
    for text, times in _refused(used, target).items():
        yield Finding(blocks=True, text=f"{times} of {len(used.samples)} kept requests cannot go there: {text}")
    if target.speaks == "openai" and (lost := sorted({name for one in used.samples for name in _unsaid(one)})):
        yield Finding(text=f"callers send {', '.join(lost)}, for which {target.name} has no word: left out")
    if used.dialects.get("ollama.generate") and target.speaks != "ollama":
        yield Finding(text="callers of /api/generate who send `context` of the source: that conversation is forgotten")


def _refused(used: Used, target: Side) -> Mapping[str, int]:
    """By what is written to such an engine, request by request."""
    refused: dict[str, int] = {}
    for sample in used.samples:
        try:
            _written(sample, target.speaks)
        except Unsupported as error:
            refused[error.message] = refused.get(error.message, 0) + 1
    return refused


def _written(sample: Request, speaks: str) -> None:
    if speaks == "ollama":
        ollama.surface_for(sample).encode_request(sample)
    elif speaks == "openai":
        (openai.CHAT if sample.completion is None else openai.COMPLETIONS).encode_request(sample)


def _unsaid(sample: Request) -> Iterator[str]:
    yield from (name for name in sample.options if name not in ("truncate", "shift"))


def _of_policy(public: Public, target: Side, config: Config) -> Iterator[Finding]:
    policy = config.policies.get(public.policy)
    if policy is not None and policy.settings and target.speaks == "openai":
        names = ", ".join(sorted(policy.settings))
        yield Finding(text=f"policy {public.policy!r} sets {names} for loading, which {target.name} does itself")
