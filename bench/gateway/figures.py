"""What the tools that measure write and tell alike: figures as `NAME-DATE.json`, and on which processor."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def write_figures(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    """Writes `NAME-DATE.json` into a folder, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"date": today(), **values}, indent=1, ensure_ascii=False)
    (folder / f"{name}-{today()}.json").write_text(text + "\n")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
