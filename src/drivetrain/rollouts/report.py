"""A report of arms as a text that people read."""

from collections.abc import Iterator
from typing import Final

from drivetrain.rollouts.experiments import Difference, Measured, Report
from drivetrain.rollouts.intervals import Effect, Estimate

_SHARES: Final = frozenset({"success rate"})


def text(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"{report.kind} {report.rollout} of {report.model!r}, {report.state.replace('_', ' ')}"
    yield f"intervals hold the true value with {report.confidence:.0%}; differences are from {report.arms[0].arm!r}"
    for arm in report.arms:
        yield ""
        yield f"{arm.arm}: {arm.requests:,} requests, {arm.failures:,} failed"
        for measured in arm.metrics:
            yield from _of(measured)


def _of(measured: Measured) -> Iterator[str]:
    """A line with the figure, and below it how it differs."""
    share = measured.metric in _SHARES
    yield f"  {measured.metric:<26} {_estimate(measured.estimate, share=share)}"
    if measured.difference is not None and measured.estimate.value is not None:
        yield f"{'':<29}{_difference(measured.difference, share=share)}"


def _estimate(estimate: Estimate, *, share: bool) -> str:
    if estimate.value is None:
        return "nothing seen"
    figure = "{:.2%}" if share else "{:.4g}"
    value = figure.format(estimate.value)
    if estimate.low is None or estimate.high is None:
        return f"{value} (too few for an interval)"
    return f"{value} [{figure.format(estimate.low)}, {figure.format(estimate.high)}]"


def _difference(difference: Difference, *, share: bool) -> str:
    if difference.change is None:
        return "too few to compare"
    said = "differs" if difference.clear else "no clear difference yet"
    change = _points(difference.change) if share else _ratio(difference.change)
    return f"{change}, p {difference.change.p:.3g}, at any time {difference.anytime_p:.3g}: {said}"


def _points(change: Effect) -> str:
    return f"{100 * change.value:+.2f} points [{100 * change.low:+.2f}, {100 * change.high:+.2f}]"


def _ratio(change: Effect) -> str:
    return f"x {change.value:.3f} [{change.low:.3f}, {change.high:.3f}]"
