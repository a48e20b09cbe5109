"""Rates: at most so much in any period, wherever it begins. Arithmetic over a plain state that its owner keeps.

A period is cut into 60 buckets, numbered from 1970 on; what was taken counts until its whole bucket lies a period back,
so it counts up to a bucket longer than it must, never shorter. The same figures stand in Redis: a hash of
bucket → amount, and their sum.
"""

import math
from typing import Final

BUCKETS: Final = 60
_GRAIN_S = 1e-6  # more than what a Unix time in floating point may lose


class Window:
    """What was taken of one limit. Only the functions of this module change it."""

    __slots__ = ("counts", "newest", "oldest", "total", "until_s")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # bucket → what was taken in it
        self.total = 0
        self.oldest = 0  # no bucket of `counts` is older
        self.newest = 0  # the bucket that was taken from last
        self.until_s = 0.0  # when that ends


def bucket(at_s: float, period_s: float) -> int:
    return math.floor(at_s / (period_s / BUCKETS))


def take(window: Window, now_s: float, *, limit: int, period_s: float, cost: int = 1) -> float:
    """Take `cost`, or tell how long to wait: 0 means that it was taken."""
    if now_s >= window.until_s:  # else nothing more is to be forgotten: each request under each limit comes by here
        _forget(window, now_s, period_s)
        window.newest = bucket(now_s, period_s)
        window.until_s = (window.newest + 1) * (period_s / BUCKETS)
    total = window.total + cost
    if total > limit and window.total:
        return wait_s(window, now_s, limit=limit, period_s=period_s, cost=cost)
    if window.newest in window.counts:
        window.counts[window.newest] += cost
        window.total = total
    else:
        add(window, now_s, period_s=period_s, cost=cost)
    return 0.0


def wait_s(window: Window, now_s: float, *, limit: int, period_s: float, cost: int = 1) -> float:
    """How long until `cost` can be taken if nobody else takes anything: exact, and 0 if it can be now.

    A cost above the whole limit waits until nothing else counts: it could never pass otherwise.
    """
    _forget(window, now_s, period_s)
    over = window.total + cost - limit
    if over <= 0 or not window.total:
        return 0.0
    for number, amount in sorted(window.counts.items()):
        over -= amount
        if over <= 0:
            return _gone_in_s(number, now_s, period_s)
    return reset_s(window, now_s, period_s=period_s)


def add(window: Window, at_s: float, *, period_s: float, cost: int) -> None:
    """Count `cost` at an instant, whatever the limit. Below zero it is given back there: no more than was taken, and
    nothing of what does not count any more."""
    number = bucket(at_s, period_s)
    before = window.counts.get(number, 0)
    after = max(0, before + cost)
    if after:
        window.oldest = min(window.oldest, number) if window.counts else number
        window.counts[number] = after
    elif before:
        del window.counts[number]
    window.total += after - before


def give(window: Window, at_s: float, *, period_s: float, cost: int) -> None:
    """Give back what was taken at `at_s`, or take more there (`cost` below zero)."""
    add(window, at_s, period_s=period_s, cost=-cost)


def remaining(window: Window, now_s: float, *, limit: int, period_s: float) -> int:
    _forget(window, now_s, period_s)
    return max(0, limit - window.total)


def reset_s(window: Window, now_s: float, *, period_s: float) -> float:
    """How long until nothing counts any more."""
    _forget(window, now_s, period_s)
    return _gone_in_s(max(window.counts), now_s, period_s) if window.counts else 0.0


def _forget(window: Window, now_s: float, period_s: float) -> None:
    """Drop the buckets that lie a whole period back."""
    first = bucket(now_s, period_s) - BUCKETS
    if window.oldest >= first or not window.counts:
        return
    for number in [number for number in window.counts if number < first]:
        window.total -= window.counts.pop(number)
    window.oldest = min(window.counts, default=first)


def _gone_in_s(number: int, now_s: float, period_s: float) -> float:
    return (number + BUCKETS + 1) * (period_s / BUCKETS) - now_s + _GRAIN_S
