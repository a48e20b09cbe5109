"""Which of a caller's own words reach llama.cpp. Pure.

Its server knows members that are none of a caller's business: how many answers are made and counted as one, which slot
and adapters are used, the whole prompt with the operator's part of it. And of two lengths it keeps to its own one,
`n_predict`, where the books have OpenAI's. So only what is listed here goes on.
"""

from typing import Final

from msgspec.structs import replace

from drivetrain.types import Request

_OPENAI: Final = frozenset(
    {
        *("model", "messages", "prompt", "suffix", "echo", "best_of", "n", "stream", "stream_options", "user"),
        *("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"),
    }
)
_COMMON: Final = frozenset(  # among engines
    {"top_k", "min_p", "typical_p", "repeat_penalty", "repetition_penalty", "repeat_last_n", "grammar", "reasoning"}
)
_SAMPLERS: Final = frozenset(  # llama.cpp's own
    {
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("dynatemp_range", "dynatemp_exponent", "mirostat", "mirostat_tau", "mirostat_eta"),
        *("xtc_probability", "xtc_threshold", "top_n_sigma", "min_keep", "samplers", "ignore_eos"),
        *("chat_template_kwargs", "cache_prompt", "timings_per_token", "n_predict"),
    }
)
KNOWN: Final = _OPENAI | _COMMON | _SAMPLERS


def known(request: Request) -> Request:
    """Itself, if it says nothing else, or speaks another dialect, whose words do not go on."""
    source = request.source
    if source is None or not source.dialect.startswith("openai."):
        return request
    others = source.fields.keys() - KNOWN
    if "n_predict" in source.fields and request.sampling.max_tokens is not None:
        others.add("n_predict")
    return replace(request, source=source.without(others)) if others else request
