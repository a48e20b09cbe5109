"""Ollama's model names: what is valid, how it is shown, what equals what, and that none leaves its folder."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects.ollama import names
from drivetrain.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "full", "shown"),
    [
        ("llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("llama3:8b", "registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("library/llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("me/llama3", "registry.ollama.ai/me/llama3:latest", "me/llama3:latest"),
        ("Registry.Ollama.AI/Library/x", "Registry.Ollama.AI/Library/x:latest", "x:latest"),
        ("hf.co/user/repo:Q4_K_M", "hf.co/user/repo:Q4_K_M", "hf.co/user/repo:Q4_K_M"),
        ("localhost:5000/ns/m:t", "localhost:5000/ns/m:t", "localhost:5000/ns/m:t"),
        ("https://example.com/ns/m", "example.com/ns/m:latest", "example.com/ns/m:latest"),
        ("_a.b-c", "registry.ollama.ai/library/_a.b-c:latest", "_a.b-c:latest"),
    ],
)
def test_parts_that_are_missing_are_filled_in_and_hidden_when_shown(text: str, full: str, shown: str) -> None:
    assert names.parse(text).full == full
    assert names.shown(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "/", "a:", ":b", "a/", "/a", "a//b", "a b", "a:b:c", "a/b/c/d", ".a", "-a", "a/.b", "..", "a..b"),
        *(
            "../a",
            "a/../b",
            "/etc/passwd",
            "a\\b",
            "a\0b",
            "C:\\x",
            "a:../b",
            "n.s/m",
            "ä",
            "a%2fb",
            "a\n",
            "\uff0e\uff0e/a",
        ),
        *("x" * 81, "a:" + "x" * 81, "x" * 81 + "/a", "h" * 351 + "/n/m", "a@sha256:" + "0" * 64),
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(BadRequest, match=r"^invalid model name$"):
        names.parse(text)
    assert not names.is_valid(text)
    assert names.shown(text) == text


def test_the_longest_parts_are_valid() -> None:
    assert names.is_valid("h" * 350 + "/" + "n" * 80 + "/" + "m" * 80 + ":" + "t" * 80)


def test_names_are_the_same_whatever_their_case_and_defaults() -> None:
    assert names.same("Llama3", "registry.ollama.ai/library/llama3:LATEST")
    assert not names.same("llama3", "llama3:8b")
    assert names.same("not a name", "not a name")
    assert not names.same("not a name", "Not a name")


_REFERENCE = st.text(st.sampled_from(string.ascii_letters + string.digits + "_-./:\\\0 %~"), max_size=40)


@given(st.one_of(_REFERENCE, st.text(max_size=20)))
def test_no_valid_name_leaves_the_folder_it_is_joined_to(text: str) -> None:
    if not names.is_valid(text):
        return
    name = names.parse(text)
    assert not name.path.is_absolute()
    assert len(name.path.parts) == 4
    assert not {".", "..", ""} & set(name.path.parts)
    assert not set("\\\0 ") & set(str(name.path))
    root = Path("/models")
    assert (root / name.path).resolve().is_relative_to(root.resolve())


@given(_REFERENCE.filter(names.is_valid))
def test_what_is_shown_is_the_name_again(text: str) -> None:
    assert names.parse(names.shown(text)).key == names.parse(text).key
    assert names.parse(names.parse(text).full) == names.parse(text)


def test_a_digest_is_64_hex_digits() -> None:
    assert names.digest("sha256:" + "aB" * 32) == "ab" * 32
    assert names.digest("sha256-" + "0" * 64) == "0" * 64
    for bad in (
        "",
        "ab" * 32,
        "sha256:",
        "sha256:" + "g" * 64,
        "sha256:" + "a" * 63,
        "sha256:../" + "a" * 61,
        "md5:" + "a" * 64,
    ):
        with pytest.raises(BadRequest, match="invalid digest format"):
            names.digest(bad)
