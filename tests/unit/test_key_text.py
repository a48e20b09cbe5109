"""What a key looks like, and what opens it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain import keys

PEPPER = b"a pepper"


def test_a_new_key_has_twelve_public_characters_and_a_secret_of_256_bits() -> None:
    public_id, secret = keys.new()
    assert re.fullmatch("[0-9a-z]{12}", public_id)
    assert re.fullmatch("[0-9A-Za-z]{43}", secret)  # 62 ** 43 > 2 ** 256
    assert 62**43 > 2**256
    assert keys.parse(keys.text(public_id, secret)) == (public_id, secret)


def test_no_two_keys_are_alike() -> None:
    made = [keys.new() for _ in range(1000)]
    assert len({public_id for public_id, _ in made}) == len({secret for _, secret in made}) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dt-",
        "sk-abcdefghijkl-" + "a" * 43,
        "dt-abcdefghijkl-" + "a" * 42,
        "dt-abcdefghijkl-" + "a" * 44,
        "dt-ABCDEFGHIJKL-" + "a" * 43,
        "dt-abcdefghijkl-" + "a" * 42 + "é",
        "dt-abcdefghijkl-" + "a" * 43 + "\n",
        " dt-abcdefghijkl-" + "a" * 43,
        "dt-abcdefghijk٣-" + "a" * 43,
    ],
)
def test_what_is_no_key_is_not_taken_for_one(text: str) -> None:
    assert keys.parse(text) is None


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    keys.parse(text)


def test_a_key_opens_what_was_hashed_of_it_with_the_same_pepper_only() -> None:
    _, secret = keys.new()
    hash = keys.hashed(PEPPER, secret)
    assert re.fullmatch("[0-9a-f]{64}", hash)
    assert keys.matches(PEPPER, secret, hash)
    assert not keys.matches(PEPPER, secret[:-1] + "!", hash)
    assert not keys.matches(b"another pepper", secret, hash)
    assert not keys.matches(PEPPER, secret, "")


def test_who_has_read_the_hash_cannot_use_it() -> None:
    public_id, secret = keys.new()
    hash = keys.hashed(PEPPER, secret)
    assert not keys.matches(PEPPER, hash, hash)
    assert keys.parse(keys.text(public_id, hash)) is None


def test_nothing_matches_where_there_is_no_key() -> None:
    assert not keys.matches_nothing(PEPPER, keys.new()[1])
