"""One worker process of `serve --workers N`. Started by its owner with its orders as the only argument."""

import os
import socket
import sys
from pathlib import Path

import msgspec
import uvloop

from drivetrain.cli.crew import Orders
from drivetrain.cli.serve import Server


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    sockets = [socket.socket(fileno=number) for number in orders.sockets]
    uvloop.run(Server(Path(orders.home), os.environ, orders.flags).work(sockets, Path(orders.owner)))


if __name__ == "__main__":
    main()
