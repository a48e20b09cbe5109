"""The worker: a process of its own that runs llama.cpp's HTTP server for one model, until its parent is gone.

Runs as a script (`python -P worker.py`), not as a module, so that it imports nothing of Drivetrain and starts at once.
One line of JSON on standard input tells what to run, see `Launch.orders`; the end of standard input tells it to die.
Standard output: lines of llama.cpp that begin with `cmd_child_to_router:state:` tell how far loading has come, and
`drivetrain:ready` ends it; `drivetrain:shell 0.5` tells how much of a shell is made. Standard error is llama.cpp's log.
"""

import contextlib
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
SHELL = "drivetrain:shell "
SHELL_STEP_S = 0.5  # between two lines about a shell
ERROR_BYTES = 4096
PR_SET_PDEATHSIG = 1
OOM_SCORE_ADJ = "500"  # a worker is to be killed for want of memory before the server is


def main() -> NoReturn:
    _die_with_parent()
    orders = json.loads(sys.stdin.buffer.readline() or b"null")
    if orders is None:
        sys.exit("no orders came on standard input")
    threading.Thread(target=_watch_parent, daemon=True).start()
    try:
        server = _serve(orders)
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError, OSError) as error:
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


def _runtime(*, shared: bool) -> ModuleType:
    """llama.cpp. The one place that imports it: whatever has to be in the process before it, goes here.

    `shared`: a library that is loaded after it finds its functions.
    """
    flags = sys.getdlopenflags()
    if shared:
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        return importlib.import_module("xllamacpp")
    finally:
        sys.setdlopenflags(flags)


def _serve(orders: dict[str, Any]) -> object:
    stream = orders.get("stream")
    if stream:
        _make_shell(**stream)
    runtime = _runtime(shared=stream is not None)
    # Asked before the library is there: it takes the question for the beginning of the calculation.
    has_gpu = any("GPU" in device["type"].name for device in runtime.get_device_info())
    if stream:
        _stream(**stream)
    params = runtime.CommonParams()
    members = orders["params"] | (orders["with_gpu"] if has_gpu else {})
    for path, value in members.items():
        _set(params, path.split("."), value)
    params.lora_adapters = [_adapter(runtime, **adapter) for adapter in orders["adapters"]]
    return runtime.Server(params)


def _stream(library: str, options: str, **_: Any) -> None:
    """Has llama.cpp take the library as one of its backends. Raises `RuntimeError` with why it does not."""
    native = ctypes.CDLL(library)
    _call(native.es_configure, options)
    load = ctypes.CDLL(None).ggml_backend_load
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    if not load(os.fsencode(library)):
        native.es_refusal.restype = ctypes.c_char_p
        why = native.es_refusal().decode("utf-8", "replace") or "it was made for another version of it"
        raise RuntimeError(f"llama.cpp does not take the streaming library: {why}")


def _make_shell(library: str, model: str, shell: str, dense_bytes: int, **_: Any) -> None:
    """All of a model but its experts, for llama.cpp to load. Returns at once if it is there. Says how far it is."""
    done = threading.Event()
    teller = threading.Thread(target=_tell_shell, args=(shell, dense_bytes, done))
    teller.start()
    try:
        _call(ctypes.CDLL(library).es_shell, model, shell)
    finally:
        done.set()
        teller.join()


def _tell_shell(shell: str, dense_bytes: int, done: threading.Event) -> None:
    while not done.wait(SHELL_STEP_S):
        with contextlib.suppress(FileNotFoundError):
            share = os.stat(f"{shell}.part").st_blocks * 512 / max(dense_bytes, 1)
            print(f"\n{SHELL}{min(share, 1.0):.3f}", flush=True)  # noqa: T201 - the protocol


def _call(function: Any, *texts: str) -> None:
    """A function of the library that says why it failed."""
    reason = ctypes.create_string_buffer(ERROR_BYTES)
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_char_p] * (len(texts) + 1) + [ctypes.c_size_t]
    if function(*map(os.fsencode, texts), reason, ERROR_BYTES) != 0:
        raise RuntimeError(reason.value.decode("utf-8", "replace"))


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
