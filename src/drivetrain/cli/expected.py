"""What is expected of a streamed model, beside what was measured: for `drivetrain show`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.cli.client import Server
from drivetrain.cli.command import Call
from drivetrain.config.schema import Downloads
from drivetrain.engines.expertstream import outlook
from drivetrain.errors import BadRequest, ModelNotFound
from drivetrain.library import Library

_PER_TOKEN = re.compile(r"drivetrain_output_token_seconds_(sum|count)\{(.*)\} (\S+)")


async def expected(call: Call, server: Server, model: str) -> Mapping[str, Any] | None:
    """All that is predicted, and `measured_tokens_s` if the server has answered with the model. None for a model that
    is not streamed, or whose files are not here."""
    weights = _weights(call, model)
    if weights is None:
        return None
    prediction = outlook.of_file(weights, call.home, await _hits(server, model))
    if prediction is None or not prediction.streamed:
        return None
    rate = measured(await server.text("/metrics"), model)
    return msgspec.structs.asdict(prediction) | {"measured_tokens_s": rate}


def _weights(call: Call, model: str) -> Path | None:
    try:
        found = Library(call.home, Downloads(), lambda notice: None).place(model).weights
    except (ModelNotFound, BadRequest):
        return None
    return found[0] if found else None


async def _hits(server: Server, model: str) -> float | None:
    """The hit rate, if it is in memory and has been used."""
    for one in (await server.get("/api/ps"))["models"]:
        experts = one.get("experts") or {}
        if one["name"] in (model, f"{model}:latest") and experts.get("tokens"):
            return float(experts["hit_rate"])
    return None


def measured(metrics: str, model: str) -> float | None:
    """Tokens per second, as the server's metrics have it, over all answers."""
    totals = {"sum": 0.0, "count": 0.0}
    for what, labels, value in _PER_TOKEN.findall(metrics):
        if f'model="{model}"' in labels.split(","):
            totals[what] += float(value)
    return totals["count"] / totals["sum"] if totals["sum"] else None
