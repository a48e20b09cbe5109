"""A llama-server that has several models (its router mode): which are in memory, loading them, unloading them.

One that was started with a model has nothing to load: it lists models without a status.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from drivetrain.dialects.openai import decode_error
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import call, fetch
from drivetrain.errors import EngineFailed, LoadFailed, ModelNotFound
from drivetrain.types import EmbedRequest

POLL_S: Final = 0.2
IN_MEMORY: Final = "loaded"
_AS_IT_IS: Final = b',"embd_normalize":-1'  # llama.cpp's number for a vector of whatever length
ON_ITS_WAY: Final = frozenset({"loading", "downloading"})


def embedding(request: EmbedRequest) -> bytes:
    """What a request for vectors says to llama.cpp beside what it says to all."""
    return b"" if request.normalised else _AS_IT_IS


class Status(msgspec.Struct):
    value: str = ""
    failed: bool = False
    exit_code: int | None = None


class _Listed(msgspec.Struct):
    id: str
    status: Status | None = None


class _Models(msgspec.Struct):
    data: list[_Listed]


async def statuses(upstream: Upstream) -> Mapping[str, Status]:
    """Of each model; none if the server has only the one that it was started with."""
    try:
        listed = msgspec.json.decode(await fetch(upstream, "/models", decode_error), type=_Models)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the list of models is none: {error}") from error
    return {model.id: model.status for model in listed.data if model.status is not None}


async def load(upstream: Upstream, model: str) -> None:
    """Returns when it is in memory. Raises `LoadFailed`."""
    if not (known := await statuses(upstream)):
        return
    if model not in known:
        raise ModelNotFound(f"model {model!r} not found; the server has {', '.join(sorted(known))}")
    if known[model].value == IN_MEMORY:
        return
    if known[model].value not in ON_ITS_WAY:
        await call(upstream, "/models/load", msgspec.json.encode({"model": model}), decode_error)
    while True:
        status = (await statuses(upstream)).get(model, Status())
        if status.value not in ON_ITS_WAY:
            break
        await asyncio.sleep(POLL_S)
    if status.value != IN_MEMORY:
        code = f" (exit code {status.exit_code})" if status.exit_code is not None else ""
        raise LoadFailed(f"model {model!r} was not loaded: it is {status.value or 'gone'}{code}")


async def unload(upstream: Upstream, model: str) -> None:
    """One that is not in memory is none to unload."""
    status = (await statuses(upstream)).get(model)
    if status is not None and status.value not in ("", "unloaded"):
        await call(upstream, "/models/unload", msgspec.json.encode({"model": model}), decode_error)
