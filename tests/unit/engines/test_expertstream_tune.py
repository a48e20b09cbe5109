"""A machine's defaults are changed only for a gain of 3 % that is no accident."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.expertstream import plan, tune
from drivetrain.engines.expertstream.tune import DEFAULT, Measures, Way

STEADY = (100.0, 100.0, 100.0, 100.0, 100.0)


def times(rates: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(rate * factor for rate in rates)


# --- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "kept"), [(1.03, True), (1.029, False), (1.0, False), (0.9, False), (2.0, True)])
def test_three_percent_is_the_least_gain(factor: float, kept: bool) -> None:
    assert tune.earns(STEADY, times(STEADY, factor)) is kept


def test_one_lucky_round_is_no_gain() -> None:
    assert not tune.earns(STEADY, (100, 100, 100, 500, 100))


def test_a_gain_within_the_scatter_is_no_gain() -> None:
    assert not tune.earns(STEADY, (80, 85, 104, 130, 120))  # 4 % by the median, but two of five rounds lost
    assert tune.earns(STEADY, (101, 102, 104, 130, 120))


def test_a_machine_that_drifts_favours_neither() -> None:
    drifting = (100.0, 80.0, 60.0, 40.0, 20.0)
    assert not tune.earns(drifting, drifting)
    assert tune.earns(drifting, times(drifting, 1.05))
    assert tune.gain(drifting, times(drifting, 1.05)) == pytest.approx(0.05)


def test_noise_alone_hardly_ever_changes_a_default() -> None:
    chance = random.Random(7)

    def noisy() -> tuple[float, ...]:
        return tuple(chance.gauss(100, 3) for _ in range(tune.ROUNDS))

    changed = sum(tune.best("a", {name: noisy() for name in "abcdef"}) != "a" for _ in range(200))
    assert changed < 40  # of five rivals one in seven times one looks better, and has to win again alone


def test_the_most_modest_way_within_three_percent_of_the_fastest_is_taken() -> None:
    rates = {"1": times(STEADY, 0.5), "8": STEADY, "16": times(STEADY, 1.48), "32": times(STEADY, 1.50)}
    assert tune.best("8", rates) == "16"
    assert tune.best("8", rates | {"16": times(STEADY, 1.40)}) == "32"


def test_what_never_worked_is_no_choice() -> None:
    nothing = times(STEADY, 0.0)
    assert not tune.earns(STEADY, nothing)
    assert tune.earns(nothing, STEADY)


# --- the whole --------------------------------------------------------------------------------------------------------


def machine(
    *,
    depth: int = 8,
    direct: float = 1.5,
    ring: float = 1.0,
    threads: int = 4,
    prefetch: float = 1.0,
    noise: float = 0.0,
) -> Measures:
    """A made-up machine: its drive is at its best from `depth` reads on, and so forth."""
    chance = random.Random(3)

    def scattered(value: float) -> float:
        return value * (1 + noise * chance.uniform(-1, 1))

    def drive(way: Way) -> float:
        reads = min(way.depth, depth) / depth
        return scattered(2e9 * reads * (direct if way.direct else 1) * (ring if way.io == "uring" else 1))

    def decode(count: int, early: bool) -> float:
        return scattered(2.0 * min(count, 4) * (prefetch if early else 1))

    return Measures(
        drive=drive,
        memory=lambda count: scattered(10e9 * min(count, threads)),
        decode=None if prefetch == 1.0 else decode,
        prefetches=True,
    )


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_where_the_defaults_are_best_nothing_changes(noise: float) -> None:
    tuned = tune.tune(machine(noise=noise), cores=4)
    assert tuned.tuning == plan.Tuning()
    assert tuned.threads is None
    assert not any(trial.kept for trial in tuned.trials)


def test_a_drive_that_wants_more_at_once_gets_it() -> None:
    tuned = tune.tune(machine(depth=32, noise=0.01), cores=4)
    assert tuned.tuning == plan.Tuning(io="threads", direct="on", depth=32)
    assert tuned.drive_bytes_s == pytest.approx(3e9, rel=0.02)
    (kept,) = [trial for trial in tuned.trials if trial.kept]
    assert (kept.setting, kept.old, kept.new) == (
        "drive",
        DEFAULT.name,
        msgspec.structs.replace(DEFAULT, depth=32).name,
    )
    assert kept.gain == pytest.approx(3, rel=0.05)


def test_each_question_is_asked_with_the_answer_to_the_one_before() -> None:
    tuned = tune.tune(machine(depth=16, direct=0.8, ring=1.2), cores=4)
    assert tuned.tuning == plan.Tuning(io="uring", direct="off", depth=16)


def test_threads_are_judged_by_the_speed_of_a_model_only() -> None:
    crowded = msgspec.structs.replace(machine(), memory=lambda count: 10e9 * (count if count <= 3 else 2))
    tuned = tune.tune(crowded, cores=4)
    assert tuned.threads is None  # three threads read faster than four; that says nothing of computing
    assert tuned.memory_by_threads == {1: 10e9, 2: 20e9, 3: 30e9, 4: 20e9}
    slow = msgspec.structs.replace(crowded, decode=lambda count, early: 5.0 if count == 3 else 4.0)
    tuned = tune.tune(slow, cores=4)
    assert (tuned.threads, tuned.memory_bytes_s) == (3, 30e9)


@pytest.mark.parametrize(("effect", "prefetch"), [(1.2, True), (1.02, None), (0.8, None)])
def test_prefetch_is_tried_with_a_model_only(effect: float, prefetch: bool | None) -> None:
    assert tune.tune(machine(prefetch=effect), cores=4).prefetch is prefetch
    assert [trial.setting for trial in tune.tune(machine(), cores=4).trials] == ["drive", "drive", "drive"]


def test_a_winner_has_to_win_again() -> None:
    def once(values: Iterator[float]) -> Callable[[int, bool], float]:
        return lambda count, early: next(values) if count == 2 else 100.0

    lucky = once(iter([130.0] * tune.ROUNDS + [100.0] * tune.ROUNDS))
    tuned = tune.tune(msgspec.structs.replace(machine(), decode=lucky, prefetches=False), cores=4)
    (trial,) = [trial for trial in tuned.trials if trial.setting == "threads"]
    assert not trial.kept
    assert trial.gain == 0.0


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_was_found_is_found_again(tmp_path: Path) -> None:
    tuned = tune.tune(machine(depth=32), cores=4)
    tune.store(tmp_path, tuned)
    loaded = tune.load(tmp_path)
    assert loaded == msgspec.structs.replace(tuned, machine=tune.machine_id(tmp_path))
    assert loaded and loaded.tuning.depth == 32
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["tune.json"]


def test_another_machines_findings_are_ignored(tmp_path: Path) -> None:
    path = tune.store(tmp_path, tune.tune(machine(), cores=4))
    path.write_bytes(path.read_bytes().replace(tune.machine_id(tmp_path).encode(), b"another processor; another drive"))
    assert tune.load(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_findings_that_cannot_be_read_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tune.json").write_text(text)
    assert tune.load(tmp_path) is None


def test_a_home_without_findings_has_none(tmp_path: Path) -> None:
    assert tune.load(tmp_path) is None
