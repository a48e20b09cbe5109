"""A server for one command: `python -m drivetrain.cli.private HOME`. It ends when its standard input ends.

The command holds the other end of that pipe, so however the command ends, the server does too.
"""

import os
import signal
import sys
import threading

from drivetrain.cli import main

GRACE_S = 60.0  # for the requests of others; longer than any drain


def _end_with_parent(pipe: int) -> None:
    while os.read(pipe, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(1)


def _guard() -> None:
    """Watches the pipe under another number: what reads standard input gets nothing, and no child inherits the pipe."""
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True, name="end-with-parent").start()


if __name__ == "__main__":
    _guard()
    sys.exit(main(["serve", "--home", sys.argv[1], "--port", "0"]))
