"""Commands on containers: pack a Mixture-of-Experts model for streaming, and unpack it again. No server is asked."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import click
import msgspec

from drivetrain.cli import output
from drivetrain.cli.command import Call, Failure, Misused, command
from drivetrain.cli.completion import model_names
from drivetrain.config.schema import Downloads
from drivetrain.engines.expertstream import native, outlook, predict
from drivetrain.engines.expertstream.native import Progress
from drivetrain.library import files, weights
from drivetrain.library.library import Library

_STEPS = 200  # of a transfer, that are told


class Subject(NamedTuple):
    """A model of the library, or a file."""

    name: str
    parts: Sequence[Path]  # its weights
    folder: Path  # where its other form goes
    library: Library | None


@command()
@click.argument("model", shell_complete=model_names)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write this file, and change nothing else."
)
@click.option("--replace", is_flag=True, help="Delete the GGUF afterwards; `drivetrain unpack` makes it again.")
@click.option("--verify", is_flag=True, help="Compare a container with its checksums, and change nothing.")
def pack(call: Call, model: str, out: Path | None, replace: bool, verify: bool) -> None:
    """Pack a Mixture-of-Experts model for streaming.

    MODEL is a model of the library, which then uses the container, or a file. All parts of an expert come to lie
    together, so that one read brings it: less waiting where the model is larger than memory. Nothing is lost. What was
    interrupted goes on where it stopped.
    """
    _check(out, replace)
    subject = _find(call, model)
    if verify:
        _verify(call, subject)
        return
    if weights.is_container(subject.parts[0].name):
        raise Failure(f"{model!r} is packed already: {subject.parts[0]}")
    target = out or subject.folder / weights.container_name(subject.parts[0].name)
    if _is_to_be_made(subject, target):
        _tell_outlook(call, subject)
        _convert(call, subject, target, "packing", lambda told: native.pack(subject.parts[0], target, told))
    _finish(call, subject, target, "packed", out=out, drop=replace)


@command()
@click.argument("model", shell_complete=model_names)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write this file, and change nothing else."
)
@click.option("--replace", is_flag=True, help="Delete the container afterwards.")
def unpack(call: Call, model: str, out: Path | None, replace: bool) -> None:
    """Make the GGUF of a packed model again.

    MODEL is a model of the library, which then uses the GGUF, or a file. Every tensor is what it was, bit for bit.
    """
    _check(out, replace)
    subject = _find(call, model)
    container = subject.parts[0]
    if not weights.is_container(container.name):
        raise Failure(f"{model!r} is not packed: {container}")
    target = out or subject.folder / container.with_suffix(".gguf").name
    if _is_to_be_made(subject, target):
        _convert(call, subject, target, "unpacking", lambda told: native.unpack(container, target, told))
    _finish(call, subject, target, "unpacked", out=out, drop=replace)


def _check(out: Path | None, replace: bool) -> None:
    if out is not None and replace:
        raise Misused("--out changes nothing else, so --replace has nothing to replace; leave one of them out")


def _find(call: Call, model: str) -> Subject:
    """A path means a file; everything else the name of a model. Raises `ModelNotFound`."""
    path = Path(model).expanduser()
    if model.startswith(("./", "../", "~", "/")) or (path.suffix in weights.SUFFIXES and path.is_file()):
        weights.refuse(path)
        return Subject(model, _parts(path.absolute()), path.absolute().parent, None)
    library = Library(call.home, Downloads(), lambda notice: None)
    place = library.place(model)
    if not place.weights:
        raise Failure(f"model {model!r} has no weights on this machine")
    return Subject(place.id, place.weights, place.folder, library)


def _parts(path: Path) -> Sequence[Path]:
    if not path.is_file():
        raise Misused(f"there is no file {path}")
    return outlook.parts(path)


def _is_to_be_made(subject: Subject, target: Path) -> bool:
    """False if it is there as the model's own other form. Raises a `Failure` if something else is there."""
    if not target.exists():
        return True
    if subject.library is not None and target.parent == subject.folder:
        return False
    raise Failure(f"{target} is there already; delete it, or say another file with --out")


def _convert(call: Call, subject: Subject, target: Path, doing: str, convert: Callable[[Progress], None]) -> None:
    need = sum(part.stat().st_size for part in subject.parts) - _begun(target)
    files.need_room(target.parent, max(need, 0), f"{target.name}")
    with output.progress(as_json=call.json) as shown, _interrupts() as interrupted:
        convert(_teller(shown, f"{doing} {target.name}", interrupted))


def _begun(target: Path) -> int:
    """What an interrupted run left on the disk."""
    part = target.with_name(f"{target.name}.part")
    return part.stat().st_blocks * 512 if part.exists() else 0


@contextmanager
def _interrupts() -> Iterator[Event]:
    """Set by Ctrl-C: while C runs, Python could not raise anything where it would arrive."""
    interrupted = Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _teller(shown: output.Progress, status: str, interrupted: Event) -> Progress:
    """Tells what is done, in steps that people can see."""
    last = -1

    def tell(done: int, total: int) -> None:
        nonlocal last
        if interrupted.is_set():
            raise KeyboardInterrupt
        step = done * _STEPS // max(total, 1)
        if step > last:
            last = step
            shown.show({"status": status, "total": total, "completed": done})

    return tell


def _finish(call: Call, subject: Subject, target: Path, done: str, *, out: Path | None, drop: bool) -> None:
    if subject.library is not None and out is None:
        asyncio.run(subject.library.switch(subject.name, target.name, drop=drop))
    elif drop:
        for part in subject.parts:
            part.unlink()
    size_bytes = target.stat().st_size
    if call.json:
        output.emit_line({"status": "success", done: subject.name, "file": str(target), "size": size_bytes})
    else:
        click.echo(f"{done} {subject.name!r}: {target}, {output.size(size_bytes)}")


def _verify(call: Call, subject: Subject) -> None:
    container = subject.parts[0]
    if not weights.is_container(container.name):
        raise Failure(f"{subject.name!r} is not packed, and a GGUF has no checksums to compare: {container}")
    with output.progress(as_json=call.json) as shown, _interrupts() as interrupted:
        native.verify(container, _teller(shown, f"verifying {container.name}", interrupted))
    if call.json:
        output.emit_line({"status": "success", "verified": str(container)})
    else:
        click.echo(f"{container} is as it was written")


def _tell_outlook(call: Call, subject: Subject) -> None:
    """What to expect of the model, while one can still say no. Raises a `Failure` where nothing can be streamed."""
    prediction = outlook.of_file(subject.parts[0], call.home)
    if prediction is None and not outlook.has_experts(subject.parts[0]):
        raise Failure(f"{subject.name!r} has no experts, so nothing of it can be streamed")
    if prediction is None:
        return
    if call.json:
        output.emit_line({"prediction": prediction_json(prediction)})
    else:
        click.echo(predict.told(prediction), err=True)


def prediction_json(prediction: predict.Prediction) -> dict[str, Any]:
    """All that is predicted, for a program."""
    return msgspec.structs.asdict(prediction) | {"streamed": prediction.streamed}
