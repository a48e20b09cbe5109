"""The library as Drivetrain calls it: its functions, what they refuse, and what is said where there is none."""

from pathlib import Path

import pytest

from drivetrain.engines.expertstream import native
from drivetrain.errors import BadRequest, NotFound, Unsupported


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation without the library; gives the place of the excuse."""
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "libexpertstream.so")
    monkeypatch.setattr(native, "EXCUSE", tmp_path / "not-built.txt")
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    return tmp_path / "not-built.txt"


@pytest.fixture
def library() -> None:
    if reason := native.missing():
        pytest.skip(reason)


@pytest.mark.usefixtures("library")
def test_it_is_there_and_tells_its_version() -> None:
    assert native.library_path() == native.LIBRARY
    assert native.missing() is None
    assert native.version()


@pytest.mark.usefixtures("library")
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.gguf"
    stranger.write_bytes(b"not a model at all" * 100)
    for refuse in (native.describe, native.verify):
        with pytest.raises(BadRequest, match=r"stranger\.gguf"):
            refuse(stranger)
    for refuse_pair in (native.shell, native.pack, native.unpack):
        with pytest.raises(BadRequest, match=r"stranger\.gguf"):
            refuse_pair(stranger, tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["stranger.gguf"]


@pytest.mark.usefixtures("library")
def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        native.describe(tmp_path / "nothing.gguf")


@pytest.mark.usefixtures("library")
def test_an_option_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(BadRequest, match="colour"):
        native.configure({"model": "x.gguf", "colour": "blue"})


@pytest.mark.usefixtures("library")
def test_memory_and_drive_have_a_speed(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(2**22))
    assert native.probe_memory(1, 5) > 2**20
    assert native.probe_drive(tmp_path / "bytes", io="threads", direct=False, depth=2, piece=2**16, ms=5) > 0


def test_options_are_lines() -> None:
    assert native.options_text({"model": Path("a b.gguf"), "budget": 2**30}) == "model=a b.gguf\nbudget=1073741824\n"


def test_an_option_cannot_bring_others_along() -> None:
    with pytest.raises(BadRequest, match=r"a line break in 'x.gguf"):
        native.options_text({"model": "x.gguf\nbudget=1"})


def test_without_it_the_reason_of_the_installation_is_told(absent: Path) -> None:
    told = "the streaming library was not built: {}; install a C++ compiler and reinstall drivetrain"
    assert native.library_path() is None
    assert native.missing() == told.format("no C++ compiler was found at installation")
    absent.write_text("the C++ compiler failed: out of memory\n")
    assert native.missing() == told.format("the C++ compiler failed: out of memory")
    with pytest.raises(Unsupported, match="out of memory"):
        native.version()


def test_a_library_that_cannot_be_loaded_is_unsupported(absent: Path) -> None:
    native.LIBRARY.write_bytes(b"no library")
    with pytest.raises(Unsupported, match=r"cannot be used: .*reinstall drivetrain"):
        native.version()
