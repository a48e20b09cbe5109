"""Lands with a sea between them: network namespaces whose packets all pass through a relay of ours, which holds each
back for a while, or loses those of a land altogether.

A land has one device and one address; the test itself is a land too. Processes and sockets that are made `within` a
land are there. It takes root, `ip` and TUN devices; what was made is gone when the block is left.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import selectors
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NETWORK = "198.18.77"  # of a range that is for measuring networks (RFC 2544)
HOME = "home"  # where the test is
TUN = Path("/dev/net/tun")
SET_DEVICE, TUN_WITHOUT_HEADER = 0x400454CA, 0x1001  # TUNSETIFF; IFF_TUN | IFF_NO_PI (linux/if_tun.h)
NEW_NETWORK = 0x40000000  # CLONE_NEWNET (linux/sched.h)
MOST_BYTES = 65_536
SOURCE, DESTINATION = slice(12, 16), slice(16, 20)  # of an IPv4 header


class Land:
    def __init__(self, name: str, number: int, device: int) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.key = bytes(map(int, self.address.split(".")))
        self.device = device  # what is sent from here is read from it, what is written to it arrives here


class Sea:
    """Carries packets in a thread of its own, so that whoever blocks in a test holds nobody up."""

    def __init__(self, lands: Sequence[Land], delay_s: float) -> None:
        self.lands = {land.name: land for land in lands}
        self.delay_s = delay_s  # from land to land; none to or from home
        self.lost: set[str] = set()  # nothing leaves or reaches these
        self.cut = False  # nothing goes from land to land, but from home and back
        self._by_key = {land.key: land for land in lands}
        self._due: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.write(self._wake[1], b"x")
        self._thread.join()
        for end in self._wake:
            os.close(end)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ)
            for land in self.lands.values():
                selector.register(land.device, selectors.EVENT_READ)
            while True:
                wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
                for key, _ in selector.select(wait_s):
                    if key.fd == self._wake[0]:
                        return
                    self._take(key.fd)
                self._deliver(time.monotonic())

    def _take(self, device: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(device, MOST_BYTES):
                from_, to = self._by_key.get(packet[SOURCE]), self._by_key.get(packet[DESTINATION])
                if packet[0] >> 4 == 4 and from_ is not None and to is not None:
                    self._send(packet, from_, to)

    def _send(self, packet: bytes, from_: Land, to: Land) -> None:
        far = HOME not in (from_.name, to.name)
        if (far and self.cut) or not self.lost.isdisjoint((from_.name, to.name)):
            return
        due_s = time.monotonic() + (self.delay_s if far else 0.0)
        heapq.heappush(self._due, (due_s, next(self._numbers), to.device, packet))

    def _deliver(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            _, _, device, packet = heapq.heappop(self._due)
            with contextlib.suppress(OSError):  # a full queue loses packets, as anywhere
                os.write(device, packet)


@contextmanager
def sea(names: Sequence[str], delay_s: float) -> Iterator[Sea]:
    """These lands and home. Skips the test, with the reason, where there can be none."""
    if why := _obstacle():
        pytest.skip(why)
    with ExitStack() as stack:
        lands = [stack.enter_context(_land(name, number)) for number, name in enumerate((HOME, *names), 1)]
        made = Sea(lands, delay_s)
        stack.callback(made.close)
        yield made


def _obstacle() -> str | None:
    """Why there can be no lands here."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    if shutil.which("ip") is None:
        return "there is no `ip` to make network namespaces with (iproute2)"
    if not TUN.exists():
        return f"there is no {TUN} for a relay between network namespaces"
    probe = subprocess.run(["ip", "netns", "add", _space("probe")], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"no network namespace can be made here: {probe.stderr.strip()}"
    _ip("netns", "del", _space("probe"))
    return None


@contextmanager
def _land(name: str, number: int) -> Iterator[Land]:
    device_name = f"dt{os.getpid() % 1_000_000}-{number}"
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, SET_DEVICE, struct.pack("16sH22x", device_name.encode(), TUN_WITHOUT_HEADER))
        land = Land(name, number, device)
        with _space_of(name):
            where = () if name == HOME else ("-n", _space(name))
            if name != HOME:
                _ip("link", "set", device_name, "netns", _space(name))
                _ip(*where, "link", "set", "lo", "up")
            _ip(*where, "address", "add", f"{land.address}/24", "dev", device_name)
            _ip(*where, "link", "set", device_name, "up")
            yield land
    finally:
        os.close(device)  # the device goes with it


@contextmanager
def _space_of(name: str) -> Iterator[None]:
    if name == HOME:
        yield
        return
    _ip("netns", "add", _space(name))
    try:
        yield
    finally:
        _ip("netns", "del", _space(name))


def _space(name: str) -> str:
    return f"drivetrain-{os.getpid()}-{name}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def within(name: str) -> Iterator[None]:
    """This thread is in that land: what it starts, and the sockets that it opens, stay there."""
    with Path("/proc/thread-self/ns/net").open() as here, Path(f"/run/netns/{_space(name)}").open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(space: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
