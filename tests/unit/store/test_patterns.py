"""What a team and a key allow together: what both allow, by `policies.access`, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.policies import access
from drivetrain.store.patterns import Patterns, both

PATTERNS = st.lists(st.text("ab*:", max_size=5).filter(lambda text: text.count("*") <= 4), max_size=3).map(tuple)
NAMES = st.text("ab:", max_size=7)


@pytest.mark.parametrize(
    ("team", "key", "together"),
    [
        (None, None, None),
        (None, ("gpt-*",), ("gpt-*",)),
        (("gpt-*",), None, ("gpt-*",)),
        (("gpt-*",), ("*",), ("gpt-*",)),
        (("gpt-*",), ("gpt-5-mini", "claude-*"), ("gpt-5-mini",)),
        (("gpt-*",), ("*-mini",), ("gpt-*-mini", "gpt-mini")),
        (("*a*",), ("*b*",), ("*a*b*", "*b*a*")),
        (("Smollm2:135m",), ("smollm2*",), ("smollm2:135m",)),
        (("phi4",), ("phi4:latest",), ("phi4",)),
        (("phi4",), ("*:latest",), ("phi4",)),
        (("gpt-*",), ("claude-*",), ()),
        ((), ("*",), ()),
    ],
)
def test_a_model_has_to_match_both(team: Patterns, key: Patterns, together: Patterns) -> None:
    assert both(team, key) == together


@given(PATTERNS, PATTERNS, NAMES)
def test_nothing_is_allowed_that_one_of_them_does_not_allow(
    team: tuple[str, ...], key: tuple[str, ...], name: str
) -> None:
    together = both(team, key)
    assert together is not None
    if access.may_use(together, name):
        assert access.may_use(team, name)
        assert access.may_use(key, name)


@given(PATTERNS, PATTERNS, st.text("abc", max_size=7))
def test_everything_is_allowed_that_both_allow(team: tuple[str, ...], key: tuple[str, ...], name: str) -> None:
    together = both(team, key)
    assert together is not None
    # Of names as they are written: an added `:latest` is nobody's to match half of.
    plain = tuple(pattern for pattern in team if ":" not in pattern), tuple(p for p in key if ":" not in p)
    if all(access.may_use(patterns, name) for patterns in plain):
        assert access.may_use(together, name)


def test_patterns_that_are_made_to_be_slow_are_not() -> None:
    stars = both(("*ab*ab*ab*",), ("*ba*ba*ba*",))
    assert stars is not None
    assert access.may_use(stars, "abababab")
    assert not access.may_use(stars, "ab" * 2)
    assert both(("*a*a*a*a" + "a" * 100,), ("a" * 200,)) == ("a" * 200,)
