"""Two gateways side by side, loaded in turns: what the ratio of their rates is on a machine whose speed moves.

One after the other, each fares as the machine does in its minutes: ratios of the same two programs differed by half.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway import Running, install, running
from load import KINDS, Effort, Kind, measure_load, settle, wrk
from processes import Failed
from subjects import SUBJECTS

CONNECTIONS = 10


@dataclass(frozen=True)
class Turns:
    """How the rate of `name` compares with that of `peer`, pair by pair."""

    name: str
    peer: str
    kind: Kind
    ratios: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high


def take_turns(name: str, peer: str, effort: Effort, drivetrain: Path) -> list[Turns]:
    """Of both kinds; none of them if one of the two cannot be measured."""
    print(f"{name} and {peer} in turns", flush=True, file=sys.stderr)
    subjects = SUBJECTS[name], SUBJECTS[peer]
    try:
        for subject in subjects:
            install(subject, drivetrain)
        with running(subjects[0], drivetrain) as one, running(subjects[1], drivetrain) as other:
            return [Turns(name, peer, kind, compared(one, other, kind, effort)) for kind in KINDS]
    except (Failed, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return []


def compared(one: Running, other: Running, kind: Kind, effort: Effort) -> tuple[float, ...]:
    """The first's rate over the second's in each pair; who begins changes from pair to pair."""
    for gateway in (one, other):
        settle(gateway)
        wrk(gateway, kind, CONNECTIONS, effort.warm_s)
        gateway.tree.wait_idle()
    ratios = []
    for number in range(effort.pairs):
        first, second = (one, other) if number % 2 == 0 else (other, one)
        rates = {
            gateway.port: measure_load(gateway, kind, CONNECTIONS, effort).requests_per_s for gateway in (first, second)
        }
        ratios.append(rates[one.port] / max(rates[other.port], 0.1))
    return tuple(ratios)
