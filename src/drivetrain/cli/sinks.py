"""The process that exports rows of the ledger to sinks: `python -m drivetrain.cli.sinks`, started by its owner.

The first line of its standard input is its orders; when that input ends, its owner is gone, and it goes too.
"""

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from drivetrain.cli.child import leashed
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
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, exports.stop)
    leashed(exports.stop)
    try:
        await exports.run()
    finally:
        metrics.close()


if __name__ == "__main__":
    main()
