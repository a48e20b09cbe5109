"""What a request of either form says of log-probabilities. Pure."""

from drivetrain.types import Request


def asked(request: Request) -> int | None:
    """How many alternatives beside each chosen token: 0 for the chosen one only, None for no log-probabilities."""
    if request.completion is not None:
        return request.completion.logprobs
    return (request.sampling.top_logprobs or 0) if request.sampling.logprobs else None
