"""What servers of tests have in common: a port of their own, and that they say when they are ready for it."""

import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def free_port(below: int = 65_536) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            if (port := int(probe.getsockname()[1])) < below:
                return port


class Listening:
    """A process that has said that it is ready. All that it writes goes to the end of `log`."""

    def __init__(self, command: Sequence[str], log: Path, *, ready: bytes, within_s: float, **options: Any) -> None:
        """Starts it. Fails with its log if it ends first, or takes longer."""
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        self._ready = False
        self._said = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(log, ready), daemon=True)
        self._reader.start()
        self._said.wait(within_s)
        if not self._ready:
            self.stop(signal.SIGKILL, within_s)
            raise AssertionError(f"{command[0]} is not ready: {log.read_text(errors='replace')}")

    def stop(self, how: signal.Signals, within_s: float) -> None:
        self._process.send_signal(how)
        self._process.wait(within_s)
        self._reader.join(within_s)

    def _read(self, log: Path, ready: bytes) -> None:
        """Until the end, so that the process never waits for a reader."""
        assert self._process.stdout is not None
        with self._process.stdout as lines, log.open("ab", buffering=0) as file:
            for line in lines:
                file.write(line)
                if ready in line:
                    self._ready = True
                    self._said.set()
        self._said.set()
