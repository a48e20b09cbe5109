"""What the parameters of a model or a policy mean to a request."""

from typing import Any

import pytest

from drivetrain.errors import BadRequest
from drivetrain.parameters import flaws, sampling_of
from drivetrain.types import Sampling


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "num_predict"])
@pytest.mark.parametrize(("limit", "expected"), [(5, 5), (0, None), (-1, None), (-2, None), (None, None)])
def test_a_limit_of_nothing_is_none(name: str, limit: int | None, expected: int | None) -> None:
    assert sampling_of({name: limit}) == Sampling(max_tokens=expected)


@pytest.mark.parametrize(
    ("stop", "expected"), [("", ()), ([""], ()), (["", "a"], ("a",)), ("a", ("a",)), ([], ()), (None, ())]
)
def test_an_empty_stop_is_none(stop: Any, expected: tuple[str, ...]) -> None:
    assert sampling_of({"stop": stop}) == Sampling(stop=expected)


def test_a_number_that_means_off_is_said() -> None:
    assert sampling_of({"top_k": 0, "repeat_last_n": 0}) == Sampling(top_k=0, repeat_last_n=0)


def test_truth_is_no_limit() -> None:
    assert list(flaws({"num_predict": False})) == [("num_predict", "must be a whole number, not false")]
    with pytest.raises(BadRequest, match="'num_predict' must be a whole number, not false"):
        sampling_of({"num_predict": False})
