"""Which model of one engine is which of another: by name, or by family, size and quantisation. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from drivetrain.policies.access import plain
from drivetrain.types import Model, Value

# Words of names that tell no model from another: who made it, and the form of its files.
_NOISE: Final = frozenset({"gguf", "hf", "meta", "google", "microsoft", "mistralai", "ibm", "latest", "unsloth"})
_TUNED: Final = frozenset({"instruct", "chat", "it", "inst"})  # most engines have the model that follows instructions
_BARE: Final = frozenset({"base", "pt", "pretrained"})
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[mb]")
_VERSION = re.compile(r"v?\d+(?:\.\d+)*")
_QUANTIZATION = re.compile(
    r"(?<![a-z0-9])(i?q\d(?:_[a-z0-9]+)*|[bf]f?p?16|f32|fp8|fp4|awq|gptq|int[48]|4bit|8bit|mxfp4|nvfp4|w\d+a\d+)(?![a-z0-9])"
)
_APART = re.compile(r"[-_:@/\s]+")
_NEAR = 0.15  # of a size: what is called 7b may have 7.6 billion parameters


class Match(Value, frozen=True, kw_only=True):
    """What a model becomes."""

    source: str
    target: str | None  # None: nobody can tell
    why: str
    choices: tuple[str, ...] = ()  # where several might be meant


class Traits(Value, frozen=True, kw_only=True):
    """What a name says."""

    stem: str  # `llama3.1`
    size: str = ""  # `8b`
    quantization: str = ""
    bare: bool = False  # it was not taught to follow instructions


def match(source: Model, offered: Sequence[Model], given: Mapping[str, str]) -> Match:
    """`given`: what was said to become of a model."""
    if (wanted := _given(source.id, given)) is not None:
        there = next((model.id for model in offered if plain(model.id) == plain(wanted)), None)
        return Match(source=source.id, target=there, why="as --map says" if there else f"there is no {wanted!r}")
    if (same := next((model.id for model in offered if plain(model.id) == plain(source.id)), None)) is not None:
        return Match(source=source.id, target=same, why="the same name")
    alike = [model for model in offered if _alike(source, model)]
    best = _best(source, alike)
    if len(best) == 1:
        return Match(source=source.id, target=best[0].id, why=_reason(source, best[0]))
    if best:
        why = "several might be meant; write --map"
        return Match(source=source.id, target=None, why=why, choices=tuple(model.id for model in best))
    near = tuple(model.id for model in offered if _akin(traits(source), traits(model)))
    return Match(source=source.id, target=None, why="no model has its family and size; write --map", choices=near)


def traits(model: Model) -> Traits:
    """By its name, and what the engine tells of it."""
    text = plain(model.id).rpartition("/")[2]
    found = _QUANTIZATION.search(text)
    words = [word for word in _APART.split(_QUANTIZATION.sub("", text)) if word]
    sizes = [word for word in words if _SIZE.fullmatch(word)]
    if sizes and words[-1] == "text":  # as Ollama calls what others call the base
        words[-1] = "base"
    stem = [word for word in words if word not in _NOISE | _TUNED | _BARE and not _SIZE.fullmatch(word)]
    return Traits(
        stem="".join(stem).strip("."),
        size=sizes[0] if sizes else model.parameter_size.lower(),
        quantization=(model.quantization or (found[1] if found else "")).lower(),
        bare=bool(_BARE & set(words)),
    )


def _given(name: str, given: Mapping[str, str]) -> str | None:
    return next((target for source, target in given.items() if plain(source) == plain(name)), None)


def _alike(source: Model, other: Model) -> bool:
    one, two = traits(source), traits(other)
    return one.stem == two.stem and one.bare == two.bare and _same_size(one.size, two.size)


def _same_size(one: str, other: str) -> bool:
    """What is not known is taken to be the same."""
    if not one or not other or one == other:
        return True
    mine, yours = _parameters(one), _parameters(other)
    return mine is not None and yours is not None and abs(mine - yours) <= _NEAR * max(mine, yours)


def _parameters(size: str) -> float | None:
    """`8b` and `8.0B`, in millions; of experts, nobody can tell."""
    if not _SIZE.fullmatch(size) or "x" in size:
        return None
    return float(size[:-1]) * (1000 if size[-1] == "b" else 1)


def _best(source: Model, alike: Sequence[Model]) -> Sequence[Model]:
    """Those whose size is known, if there are any; likewise those of the same quantisation."""
    own = traits(source)
    sized = [model for model in alike if own.size and traits(model).size] or alike
    return [model for model in sized if own.quantization and traits(model).quantization == own.quantization] or sized


def _reason(source: Model, target: Model) -> str:
    one, two = traits(source), traits(target)
    size = f"size {two.size.upper()}" if one.size and two.size else "size not told"
    return f"family {one.stem}, {size}, {_quantizations(one, two)}"


def _quantizations(one: Traits, two: Traits) -> str:
    if not one.quantization or not two.quantization:
        return "quantisation not told"
    same = one.quantization == two.quantization
    return f"{one.quantization.upper()}" if same else f"{one.quantization.upper()} becomes {two.quantization.upper()}"


def _akin(one: Traits, two: Traits) -> bool:
    """Another version, or another size, of the same."""
    short, long = sorted((one.stem, two.stem), key=len)
    return bool(short) and long.startswith(short) and bool(_VERSION.fullmatch(long[len(short) :] or "1"))
