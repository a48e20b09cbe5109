"""How a streamed model fares, seen from the server: its worker's page of counters, and a pass that nobody waits for."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from drivetrain.dialects.openai import decode_error
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import fetch
from drivetrain.engines.expertstream import page
from drivetrain.errors import EngineError, LoadFailed
from drivetrain.types import Experts

POLL_S: Final = 0.02
PATIENCE_S: Final = 30.0  # for a pass that was given up to end
_BUSY: Final = (b"llamacpp:requests_processing ", b"llamacpp:requests_deferred ")


class Flow:
    """Of one worker. When its page has gone, what was read last still holds."""

    def __init__(self, path: Path) -> None:
        """Raises `LoadFailed` if there is no page."""
        self._path = path
        found = page.read(path)
        if found is None:
            raise LoadFailed(f"the streaming library made no page of counters at {path}")
        self._last = found
        self._stopped = False

    def experts(self) -> Experts:
        now = self._read()
        return Experts(
            budget_bytes=now.budget,
            resident_bytes=now.resident,
            total_bytes=now.expert_bytes,
            hits=now.hits,
            misses=now.misses,
            read_bytes=now.read_bytes,
            wait_s=now.wait_ns / 1e9,
            compute_s=now.compute_ns / 1e9,
            tokens=now.tokens,
            failures=now.failures,
        )

    def error(self) -> str:
        """What failed last."""
        return self._read().error

    def stop(self) -> None:
        """Give up the pass that runs. Only for whoever knows that nobody needs it: all its requests fail."""
        self._stopped = page.abort_below(self._path, self._read().passes)

    async def settled(self, upstream: Upstream) -> None:
        """Return when a pass that was given up has ended: a request that comes before would fail with it."""
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(PATIENCE_S):
                while self._stopped:
                    if not await _busy(upstream):
                        break
                    await asyncio.sleep(POLL_S)
        self._stopped = False

    def _read(self) -> page.Page:
        self._last = page.read(self._path) or self._last
        return self._last


async def _busy(upstream: Upstream) -> bool:
    """Whether the worker itself says that it works on something."""
    figures = (await fetch(upstream, "/metrics", decode_error)).splitlines()
    return any(float(line.split()[1]) for line in figures if line.startswith(_BUSY))
