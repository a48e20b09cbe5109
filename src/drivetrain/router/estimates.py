"""How fast an engine is with one of its models: the wait for the first token and the pace after it, apart.

The first token is a peak estimate: a slow one counts at once, quick ones slowly win it back (peak-EWMA). What was seen
long ago fades, so that a slow engine is asked again some day; but not while it is at work, for then it is being asked.
"""

import math

from drivetrain.types import Value

MEMORY_S = 10.0  # after so long an estimate is two thirds new
FADE_S = 30.0  # unasked for so long, an engine seems e times as fast,
FADED = 0.1  # but ten times at most: what seems faster than any other draws all requests
FADED_AFTER_S = -FADE_S * math.log(FADED)
LEAST = 5  # answers that make a measured engine
FEW_TOKENS = 4  # an answer shorter than this tells nothing about the pace
FIXED_TOKENS = 256  # a prompt of no length takes as long as so many tokens
UNITS = ((3600, "h"), (60, "min"), (1, "s"))  # seconds in each; used from two on
TYPICAL_TOKENS = FIXED_TOKENS + 512  # of a prompt whose length nobody told


class Speed(Value, frozen=True, kw_only=True):
    """As it is taken to be now."""

    prompt_s: float  # for each token of a prompt, `FIXED_TOKENS` added to it
    token_s: float  # for each token of an answer

    def expected_s(self, prompt_tokens: int, output_tokens: int) -> float:
        return self.prompt_s * (FIXED_TOKENS + prompt_tokens) + self.token_s * output_tokens


class Speedometer:
    """Measures one model of one engine. Every method is told the time."""

    __slots__ = ("_answers", "_at_work", "_idle_s", "_prompt_s", "_seen_s", "_token_s")

    def __init__(self) -> None:
        self._answers = 0
        self._prompt_s = 0.0
        self._token_s = 0.0
        self._seen_s = 0.0  # when the estimates are of
        self._at_work = 0  # attempts that go on
        self._idle_s = 0.0  # since when none does

    def began(self) -> None:
        self._at_work += 1

    def ended(self, now_s: float) -> None:
        """After `answered` or `silent`, if one of them is called. One that began before there was a measure is not
        missed."""
        if self._at_work:
            self._at_work -= 1
        self._idle_s = now_s

    def answered(self, now_s: float, *, prompt_tokens: int, first_token_s: float, tokens: int, rest_s: float) -> None:
        """An answer of `tokens` is complete; `rest_s` is what it took after its first."""
        old = math.exp((self._seen_s - now_s) / MEMORY_S) if self._answers else 0.0
        seen_s = first_token_s / (FIXED_TOKENS + prompt_tokens)
        self._prompt_s = max(seen_s, seen_s + (self._prompt_s - seen_s) * old)
        if tokens >= FEW_TOKENS:
            pace_s = rest_s / (tokens - 1)
            self._token_s = pace_s + (self._token_s - pace_s) * old if self._token_s else pace_s
        self._answers += 1
        self._seen_s = now_s

    def silent(self, now_s: float, *, waited_s: float) -> None:
        """Nothing had come after `waited_s`, when the wait was given up: it is at least as slow as that, however short
        the prompt."""
        if self._answers and waited_s > self._prompt_s * TYPICAL_TOKENS:
            self._prompt_s = waited_s / TYPICAL_TOKENS
            self._seen_s = now_s

    def note(self, now_s: float) -> str:
        """What else there is to know of `speed`, in words."""
        if self._answers < LEAST:
            return ""
        if not self._token_s:
            return "pace not measured yet"
        since_s = max(self._seen_s, self._idle_s)
        if self._at_work or now_s - since_s < FADE_S:
            return ""
        return f"measured {_ago(now_s - self._seen_s)} ago, may be slower"

    def speed(self, now_s: float) -> Speed | None:
        """None until enough was seen."""
        if self._answers < LEAST:
            return None
        fade = 1.0
        if not self._at_work:
            since_s = self._seen_s if self._seen_s > self._idle_s else self._idle_s
            fade = math.exp((since_s - now_s) / FADE_S) if now_s - since_s < FADED_AFTER_S else FADED
        return Speed(prompt_s=self._prompt_s * fade, token_s=self._token_s * fade)


def _ago(seconds: float) -> str:
    length_s, unit = next((length_s, unit) for length_s, unit in UNITS if seconds >= 2 * length_s or length_s == 1)
    return f"{seconds / length_s:.0f} {unit}"
