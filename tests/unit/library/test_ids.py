"""An id is one folder, and back; no id reaches outside the library."""

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.errors import BadRequest
from drivetrain.library import ids

HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "/etc/passwd",
    "a//b",
    "a/",
    "x\0y",
    "a\\..\\b",
    "C:\\x",
    "a\nb",
    " a",
    "a /b",
    "a" * 1000,
    "é" * 100,
    "\ud800",
    "a\u202eb",
]


@pytest.mark.parametrize("id", HOSTILE)
def test_refuses_what_is_no_id(id: str) -> None:
    with pytest.raises(BadRequest, match="invalid model name"):
        ids.folder(id)


@pytest.mark.parametrize(
    ("id", "folder"),
    [
        ("tinyllama-1.1b", "tinyllama-1.1b"),
        ("smollm2:135m", "smollm2%3A135m"),
        ("org/name", "org%2Fname"),
        ("hf.co/org/repo:Q4_K_M", "hf.co%2Forg%2Frepo%3AQ4_K_M"),
        (".hidden", "%2Ehidden"),
        ("ends.", "ends%2E"),
        ("50%2F", "50%252F"),
        ("モデル", "%E3%83%A2%E3%83%87%E3%83%AB"),
    ],
)
def test_an_id_has_one_folder(id: str, folder: str) -> None:
    assert ids.folder(id) == folder
    assert ids.parse(folder) == id


@given(st.text(max_size=60) | st.from_regex(r"[\w./:%\\ -]{0,40}", fullmatch=True))
def test_a_folder_is_one_step_below_the_library_or_the_id_is_refused(id: str) -> None:
    try:
        folder = ids.folder(id)
    except BadRequest:
        return
    assert PurePosixPath(folder).parts == (folder,)
    assert not folder.startswith(".")
    assert (Path("/models") / folder).resolve().parent == Path("/models")
    assert len(folder.encode()) <= 200
    assert ids.parse(folder) == id


@given(st.text(max_size=30), st.text(max_size=30))
def test_two_ids_never_share_a_folder(one: str, other: str) -> None:
    try:
        folders = ids.folder(one), ids.folder(other)
    except BadRequest:
        return
    assert (folders[0] == folders[1]) == (one == other)
