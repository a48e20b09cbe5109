"""Which models a key may use: by patterns in which `*` stands for anything, and nothing else is special."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.policies.access import may_use


@pytest.mark.parametrize(
    ("pattern", "model"),
    [
        ("*", "anything/at:all"),
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o*", "gpt-4o-mini"),
        ("gpt-4o*", "gpt-4o"),
        ("*/llama3", "hub/llama3"),
        ("llama3", "llama3:latest"),
        ("llama3:latest", "llama3"),
        ("llama3:*", "llama3"),
        ("llama3:*", "llama3:8b"),
        ("*:latest", "llama3"),
        ("LLaMA3", "llama3"),
        ("llama*", "LLAMA3:8B"),
        ("a*b*c", "a-b-b-c"),
        ("[ab]?", "[ab]?"),
    ],
)
def test_a_pattern_means_a_model(pattern: str, model: str) -> None:
    assert may_use([pattern], model)


@pytest.mark.parametrize(
    ("pattern", "model"),
    [
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4o", "xgpt-4o"),
        ("llama3", "llama3:8b"),
        ("*:latest", "llama3:8b"),
        ("*:latest", "host:5000/llama3:8b"),
        ("gpt-?", "gpt-4"),
        ("[ab]", "a"),
        ("a*a", "a"),
        ("ab*ba", "aba"),
        ("a*b*c", "a-c-b"),
        ("", "gpt-4o"),
    ],
)
def test_a_pattern_does_not_mean_another_model(pattern: str, model: str) -> None:
    assert not may_use([pattern], model)


def test_any_of_several_patterns_will_do_and_none_of_none() -> None:
    assert may_use(("embed-*", "gpt-4o"), "gpt-4o")
    assert not may_use((), "gpt-4o")


def test_a_tag_is_told_from_a_port() -> None:
    assert may_use(["host:5000/llama3:latest"], "host:5000/llama3")
    assert may_use(["*llama3:latest"], "host:5000/llama3")


@given(st.text("ab*"), st.text("ab"))
def test_stars_match_as_in_a_shell(pattern: str, model: str) -> None:
    expected = fnmatchcase(model, pattern) or fnmatchcase(f"{model}:latest", pattern)
    assert expected == may_use([pattern], model)


def test_a_long_name_under_many_stars_is_no_trouble() -> None:
    assert not may_use(["*a" * 50 + "*b"], "a" * 100_000)
