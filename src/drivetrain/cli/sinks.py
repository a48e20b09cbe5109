"""The process that exports rows of the ledger to sinks: `python -m drivetrain.cli.sinks`, started by its owner.

The first line of its standard input is its orders; when that input ends, its owner is gone, and it goes too.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from drivetrain.cli.exports import secrets
from drivetrain.sinks.export import Standing
from drivetrain.sinks.process import Exports, Orders
from drivetrain.telemetry import Logs, Metrics, metrics_folder


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells everybody; our owner tells us when it is time
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    logs = Logs(level=orders.logging.level, format=orders.logging.format)
    logs.install()
    logs.know_secrets(secrets(orders.sinks))
    uvloop.run(_export(orders))


async def _export(orders: Orders) -> None:
    metrics = Metrics(metrics_folder(Path(orders.home)))

    def told(standing: Standing) -> None:
        metrics.sink(
            standing.name,
            lag_rows=standing.lag_rows,
            lag_s=standing.lag_s,
            taken=standing.taken,
            dead=standing.dead,
        )

    exports = Exports(orders, told)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, exports.stop)
    loop.add_reader(sys.stdin.fileno(), _stop_if_orphaned, exports)
    try:
        await exports.run()
    finally:
        metrics.close()


def _stop_if_orphaned(exports: Exports) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        exports.stop()


if __name__ == "__main__":
    main()
