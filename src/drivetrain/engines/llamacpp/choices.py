"""Several answers to one request, as requests for one. Pure.

llama.cpp counts the tokens of each choice and each prompt on its own, and takes no more choices than it has slots. So
they are asked for one after another; a prompt that they share is computed once, for its slot keeps it. A prompt that is
to be repeated before its answer goes this way too: llama.cpp does not know how. And so does a request for no token,
of which llama.cpp makes one.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Raw
from msgspec.json import encode
from msgspec.structs import replace

from drivetrain.types import ChoiceFinished, Event, Finished, Opaque, Request, Timings, Usage


def several(request: Request) -> bool:
    completion, sampling = request.completion, request.sampling
    bare = completion is not None and (len(completion.prompts) > 1 or completion.echo)
    return sampling.n > 1 or sampling.max_tokens == 0 or bare


def singles(request: Request) -> Iterator[Request]:
    """One request per choice, in the order of their indexes. With a seed, each choice has its own."""
    prompts = (None,) if request.completion is None else request.completion.prompts
    for prompt in prompts:
        for number in range(request.sampling.n):
            yield _single(request, prompt, number)


def _single(request: Request, prompt: str | tuple[int, ...] | None, number: int) -> Request:
    seed = request.sampling.seed
    own_seed = None if seed is None else seed + number
    fields = {"n": Raw(b"1")}
    limit = request.sampling.max_tokens
    if limit == 0:
        limit = 1
        fields |= dict.fromkeys(("max_tokens", "n_predict"), Raw(b"1"))
    if own_seed is not None:
        fields["seed"] = Raw(encode(own_seed))
    completion = request.completion
    if completion is not None and prompt is not None:
        completion = replace(completion, prompts=(prompt,), echo=False)
        fields["prompt"] = Raw(encode(prompt))
    source = request.source
    if source is not None:
        source = replace(source, fields={**source.without(("best_of", "echo")).fields, **fields})
    sampling = replace(request.sampling, n=1, seed=own_seed, max_tokens=limit)
    return replace(request, sampling=sampling, completion=completion, source=source)


def numbered(events: Iterable[Event], index: int) -> list[Event]:
    """The events of one choice, under its index; frames that said another one are left behind."""
    return [replace(event, index=index, raw=None) for event in events if not isinstance(event, Opaque | Finished)]


def silent(events: Iterable[Event]) -> list[Event]:
    """The events of an answer of one token, as of one of none."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, ChoiceFinished):
            kept.append(replace(event, reason="length", stop_sequence=None, raw=None))
        elif isinstance(event, Finished):
            kept.append(replace(event, usage=replace(event.usage, completion=0, reasoning=0), raw=None))
    return kept


def total(ends: Sequence[Finished], choices_per_prompt: int) -> Finished:
    """The end of them all. A prompt counts once, however many choices it has."""
    firsts = ends[::choices_per_prompt]
    usage = Usage(
        prompt=sum(end.usage.prompt for end in firsts),
        cached=sum(end.usage.cached for end in firsts),
        completion=sum(end.usage.completion for end in ends),
        reasoning=sum(end.usage.reasoning for end in ends),
        estimated=any(end.usage.estimated for end in ends),
    )
    timings = [end.timings or Timings() for end in ends]
    return Finished(
        usage=usage,
        timings=Timings(
            prompt_s=sum(timing.prompt_s for timing in timings),
            completion_s=sum(timing.completion_s for timing in timings),
        ),
    )
