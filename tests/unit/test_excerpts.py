"""Values as messages show them."""

from typing import Any

import pytest

from drivetrain.excerpts import bounded, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hot", '"hot"'),
        (None, "null"),
        (True, "true"),
        ([1, {"a": 2.5}], '[1,{"a":2.5}]'),
        ({1: object}, "{1: <class 'object'>}"),
        ("x" * 58, f'"{"x" * 58}"'),
        ("x" * 59, f'"{"x" * 58}…'),
    ],
)
def test_a_value_is_shown_in_json_and_never_long(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_text_that_is_too_long_ends_in_dots() -> None:
    assert (bounded("abcd", 4), bounded("abcde", 4)) == ("abcd", "abc…")
