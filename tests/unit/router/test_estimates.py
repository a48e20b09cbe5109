"""How fast an engine is taken to be: quick to think badly of it, slow to forgive, forgetful in the end."""

import pytest

from drivetrain.router import Speed, Speedometer


def measured(*firsts_s: float, now_s: float = 0.0, tokens: int = 101, rest_s: float = 2.0) -> Speedometer:
    meter = Speedometer()
    for first_s in firsts_s:
        meter.answered(now_s, prompt_tokens=744, first_token_s=first_s, tokens=tokens, rest_s=rest_s)
    return meter


def speed(meter: Speedometer, now_s: float = 0.0) -> Speed:
    found = meter.speed(now_s)
    assert found is not None
    return found


def test_five_answers_make_a_measured_engine() -> None:
    assert measured(1.0, 1.0, 1.0, 1.0).speed(0.0) is None
    assert measured(1.0, 1.0, 1.0, 1.0, 1.0).speed(0.0) == Speed(prompt_s=0.001, token_s=0.02)


def test_the_first_token_and_the_pace_are_told_apart() -> None:
    found = Speed(prompt_s=0.001, token_s=0.02)
    assert found.expected_s(744, 0) == pytest.approx(1.0)
    assert found.expected_s(744, 100) == pytest.approx(3.0)
    assert found.expected_s(1744, 100) == pytest.approx(4.0)


def test_one_slow_first_token_counts_at_once() -> None:
    meter = measured(1.0, 1.0, 1.0, 1.0, 1.0)
    meter.answered(0.1, prompt_tokens=744, first_token_s=9.0, tokens=1, rest_s=0.0)
    assert speed(meter, 0.1).prompt_s == pytest.approx(0.009)


def test_quick_ones_win_it_back_with_time() -> None:
    meter = measured(9.0, 9.0, 9.0, 9.0, 9.0)
    meter.answered(10.0, prompt_tokens=744, first_token_s=1.0, tokens=1, rest_s=0.0)
    assert speed(meter, 10.0).prompt_s == pytest.approx(0.001 + 0.008 / 2.718281828)


def test_an_answer_of_few_tokens_tells_nothing_of_the_pace() -> None:
    meter = measured(*[1.0] * 5)
    meter.answered(50.0, prompt_tokens=744, first_token_s=1.0, tokens=3, rest_s=30.0)
    assert speed(meter, 50.0).token_s == pytest.approx(0.02)


def test_one_slow_reader_does_not_spoil_the_pace() -> None:
    meter = measured(*[1.0] * 5)
    meter.answered(0.1, prompt_tokens=744, first_token_s=1.0, tokens=101, rest_s=200.0)
    assert speed(meter, 0.1).token_s < 0.05


def test_an_engine_that_stayed_silent_is_at_least_as_slow_as_the_wait() -> None:
    meter = measured(*[1.0] * 5)
    meter.silent(0.0, waited_s=76.8)
    assert speed(meter).prompt_s == pytest.approx(0.1)
    meter.silent(0.0, waited_s=1.0)
    assert speed(meter).prompt_s == pytest.approx(0.1)


def test_an_engine_that_is_not_asked_seems_faster_and_faster() -> None:
    meter = measured(*[1.0] * 5)
    assert speed(meter, 30.0).expected_s(744, 100) == pytest.approx(3.0 / 2.718281828)


def test_not_while_it_is_at_work() -> None:
    meter = measured(*[1.0] * 5)
    meter.began()
    assert speed(meter, 3_000.0).expected_s(744, 100) == pytest.approx(3.0)
    meter.ended(3_000.0)
    assert speed(meter, 3_000.0).expected_s(744, 100) == pytest.approx(3.0)
    assert speed(meter, 3_030.0).expected_s(744, 100) == pytest.approx(3.0 / 2.718281828)


def test_and_ten_times_as_fast_at_most() -> None:
    assert speed(measured(*[1.0] * 5), 1e6).expected_s(744, 100) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("now_s", "note"),
    [
        (29.0, ""),
        (31.0, "measured 31 s ago, may be slower"),
        (720.0, "measured 12 min ago, may be slower"),
        (10_800.0, "measured 3 h ago, may be slower"),
    ],
)
def test_a_measurement_that_has_faded_is_told_with_its_age(now_s: float, note: str) -> None:
    assert measured(1.0, 1.0, 1.0, 1.0, 1.0).note(now_s) == note
    busy = measured(1.0, 1.0, 1.0, 1.0, 1.0)
    busy.began()
    assert busy.note(now_s) == ""


def test_answers_too_short_to_tell_the_pace_are_told() -> None:
    assert measured(1.0, 1.0, 1.0, 1.0, 1.0, tokens=3).note(0.0) == "pace not measured yet"
    assert measured(1.0, 1.0).note(900.0) == ""
