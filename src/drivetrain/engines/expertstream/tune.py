"""How this machine streams best: measured once, and kept in `state/tune.json` of the home.

A change from the defaults has to earn its place: it must gain 3 % where both were measured in turns, by more than the
measurements scatter, and again when only the two are compared. What was found holds for this machine alone, its
processor and its drive; elsewhere it is ignored.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from drivetrain.engines.expertstream import native, plan, predict
from drivetrain.errors import BadRequest

FILE: Final = "tune.json"
GLANCE: Final = "glance.json"
FORMAT: Final = 1
LEAST_GAIN: Final = 0.03
LEAST_RATE: Final = 1e-9  # what does not work at all is infinitely slow, almost
ROUNDS: Final = 5  # times that each way is measured
DEPTHS: Final = (1, 2, 4, 8, 16, 32)
PIECE_BYTES: Final = 512 * 1024  # of a read, as the engine splits them
PROBE_MS: Final = 200
SAMPLE_BYTES: Final = 512 * 2**20  # of the file that is read, where there is no model

Rates = tuple[float, ...]  # of one way, round by round
Rate = Callable[[], float]


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to read from the drive."""

    io: native.Io = "threads"
    direct: bool = True
    depth: int = 8

    @property
    def name(self) -> str:
        return f"{self.depth} at a time, {self.io}, {'direct' if self.direct else 'through the page cache'}"


DEFAULT: Final = Way()  # what the engine does when nothing is known


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared with the default of a setting, and whether it is kept."""

    setting: str  # "drive", "threads" or "prefetch"
    old: str
    new: str
    old_rate: float
    new_rate: float
    unit: str
    gain: float
    kept: bool


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What tune.json holds."""

    format: int
    machine: str
    when: str
    drive_bytes_s: float  # as it is read from now on
    memory_bytes_s: float  # with as many threads as are used from now on
    memory_by_threads: Mapping[int, float] = {}
    io: plan.Io = "auto"
    direct: plan.Wish = "auto"
    depth: int | None = None
    threads: int | None = None
    prefetch: bool | None = None
    trials: tuple[Trial, ...] = ()

    @property
    def tuning(self) -> plan.Tuning:
        return plan.Tuning(io=self.io, direct=self.direct, depth=self.depth, prefetch=self.prefetch)


# --- the decision -----------------------------------------------------------------------------------------------------


def gain(old: Rates, new: Rates) -> float:
    """How much faster, 0.05 for 5 %: the median of the rounds, each compared within itself, so that drift cancels."""
    return statistics.median(_ratios(old, new)) - 1


