"""An answer that broke off and is continued by another engine: what the caller has of it, and where the rest joins."""

from collections.abc import Sequence

from msgspec.structs import replace

from drivetrain.config.schema import Policy
from drivetrain.dialects import logprobs, openai
from drivetrain.gateway.pool import Member
from drivetrain.policies import demand
from drivetrain.types import (
    ChoiceFinished,
    Event,
    Finished,
    Message,
    Opaque,
    Progress,
    Request,
    Source,
    Text,
    TextDelta,
)

LEAST = 12  # characters, before a chat is resumed: an engine that begins with so many is repeating them
KINDS = frozenset({"llamacpp", "llama-server", "vllm", "sglang"})  # of engines that go on with a chat's last message


class Thread:
    """The answer of one request. `weave` each batch of events on its way to the caller."""

    __slots__ = ("_given", "_joining", "_plain", "_request", "_said", "_tail", "_text", "_tokens", "begun")

    def __init__(self, request: Request) -> None:
        self._request = request
        self.begin()

    def begin(self) -> None:
        """Nothing was said: an answer begins, or begins anew."""
        self._text: list[str] = []
        self._given = 0  # tokens of that, about
        self._tokens = 0  # that earlier engines gave, about
        self._joining = False  # what comes is another engine's
        self._said = ""  # what the other engine is told of it, and may say again
        self._tail = ""  # white space after that
        self._plain = True  # it is nothing but text
        self.begun = False  # some of it is there

    @property
    def sound(self) -> bool:
        """Whether another engine could go on with it."""
        return self._plain and (self._request.completion is not None or sum(map(len, self._text)) >= LEAST)

    def taken_up_by(self, member: Member) -> bool:
        """Whether this engine goes on with an answer. A raw text has no beginning and no end: any engine does."""
        return self._request.completion is not None or member.config.kind in KINDS

    def resumed(self) -> Request:
        """The request for another engine: the same, with the answer as far as it came. From now on its rest comes."""
        request, text = self._request, "".join(self._text)
        said = text.rstrip()
        self._joining, self._said, self._tail = True, said, text[len(said) :]
        self._tokens = self._given
        sampling = request.sampling
        if sampling.max_tokens is not None:
            sampling = replace(sampling, max_tokens=max(1, sampling.max_tokens - self._tokens))
        if request.completion is not None:
            self._said = ""
            whole = replace(request.completion, prompts=(f"{request.completion.prompts[0]}{said}",))
            return replace(request, completion=whole, sampling=sampling, source=None)
        begun = (Message(role="assistant", content=(Text(text=said),)),)
        source = _unlimited(openai.around(request.source, after=begun))
        messages = (*request.messages, *begun)
        return replace(request, messages=messages, sampling=sampling, source=source, resumes=True)

    def weave(self, events: Sequence[Event]) -> Sequence[Event]:
        """What of these the caller gets: all of the first engine's, and of a later one's what is new."""
        if self._joining:
            events = [woven for event in events if (woven := self._joined(event)) is not None]
        for event in events:
            if type(event) is TextDelta and not event.index:
                self._text.append(event.text)
                self._given += event.tokens
                self.begun = True
            elif not isinstance(event, Opaque | Progress):
                self.begun, self._plain = True, False
        return events

    def _joined(self, event: Event) -> Event | None:
        """Without the engine's own frame, which says another id than those before it."""
        match event:
            case TextDelta() if self._said or self._tail:
                text = self._without_tail(event.text.removeprefix(self._said))
                self._said = ""
                return replace(event, text=text, raw=None) if text else None
            case TextDelta() | ChoiceFinished():
                return replace(event, raw=None)
            case Finished():
                usage, tokens = event.usage, self._tokens
                whole = replace(
                    usage,
                    prompt=max(0, usage.prompt - tokens),
                    cached=min(usage.cached, max(0, usage.prompt - tokens)),
                    completion=usage.completion + tokens,
                    estimated=True,
                )
                return replace(event, usage=whole, raw=None)
            case Progress():
                return event
        return None if isinstance(event, Opaque) else replace(event, raw=None)

    def _without_tail(self, text: str) -> str:
        """Without the white space that the caller has already."""
        kept = 0
        while kept < min(len(text), len(self._tail)) and text[kept] == self._tail[kept]:
            kept += 1
        self._tail = self._tail[kept:] if kept == len(text) else ""
        return text[kept:]


def _unlimited(source: Source | None) -> Source | None:
    """Without the caller's own limit on the length, of which some is used up."""
    return source and source.without(demand.LIMITS)


def thread(request: Request, policy: Policy) -> Thread | None:
    """None where an answer is not to be resumed, or could not soundly be: with tools, in a demanded form, several."""
    if not policy.retries.resume or request.tools or request.output is not None:
        return None
    sampling, completion = request.sampling, request.completion
    if sampling.n != 1 or logprobs.asked(request) is not None:
        return None
    if completion is None:
        return Thread(request) if request.messages and request.messages[-1].role != "assistant" else None
    single = len(completion.prompts) == 1 and isinstance(completion.prompts[0], str)
    plain = completion.suffix is None and not completion.echo
    return Thread(request) if single and plain else None
