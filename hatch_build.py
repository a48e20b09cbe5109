"""Puts the streaming library into the wheel: hatchling calls this when it builds one, also an editable one.

A machine without a C++ compiler gets a wheel all the same, which works but for streaming. Why there is no library is
told in `not-built.txt` in its place, which `drivetrain` reads.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibrary(BuildHookInterface[BuilderConfig]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = _module(Path(self.root, "native", "build.py"))
        editable = version == "editable"
        folder = build.PACKAGE if editable else build.CACHE / "wheel"
        try:
            made = build.library(folder)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"
        except build.BuildFailed as error:
            made = folder / build.EXCUSE
            self.app.display_warning(f"the streaming library is not built: {error.reason()}; everything else works")
        if not editable:
            build_data["force_include"][str(made)] = f"drivetrain/engines/expertstream/{made.name}"


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("drivetrain_native_build", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _platform() -> str:
    """Of this machine. No `manylinux`: the library is linked against what is here, and promises no more."""
    from packaging.tags import sys_tags  # hatchling needs it too

    names = (tag.platform for tag in sys_tags())
    return next(name for name in names if not name.startswith(("manylinux", "musllinux")))
