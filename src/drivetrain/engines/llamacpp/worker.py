"""The worker: a process of its own that runs llama.cpp's HTTP server for one model, until its parent is gone.

Runs as a script (`python -P worker.py`), not as a module, so that it imports nothing of Drivetrain and starts at once.
One line of JSON on standard input tells what to run, see `Launch.orders`; the end of standard input tells it to die.
Standard output: lines of llama.cpp that begin with `cmd_child_to_router:state:` tell how far loading has come, and
`drivetrain:ready` ends it. Standard error is llama.cpp's log.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

READY = "drivetrain:ready"
PR_SET_PDEATHSIG = 1
OOM_SCORE_ADJ = "500"  # a worker is to be killed for want of memory before the server is


def main() -> NoReturn:
    _die_with_parent()
    orders = json.loads(sys.stdin.buffer.readline() or b"null")
    if orders is None:
        sys.exit("no orders came on standard input")
    threading.Thread(target=_watch_parent, daemon=True).start()
    try:
        server = _serve(_runtime(), orders)
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:
        print(f"worker: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the log
        os._exit(1)
    print(f"\n{READY}", flush=True)  # noqa: T201 - the protocol of this process
    while True:
        signal.pause()
        del server  # never reached: keeps the server alive


def _die_with_parent() -> None:
    """Linux kills this process with its parent, whatever it is doing; elsewhere the end of standard input does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(OOM_SCORE_ADJ)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the whole model
    os.environ["GGML_NO_BACKTRACE"] = "1"  # no debugger in a crash: it takes seconds and says little
    # OpenMP's threads wait for one another by spinning. On a busy machine that is ruinous (4 tokens/s where 50 are
    # possible), sleeping at once costs a third on a quiet one; spinning for some 50 µs costs little on either.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ["LLAMA_SERVER_ROUTER_PORT"] = "0"  # makes llama.cpp tell how far loading has come


def _watch_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _runtime() -> ModuleType:
    """llama.cpp. The one place that imports it: whatever has to be in the process before it, goes here."""
    return importlib.import_module("xllamacpp")


def _serve(runtime: ModuleType, orders: dict[str, Any]) -> object:
    params = runtime.CommonParams()
    has_gpu = any("GPU" in device["type"].name for device in runtime.get_device_info())
    members = orders["params"] | (orders["with_gpu"] if has_gpu else {})
    for path, value in members.items():
        _set(params, path.split("."), value)
    params.lora_adapters = [_adapter(runtime, **adapter) for adapter in orders["adapters"]]
    return runtime.Server(params)


def _set(target: Any, path: list[str], value: Any) -> None:
    """Sets a member, which may be one of a member. A string for an enumeration names its value."""
    *parents, name = path
    for parent in parents:
        target = getattr(target, parent)
    old = getattr(target, name)
    is_enum = isinstance(value, str) and isinstance(old, int)
    setattr(target, name, type(old)[value] if is_enum else value)


def _adapter(runtime: ModuleType, path: str, scale: float) -> object:
    adapter = runtime.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = path, scale
    return adapter


if __name__ == "__main__":
    main()
