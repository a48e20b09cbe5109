"""Hosts for engines: one for those that need none, and one with models on a shelf."""

import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from drivetrain.errors import ModelNotFound
from drivetrain.residency import Terms, evictions
from drivetrain.types import ModelSpec, Notice, Resident


class NoHost:
    """Whatever an engine asks of it is a mistake."""

    home = Path("/nonexistent")
    default_keep_alive_s = 300.0

    def lookup(self, model: str) -> ModelSpec:
        raise ModelNotFound(f"model '{model}' not found")

    def notify(self, notice: Notice) -> None:
        raise AssertionError(notice)

    def pinned(self, model: str) -> bool:
        raise AssertionError(model)

    def evictions(
        self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0
    ) -> NoReturn:
        raise AssertionError(resident)


class ShelfHost:
    """A host with models on a shelf: it lends them, remembers what it was told, and evicts the least recently used."""

    def __init__(
        self,
        home: Path,
        *specs: ModelSpec,
        default_keep_alive_s: float = 300.0,
        max_loaded: int = 0,
        least_resident_s: float = 0.0,
        patience_s: float = math.inf,
        pins: Collection[str] = (),
    ) -> None:
        self.home = home
        self.default_keep_alive_s = default_keep_alive_s
        self.terms = Terms(max_loaded=max_loaded, least_resident_s=least_resident_s, patience_s=patience_s)
        self.pins = pins
        self.shelf = {spec.id: spec for spec in specs}
        self.told: list[Notice] = []

    def lookup(self, model: str) -> ModelSpec:
        try:
            return self.shelf[model]
        except KeyError:
            raise ModelNotFound(f"model '{model}' not found") from None

    def notify(self, notice: Notice) -> None:
        self.told.append(notice)

    def pinned(self, model: str) -> bool:
        return model in self.pins

    def evictions(
        self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0
    ) -> Sequence[str]:
        return evictions(
            resident,
            need_bytes=need_bytes,
            budget_bytes=budget_bytes,
            terms=self.terms,
            pinned=self.pinned,
            now_s=time.monotonic(),
            waited_s=waited_s,
        )

    def names(self, model: str) -> list[str]:
        """The names of what was told of a model, in order."""
        return [notice.name for notice in self.told if notice.model == model]
