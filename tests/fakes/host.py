"""A host for engines that need none: whatever they ask of it is a mistake."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from drivetrain.errors import ModelNotFound
from drivetrain.types import ModelSpec, Notice, Resident


class NoHost:
    home = Path("/nonexistent")
    default_keep_alive_s = 300.0

    def lookup(self, model: str) -> ModelSpec:
        raise ModelNotFound(f"model '{model}' not found")

    def notify(self, notice: Notice) -> None:
        raise AssertionError(notice)

    def evictions(self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int) -> NoReturn:
        raise AssertionError(resident)
