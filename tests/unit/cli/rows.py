"""Rows of the ledger for the tests of the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drivetrain.governance import Attempt
from drivetrain.store import Store
from drivetrain.ulid import ulid

CAME_S = 1_796_040_000.0  # 2026-11-30 12:00 UTC


def attempt(**fields: Any) -> Attempt:
    """One that went well, a second after the request came."""
    usual: dict[str, Any] = {
        "id": ulid(),
        "request_id": "req_1",
        "position": 1,
        "started_s": CAME_S,
        "received_s": CAME_S,
        "dialect": "openai.chat",
        "model": "chat",
        "engine": "box",
        "engine_model": "m:7b",
        "stream": True,
        "outcome": "ok",
        "status": 200,
    }
    return Attempt(**(usual | fields))


def fill(home: Path, rows: Iterable[Attempt]) -> None:
    store = Store.open("sqlite:///state/drivetrain.db", home)
    into = store.rows()
    assert list(into.insert(list(rows))) == []
    into.close()
    store.close()
