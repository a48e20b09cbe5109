"""Before a large model is downloaded, its header alone is looked at, and a line about it is told."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from drivetrain import gguf
from drivetrain.config.schema import Downloads
from drivetrain.errors import BadRequest
from drivetrain.gguf import Gguf
from drivetrain.library import Library
from tests.fakes.registries import Faults, Registry
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

WEIGHTS = tiny_gguf(3 * 2**20, general__architecture="llama", llama__block_count=7)


class Judge:
    """Finds every model worth a word that is larger than `above` bytes."""

    def __init__(self, above: int = 0) -> None:
        self._above = above
        self.seen: list[Sequence[Gguf]] = []

    def wanted(self, size_bytes: int) -> bool:
        return size_bytes > self._above

    def told(self, headers: Sequence[Gguf]) -> str | None:
        self.seen.append(headers)
        return f"prediction: it has {headers[0].whole('llama.block_count')} layers"


async def pulled(home: Path, judge: Judge, registry: Registry) -> list[str]:
    async with registry.serving() as site:
        library = Library(home, Downloads(ollama=site.url), lambda notice: None, outlook=judge)
        return list(dict.fromkeys([status.status async for status in library.pull("tiny")]))


def registry(weights: bytes = WEIGHTS) -> Registry:
    made = Registry()
    made.publish("library/tiny:latest", {"model": weights})
    return made


async def test_the_line_comes_before_the_first_byte_of_weights(home: Path) -> None:
    judge = Judge()
    steps = await pulled(home, judge, registry())
    assert steps[:2] == ["pulling manifest", "prediction: it has 7 layers"]
    assert steps[-1] == "success"
    assert [header.file_bytes for headers in judge.seen for header in headers] == [len(WEIGHTS)]


async def test_a_model_that_is_here_is_not_looked_at_again(home: Path) -> None:
    judge = Judge()
    await pulled(home, judge, registry())
    await pulled(home, judge, registry())
    assert len(judge.seen) == 1


async def test_a_small_model_is_not_looked_at(home: Path) -> None:
    judge = Judge(above=len(WEIGHTS))
    assert (await pulled(home, judge, registry()))[-1] == "success"
    assert judge.seen == []


async def test_advice_that_cannot_be_given_stops_nothing(home: Path) -> None:
    without_ranges, judge = registry(), Judge()
    without_ranges.faults = Faults(ranges=False)
    assert (await pulled(home, judge, without_ranges))[-1] == "success"
    assert judge.seen == []


def test_the_beginning_of_a_file_is_enough_for_its_header() -> None:
    assert gguf.head(WEIGHTS[:4096], len(WEIGHTS)).whole("llama.block_count") == 7
    with pytest.raises(BadRequest, match="inside its header"):
        gguf.head(WEIGHTS[:60], len(WEIGHTS))
    with pytest.raises(BadRequest, match="is the download complete"):
        gguf.head(WEIGHTS[:4096], 4096)
