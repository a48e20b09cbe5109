"""The ways to run a model, best first: by llama.cpp alone, or with its experts streamed. Pure but for `inspect`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from drivetrain import gguf
from drivetrain.engines.expertstream import native, plan
from drivetrain.engines.llamacpp import memory, settings
from drivetrain.engines.llamacpp.launch import Launch
from drivetrain.errors import BadRequest
from drivetrain.gguf import Gguf
from drivetrain.types import ModelSpec

PERCENT: Final = 100


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a model say of it."""

    headers: tuple[Gguf, ...]  # of each of its weights' files
    files_bytes: int  # with adapters and projector
    container: bool = False  # only the streaming library can read it

    @property
    def header(self) -> Gguf:
        return self.headers[0]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine may use of the machine."""

    cores: int
    memory_bytes: int  # of the machine, as far as this process may use it
    room_bytes: int  # of that, for models
    fixed: bool = False  # somebody chose `room_bytes`: what streams keeps within it, whatever else is free
    switch: plan.Wish = "auto"
    tuning: plan.Tuning = plan.Tuning()
    streaming_threads: int | None = None  # where a model streams and its settings do not say


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """What is streamed, and how."""

    model: str  # the file with the experts
    least_bytes: int  # of memory that they need
    dense_bytes: int  # of all else
    budget_bytes: int  # of memory that they may take; 0: as the governor sees fit
    tuning: plan.Tuning


class Way(msgspec.Struct, frozen=True, kw_only=True):
    launch: Launch
    size_bytes: int  # of memory that it takes at least
    stream: Stream | None = None

    def orders(self, socket: str, alias: str, *, page: str, share: str) -> Mapping[str, Any]:
        """What the worker is told. `page` is for its counters; by `share` it divides memory with others that stream."""
        orders = self.launch.orders(socket, alias)
        return orders if self.stream is None else {**orders, "stream": self._orders(self.stream, page, share)}

    def _orders(self, stream: Stream, page: str, share: str) -> Mapping[str, Any]:
        prefetch = self.launch.prefetch
        options = plan.options(
            stream.model,
            budget_bytes=stream.budget_bytes,
            threads=self.launch.threads,
            io=self.launch.io,
            tuning=stream.tuning if prefetch is None else replace(stream.tuning, prefetch=prefetch),
            stats=page,
            share=share,
            trace=self.launch.expert_trace,
        )
        return {
            "library": str(native.LIBRARY),
            "options": native.options_text(options),
            "model": stream.model,
            "shell": self.launch.weights,
            "dense_bytes": stream.dense_bytes,
        }


def inspect(spec: ModelSpec) -> Inspected:
    """Reads the headers of the model's files. Blocks. Raises `BadRequest`."""
    if spec.weights is None:
        raise BadRequest(f"model {spec.id!r} has no weights on this machine")
    weights = gguf.parts(spec.weights)
    headers = tuple(gguf.read(part) for part in weights)
    files = [*map(str, weights), *spec.adapters, *filter(None, [spec.projector])]
    try:
        files_bytes = sum(os.stat(file).st_size for file in files)
    except OSError as error:
        raise BadRequest(f"cannot read {error.filename!r}: {error.strerror}") from error
    return Inspected(headers=headers, files_bytes=files_bytes, container=spec.weights.endswith(plan.CONTAINER))


def tuned(limits: Limits, home: Path) -> Limits:
    """With what was found out of this machine, if somebody had it measured. Blocks for a moment."""
    from drivetrain.engines.expertstream import tune  # what it needs is only needed where something streams

    found = tune.load(home)
    return limits if found is None else replace(limits, tuning=found.tuning, streaming_threads=found.threads)


def ways(spec: ModelSpec, chosen: settings.Chosen, found: Inspected, limits: Limits, *, shell: str) -> Sequence[Way]:
    """Where the first does not work, the next may. `shell`: what llama.cpp loads of one that streams its experts."""
    launch = settings.resolve(spec, chosen, found.header, cores=limits.cores)
    stock = Way(launch=launch, size_bytes=memory.estimate(launch, found.header, found.files_bytes))
    experts = plan.experts(found.headers)
    demand = plan.Demand(needed_bytes=stock.size_bytes, room_bytes=limits.room_bytes)
    if experts is None or not plan.streamed(
        experts, demand, switch=limits.switch, wish=launch.expertstream, container=found.container
    ):
        return (stock,)
    return (_streamed(stock, chosen, found, limits, experts, shell), *(() if found.container else (stock,)))


def _streamed(
    stock: Way, chosen: settings.Chosen, found: Inspected, limits: Limits, experts: plan.Experts, shell: str
) -> Way:
    launch = settings.streamed(stock.launch, chosen, found.header, shell=shell)
    if limits.streaming_threads and not chosen.get("threads"):
        launch = replace(launch, threads=limits.streaming_threads)
    dense_bytes = found.files_bytes - experts.size_bytes
    size_bytes = memory.estimate(launch, found.header, dense_bytes + experts.least_bytes)
    budget_bytes = _budget_bytes(launch.expert_budget, limits)
    if not budget_bytes and limits.fixed:
        budget_bytes = max(limits.room_bytes - size_bytes, 0) + experts.least_bytes
    stream = Stream(
        model=stock.launch.weights,
        least_bytes=experts.least_bytes,
        dense_bytes=dense_bytes,
        budget_bytes=max(budget_bytes, experts.least_bytes) if budget_bytes else 0,
        tuning=limits.tuning,
    )
    return Way(launch=launch, size_bytes=size_bytes, stream=stream)


def _budget_bytes(said: int | str, limits: Limits) -> int:
    """A share is one of the machine's memory."""
    return said if isinstance(said, int) else int(limits.memory_bytes * float(said.rstrip("% ")) / PERCENT)
