"""A compiler for the native tests, and what they share of its work."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from native import build


@pytest.fixture(scope="session")
def compiler() -> str:
    """Its command. Without one, whoever asks for it is skipped, and says so."""
    try:
        return " ".join(build.compiler())
    except build.NoCompiler as error:
        pytest.skip(f"native code is not tested: {error}")


@pytest.fixture(scope="session")
def archive(compiler: str) -> Callable[[build.Variant], Path]:
    """The objects of library and tests, compiled once for each variant. They outlive the session, in build/native."""

    def made(variant: build.Variant) -> Path:
        with suppress(build.BuildFailed):  # side by side; whose own test it is, will tell
            build.objects(build.test_sources(), variant)
        return build.archive(variant)

    return cache(made)
