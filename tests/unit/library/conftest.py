"""A library in an empty home."""

from pathlib import Path

import pytest

from drivetrain.config.schema import Downloads
from drivetrain.library import Library
from drivetrain.types import Notice


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def notices() -> list[Notice]:
    return []


@pytest.fixture
def library(home: Path, notices: list[Notice]) -> Library:
    return Library(home, Downloads(), notices.append)
