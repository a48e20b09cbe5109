"""An administration with a clock that is set by hand, for tests of the store; its `conftest.py` has the fixtures."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drivetrain import keys
from drivetrain.governance import Key
from drivetrain.store import Store, pepper
from drivetrain.store.administration import Administration
from drivetrain.store.directory import KeyRecord

PEPPER = pepper.of(b"a pepper that tests share")
BY = "key of a test"


@dataclass
class Clock:
    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def administration(store: Store, clock: Clock | None = None) -> Administration:
    return Administration(store, PEPPER, clock or Clock())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def admin(store: Store, clock: Clock) -> Administration:
    return administration(store, clock)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Store]:
    """Of SQLite, for rules that no database has a part in."""
    store = Store.open("sqlite:///state/drivetrain.db", tmp_path)
    yield store
    store.close()


@pytest.fixture
def embedded(file: Store) -> Administration:
    """Of SQLite, for rules that no database has a part in."""
    return administration(file)


def new_key(admin: Administration, name: str = "ci", **fields: Any) -> tuple[Key, str]:
    return admin.create_key({"name": name, **fields}, actor=BY)


def opens(text: str, record: KeyRecord | None) -> bool:
    """Whether whoever shows this text gets in."""
    parsed = keys.parse(text)
    return parsed is not None and record is not None and keys.matches(PEPPER.secret, parsed[1], record.hash)
