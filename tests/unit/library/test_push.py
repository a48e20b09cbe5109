"""A push sends what the registry has not, and what comes back by a pull is the same model."""

from pathlib import Path

import pytest

from drivetrain.config.schema import Downloads
from drivetrain.errors import Forbidden, ModelNotFound
from drivetrain.library import Library, Status
from drivetrain.types import Notice
from tests.fakes.registries import Answer, Registry, serving, sha256
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

WEIGHTS = tiny_gguf(200_000)
WORDS = {"template": "{{ .Prompt }}", "system": "Be kind.", "parameters": {"top_k": 4}, "license": ["MIT", "and more"]}
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


async def model(home: Path, registry: str, tmp_path: Path) -> Library:
    """A home that holds `me/tiny:v1` with all kinds of layers."""
    library = Library(home, Downloads(ollama=registry), lambda notice: None)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(WEIGHTS)
    (folder / "mmproj.gguf").write_bytes(tiny_gguf(9000))
    await library.add(folder, "me/tiny:v1")
    await library.update("me/tiny:v1", {**WORDS, "messages": TALK})
    return library


async def push(library: Library, name: str, *, insecure: bool = False) -> list[Status]:
    return [status async for status in library.push(name, insecure)]


@pytest.mark.parametrize("token", [None, "t0ken"])
async def test_there_and_back(home: Path, tmp_path: Path, token: str | None, notices: list[Notice]) -> None:
    registry = Registry(token=token)
    async with registry.serving() as site:
        library = await model(home, site.url, tmp_path)
        statuses = await push(library, "me/tiny:v1")
        assert sha256(WEIGHTS) in registry.blobs
        other = Library(tmp_path / "other", Downloads(ollama=site.url), notices.append)
        async for _ in other.pull("me/tiny:v1"):
            pass
    words = list(dict.fromkeys(status.status for status in statuses))
    assert words[0] == "retrieving manifest"
    assert words[1] == f"pushing {sha256(WEIGHTS)[7:19]}"
    assert words[-2:] == ["pushing manifest", "success"]
    moved = [status for status in statuses if status.digest == sha256(WEIGHTS)]
    assert (moved[-1].completed, moved[-1].total) == (len(WEIGHTS), len(WEIGHTS))
    before, after = library.lookup("me/tiny:v1"), other.lookup("me/tiny:v1")
    assert (after.template, after.system, after.parameters) == (before.template, before.system, before.parameters)
    assert after.messages == before.messages
    assert after.model.digest == before.model.digest
    assert after.projector is not None
    assert other.members("me/tiny:v1")["license"] == WORDS["license"]


async def test_what_is_there_already_is_not_sent_again(home: Path, tmp_path: Path) -> None:
    registry = Registry()
    async with registry.serving() as site:
        library = await model(home, site.url, tmp_path)
        await push(library, "me/tiny:v1")
        uploads = site.count("POST", "uploads")
        await library.update("me/tiny:v1", {"system": "Be new."})
        await push(library, "me/tiny:v1")
        assert site.count("POST", "uploads") == uploads + 2  # the system text, and the configuration that lists it
    assert b"Be new." in registry.blobs.values()


async def test_a_registry_that_denies_is_told_as_such(home: Path, tmp_path: Path) -> None:
    async with serving(lambda asked: Answer(404 if asked.method == "HEAD" else 403)) as site:
        library = await model(home, site.url, tmp_path)
        with pytest.raises(Forbidden, match="denies pushing me/tiny:v1"):
            await push(library, "me/tiny:v1")


async def test_only_what_is_here_can_be_pushed(library: Library) -> None:
    with pytest.raises(ModelNotFound, match="model 'me/none' not found"):
        await push(library, "me/none")
