"""Small SVG charts by matplotlib: bars for each strategy, and lines over the day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

INCHES = (9.0, 4.5)
DASHES = ("-", "--", ":")


def bars(path: Path, title: str, values: Mapping[str, float]) -> None:
    """One bar for each name, with its figure, written as SVG."""
    with _figure(path, title) as axes:
        drawn = axes.barh(list(values), list(values.values()))
        axes.bar_label(drawn, fmt="%.3g", padding=4)
        axes.invert_yaxis()


def lines(path: Path, title: str, across: str, series: Mapping[str, Sequence[float]]) -> None:
    """One line for each name, over parts of equal length; the scale is logarithmic."""
    with _figure(path, title) as axes:
        for place, (name, line) in enumerate(series.items()):
            axes.plot(range(1, len(line) + 1), line, DASHES[place // 10 % len(DASHES)], label=name)
        axes.set_yscale("log")
        axes.set_xlabel(across)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")


@contextmanager
def _figure(path: Path, title: str) -> Iterator[Axes]:
    """The same figures give the same file: no date, no chance in it."""
    with mpl.rc_context({"svg.hashsalt": "sim", "svg.fonttype": "none"}):
        figure, axes = plt.subplots(figsize=INCHES, layout="constrained")
        axes.set_title(title)
        yield axes
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
