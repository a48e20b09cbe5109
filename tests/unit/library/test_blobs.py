"""Uploaded content is kept under its digest, and only under its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivetrain.errors import BadRequest
from drivetrain.library import Library
from tests.fakes.registries import pieces, sha256

pytestmark = pytest.mark.anyio

DATA = b"some weights" * 1000


async def test_content_is_kept_once(library: Library, home: Path) -> None:
    assert library.has_blob(sha256(DATA)) is False
    assert await library.put_blob(sha256(DATA), pieces(DATA)) is True
    assert library.has_blob(sha256(DATA)) is True
    assert await library.put_blob(sha256(DATA), pieces(DATA)) is False
    (blob,) = (home / "blobs").iterdir()
    assert blob.name == sha256(DATA).replace(":", "-")
    assert blob.read_bytes() == DATA


async def test_other_content_is_refused_in_ollamas_words(library: Library, home: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        await library.put_blob(sha256(b"x"), pieces(DATA))
    assert caught.value.message == f'digest mismatch, expected "{sha256(b"x")}", got "{sha256(DATA)}"'
    assert list((home / "blobs").iterdir()) == []


async def test_an_upload_that_breaks_off_leaves_nothing(library: Library, home: Path) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield DATA[:100]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await library.put_blob(sha256(DATA), breaking())
    assert list((home / "blobs").iterdir()) == []


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../x", "sha256:" + "g" * 64, "md5:" + "0" * 32, "0" * 64])
async def test_what_is_no_digest_is_refused(library: Library, digest: str) -> None:
    with pytest.raises(BadRequest, match="invalid digest format"):
        library.has_blob(digest)
    with pytest.raises(BadRequest, match="invalid digest format"):
        await library.put_blob(digest, pieces(DATA))