def earns(old: Rates, new: Rates) -> bool:
    """Whether a change is worth it: 3 % or more, and most of the rounds agree that it is faster."""
    ratios = sorted(_ratios(old, new))
    return gain(old, new) >= LEAST_GAIN and ratios[len(ratios) // 4] > 1


def _ratios(old: Rates, new: Rates) -> list[float]:
    return [after / max(before, LEAST_RATE) for before, after in zip(old, new, strict=True)]


def best(default: str, rates: Mapping[str, Rates]) -> str:
    """Which way is to be used. Of those that earn it, the first named that comes within 3 % of the fastest: the order
    is from modest to greedy."""
    earning = {name: gain(rates[default], one) for name, one in rates.items() if earns(rates[default], one)}
    if not earning:
        return default
    enough = (1 + max(earning.values())) / (1 + LEAST_GAIN) - 1
    return next(name for name, won in earning.items() if won >= enough)


# --- the measurements -------------------------------------------------------------------------------------------------


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What can be measured of this machine, each call once."""

    drive: Callable[[Way], float]  # bytes per second
    memory: Callable[[int], float]  # bytes per second that so many threads read
    decode: Callable[[int, bool], float] | None = None  # tokens per second of a model: threads, prefetch
    prefetches: bool = False  # the engine can read experts ahead
    told: Callable[[str], None] = lambda _: None  # what is about to be measured


def tune(measures: Measures, *, cores: int) -> Tuned:
    """Measures everything and decides. Takes a quarter of a minute, with a model minutes. `machine` is left empty."""
    way, drive_trials, drive_bytes_s = _drive(measures)
    counts = sorted({1, *(2**power for power in range(1, cores.bit_length())), max(cores - 1, 1), cores})
    memory = _memory(measures, counts)
    threads, thread_trials = _threads(measures, counts, cores)
    prefetch, prefetch_trials = _prefetch(measures, threads)
    changed = any(trial.kept for trial in drive_trials)
    return Tuned(
        format=FORMAT,
        machine="",
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        drive_bytes_s=drive_bytes_s,
        memory_bytes_s=memory[threads],
        memory_by_threads=memory,
        io=way.io if changed else "auto",
        direct=("on" if way.direct else "off") if changed else "auto",
        depth=way.depth if changed else None,
        threads=threads if threads != cores else None,
        prefetch=prefetch,
        trials=(*drive_trials, *thread_trials, *prefetch_trials),
    )


def _drive(measures: Measures) -> tuple[Way, list[Trial], float]:
    """One question after the other: how many at once, past the page cache or not, threads or the ring."""
    way, trials, rate = DEFAULT, [], 0.0
    for member, values in (("depth", DEPTHS), ("direct", (True, False)), ("io", ("threads", "uring"))):
        ways = [msgspec.structs.replace(way, **{member: value}) for value in values]
        made = {one.name: one for one in ways}
        trial, rates = _compared(
            "drive", way.name, {name: _once(measures.drive, one) for name, one in made.items()}, measures, "B/s"
        )
        trials.append(trial)
        way = made[trial.new] if trial.kept else way
        rate = statistics.median(rates[way.name])
    return way, trials, rate


def _memory(measures: Measures, counts: Sequence[int]) -> Mapping[int, float]:
    """Bytes per second by the number of threads."""
    rates = in_turns({_threads_name(count): _once(measures.memory, count) for count in counts}, measures.told)
    return {count: statistics.median(rates[_threads_name(count)]) for count in counts}


def _threads(measures: Measures, counts: Sequence[int], cores: int) -> tuple[int, list[Trial]]:
    """Only the speed of a model tells: what feeds one thread from memory may not be enough to compute with."""
    if measures.decode is None:
        return cores, []
    ways = {_threads_name(count): _once(measures.decode, count, False) for count in counts}
    trial, _ = _compared("threads", _threads_name(cores), ways, measures, "tokens/s")
    names = {_threads_name(count): count for count in counts}
    return names[trial.new] if trial.kept else cores, [trial]


def _threads_name(count: int) -> str:
    return f"{count} threads" if count > 1 else "1 thread"


def _prefetch(measures: Measures, threads: int) -> tuple[bool | None, list[Trial]]:
    """Only the speed of a model tells; without one, it stays as it is."""
    if measures.decode is None or not measures.prefetches:
        return None, []
    measured = {"off": _once(measures.decode, threads, False), "on": _once(measures.decode, threads, True)}
    trial, _ = _compared("prefetch", "off", measured, measures, "tokens/s")
    return (True if trial.kept else None), [trial]


def _once(measure: Callable[..., float], *arguments: object) -> Rate:
    return lambda: measure(*arguments)


def _compared(
    setting: str, default: str, ways: Mapping[str, Rate], measures: Measures, unit: str
) -> tuple[Trial, Mapping[str, Rates]]:
    """The default against all others; then, alone, against the one that did best."""
    rates = in_turns(ways, measures.told)
    found = best(default, rates)
    if found == default:  # tell how close the best of the others came
        others = {name: gain(rates[default], one) for name, one in rates.items() if name != default}
        nearest = max(others, key=others.__getitem__, default=default)
        return _trial(setting, default, nearest, rates, unit, kept=False), rates
    again = in_turns({name: ways[name] for name in (default, found)}, measures.told)
    return _trial(setting, default, found, again, unit, kept=earns(again[default], again[found])), {**rates, **again}


def _trial(setting: str, old: str, new: str, rates: Mapping[str, Rates], unit: str, *, kept: bool) -> Trial:
    return Trial(
        setting=setting,
        old=old,
        new=new,
        old_rate=statistics.median(rates[old]),
        new_rate=statistics.median(rates[new]),
        unit=unit,
        gain=gain(rates[old], rates[new]),
        kept=kept,
    )


def in_turns(ways: Mapping[str, Rate], told: Callable[[str], None]) -> Mapping[str, Rates]:
    """Measures each way once a round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, measure in ways.items():
            told(name)
            found[name].append(measure())
    return {name: tuple(rates) for name, rates in found.items()}


def native_measures(sample: Path, told: Callable[[str], None]) -> Measures:
    """By the engine's own probes. `sample` is the file whose drive is measured."""

    def drive(way: Way) -> float:
        _forget(sample)
        try:
            return native.probe_drive(
                sample, io=way.io, direct=way.direct, depth=way.depth, piece=PIECE_BYTES, ms=PROBE_MS
            )
        except BadRequest:
            if way == DEFAULT:
                raise
            return 0.0  # a way that this system does not allow

    return Measures(drive=drive, memory=lambda threads: native.probe_memory(threads, PROBE_MS), told=told)


@contextmanager
def sample(folder: Path, size_bytes: int = SAMPLE_BYTES) -> Iterator[Path]:
    """A file of random bytes to read, on the drive of `folder`; gone at the end."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".tune-") as file:
        block = os.urandom(2**24)
        for _ in range(size_bytes // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


def _forget(file: Path) -> None:
    """Takes it out of the page cache: what is found there says nothing of the drive."""
    if hasattr(os, "posix_fadvise"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- what is kept -----------------------------------------------------------------------------------------------------


def store(home: Path, tuned: Tuned) -> Path:
    """Keeps it as this machine's; where."""
    path = home / "state" / FILE
    _write(path, msgspec.structs.replace(tuned, machine=machine_id(home)))
    return path


def _write(path: Path, value: msgspec.Struct) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    draft.replace(path)


def load(home: Path) -> Tuned | None:
    """What was found on this machine; None if nothing was, or what is kept cannot be read or is another machine's."""
    try:
        tuned = msgspec.json.decode((home / "state" / FILE).read_bytes(), type=Tuned)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return tuned if tuned.format == FORMAT and tuned.machine == machine_id(home) else None


def machine_id(home: Path) -> str:
    """The processor, and the drive on which the home lies."""
    return f"{_processor()}; {_drive_id(home)}"


def _processor() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return os.uname().machine


def _drive_id(home: Path) -> str:
    """Model and serial number where the system tells them, else the size; of a partition, those of its disk."""
    status = next((path.stat() for path in (home / "models", home, *home.parents) if path.exists()), None)
    if status is None:
        return "unknown drive"
    block = Path(f"/sys/dev/block/{os.major(status.st_dev)}:{os.minor(status.st_dev)}")
    disk = block.resolve().parent if (block / "partition").exists() else block.resolve()
    told = [_text(disk / name) for name in ("device/model", "device/serial", "wwid", "size")]
    words = " ".join(word for word in told if word)
    return f"{disk.name} {words}" if words else f"device {status.st_dev}"


def _text(path: Path) -> str:
    return " ".join(_lines(path)).strip()


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return ()


# --- what predictions are made from -----------------------------------------------------------------------------------


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """A quick look at a machine that was never tuned, kept so that it is taken once."""

    machine: str
    drive_bytes_s: float
    memory_bytes_s: float


def known(home: Path, cores: int) -> predict.Machine | None:
    """What was measured of this machine, by `tune` or else at a glance."""
    found = load(home) or _glanced(home)
    return None if found is None else _machine(found, cores)


def glance(home: Path, file: Path, cores: int) -> predict.Machine:
    """Half a second. `file` is read, to tell the drive's speed."""
    taken = Glance(
        machine=machine_id(home),
        drive_bytes_s=native.probe_drive(
            file, io="auto", direct=True, depth=DEFAULT.depth, piece=PIECE_BYTES, ms=PROBE_MS
        ),
        memory_bytes_s=native.probe_memory(cores, PROBE_MS),
    )
    _write(home / "state" / GLANCE, taken)
    return _machine(taken, cores)


def _glanced(home: Path) -> Glance | None:
    try:
        found = msgspec.json.decode((home / "state" / GLANCE).read_bytes(), type=Glance)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if found.machine == machine_id(home) else None


def _machine(found: Tuned | Glance, cores: int) -> predict.Machine:
    return predict.Machine(
        drive_bytes_s=found.drive_bytes_s,
        memory_bytes_s=found.memory_bytes_s,
        multiply_adds_s=cores * predict.MULTIPLY_ADDS_PER_CORE_S,
    )
