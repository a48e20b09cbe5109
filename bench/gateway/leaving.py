"""Does a gateway stop its upstream when the caller has gone?"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from gateway import Running
from load import wire_request

GONE_WITHIN_S = 3.0
PACE_MS = 20  # some notice only when they write the next chunk
FIRST_BYTE_MS = 6000


@dataclass(frozen=True)
class Leaving:
    """Milliseconds from the caller's close to the upstream's; None: not while the answer lasted."""

    in_stream_ms: float | None
    before_first_byte_ms: float | None


def measure_leaving(running: Running) -> Leaving:
    if not running.subject.start:
        return Leaving(None, None)
    running.pace(PACE_MS)
    in_stream_ms = leave(running, after_first_token=True)
    running.pace(PACE_MS, first_ms=FIRST_BYTE_MS)
    before_ms = leave(running, after_first_token=False)
    running.pace(0)
    return Leaving(in_stream_ms, before_ms)


def leave(running: Running, *, after_first_token: bool) -> float | None:
    before = running.mock_stats()
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as caller:
        caller.sendall(wire_request(running.subject.model, "stream", running.headers))
        if after_first_token:
            read_until_content(caller)
        else:
            wait_for(running, "requests", before["requests"])
    return wait_for(running, "closed_early", before["closed_early"])


def read_until_content(caller: socket.socket) -> None:
    got = b""
    while b'"@' not in got and (more := caller.recv(65536)):
        got += more


def wait_for(running: Running, count: str, before: int) -> float | None:
    """Milliseconds until the mock's `count` has grown; None when it does not."""
    start_s = time.monotonic()
    while running.mock_stats()[count] <= before:
        if time.monotonic() - start_s > GONE_WITHIN_S:
            return None
        time.sleep(0.002)
    return (time.monotonic() - start_s) * 1000
