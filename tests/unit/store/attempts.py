"""Rows of the ledger for tests of the store."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from drivetrain.governance import Attempt
from drivetrain.store import Ledger, Store


def attempt(number: int, **fields: object) -> Attempt:
    """One that differs from others of its kind in its number and what `fields` say."""
    row = Attempt(
        id=f"01J0000000000000000000{number:04d}",
        request_id=f"req_{number}",
        position=1,
        started_s=1000.0 + number,
        dialect="openai.chat",
        model="smollm2:135m",
        engine="local",
        engine_model="smollm2",
        stream=True,
        outcome="ok",
        status=200,
        first_token_s=0.01,
    )
    return msgspec.structs.replace(row, **fields)


async def kept(store: Store, state: Path, rows: list[Attempt]) -> None:
    async with writing(store, state) as ledger:
        for row in rows:
            ledger.append(row)
        assert await ledger.flush()


@asynccontextmanager
async def writing(store: Store, state: Path, memory_rows: int = 1000) -> AsyncGenerator[Ledger, None]:
    ledger = Ledger(store, state, memory_rows=memory_rows)
    ledger.start()
    try:
        yield ledger
    finally:
        await ledger.close()
