"""How results look: JSON for programs on standard output; tables for people; progress on standard error."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol

import click

_STEP = 0.1  # of a download, between two plain lines about it


def emit(value: Any) -> None:
    """One JSON value, alone on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def emit_line(value: Any) -> None:
    """One JSON value of a stream of them."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need; the last one is not padded, so that nothing trails."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("   ".join(cells).rstrip())


def size(count: int) -> str:
    """`138 MB`: decimal units, three digits."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}" if value < 99.95 or unit == "B" else f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def when(moment: str, *, now: datetime | None = None) -> str:
    """`3 hours ago`, `4 minutes from now`; a time in the far future never comes."""
    try:
        seconds = (datetime.fromisoformat(moment) - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError):
        return "-"
    if seconds > 50 * 365 * 86400:
        return "forever"
    return f"{duration(abs(seconds))} {'ago' if seconds <= 0 else 'from now'}"


def duration(seconds: float) -> str:
    """The two shortest words for a length of time: `3 hours`."""
    units = (("week", 604800), ("day", 86400), ("hour", 3600), ("minute", 60))
    for name, length in units:
        if seconds >= length:
            count = int(seconds / length)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return f"{int(seconds)} second{'' if int(seconds) == 1 else 's'}"


# --- progress ---------------------------------------------------------------------------------------------------------


class Progress(Protocol):
    """Shows the frames of a long errand: {"status": …} and, of a transfer, {"digest", "total", "completed"} besides."""

    def show(self, frame: Mapping[str, Any]) -> None: ...


def progress(*, as_json: bool) -> AbstractContextManager[Progress]:
    """JSON lines for a program, bars on a terminal, plain lines elsewhere."""
    if as_json:
        return JsonLines()
    return Bars() if sys.stderr.isatty() else PlainLines()


class _Shown:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to release."""


class JsonLines(_Shown):
    def show(self, frame: Mapping[str, Any]) -> None:
        emit_line(frame)


class PlainLines(_Shown):
    """A line for each new status, and for every tenth of a transfer."""

    def __init__(self) -> None:
        self._status = ""
        self._steps: dict[str, int] = {}

    def show(self, frame: Mapping[str, Any]) -> None:
        status, total = str(frame.get("status", "")), int(frame.get("total") or 0)
        if total:
            self._transfer(status, total, int(frame.get("completed") or 0))
        elif status != self._status:
            click.echo(status, err=True)
        self._status = status

    def _transfer(self, status: str, total: int, completed: int) -> None:
        step = int(completed / total / _STEP)
        if step > self._steps.get(status, -1):
            self._steps[status] = step
            click.echo(f"{status}: {completed / total:.0%} of {size(total)}", err=True)


class Bars(_Shown):
    """A bar for each transfer, and the status below."""

    def __init__(self) -> None:
        from rich.console import Console  # takes long to import; only a terminal needs it
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = (BarColumn(40), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        text = TextColumn("{task.description}", markup=False)
        self._bars = RichProgress(text, *columns, console=Console(stderr=True), transient=False)
        self._tasks: dict[str, Any] = {}
        self._status = ""

    def __enter__(self) -> Any:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def show(self, frame: Mapping[str, Any]) -> None:
        status, total = str(frame.get("status", "")), int(frame.get("total") or 0)
        if total:
            if status not in self._tasks:
                self._tasks[status] = self._bars.add_task(status, total=total)
            self._bars.update(self._tasks[status], total=total, completed=int(frame.get("completed") or 0))
        elif status != self._status:
            self._bars.console.print(status, markup=False, highlight=False)
        self._status = status
