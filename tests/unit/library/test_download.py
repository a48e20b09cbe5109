"""A download goes on where it was cut, in parts at once, and never goes back."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain import web
from drivetrain.errors import Forbidden, NotFound, StorageFull
from drivetrain.library import download
from drivetrain.library.download import Download, Remote
from tests.fakes.registries import Answer, Asked, Faults, Site, file_answer, files, serving
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

MEGABYTE = 2**20
CONTENT = os.urandom(3 * MEGABYTE + 12_345)


class Seen:
    """Progress as it was told; `under_way` is set once a megabyte has arrived."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int | None]] = []
        self.under_way = anyio.Event()

    def __call__(self, completed: int, total: int | None) -> None:
        self.steps.append((completed, total))
        if completed > MEGABYTE:
            self.under_way.set()

    @property
    def never_goes_back(self) -> bool:
        done = [completed for completed, _ in self.steps]
        return done == sorted(done)


async def fetch(
    site: Site, target: Path, *, seen: Seen | None = None, connections: int = 4, part_bytes: int = MEGABYTE
) -> Seen:
    seen = seen or Seen()
    remote = Remote(url=f"{site.url}/f")
    async with web.open_client() as client:
        await Download(client, remote, target, connections=connections, told=seen, part_bytes=part_bytes).run()
    return seen


async def test_brings_the_whole_file_in_parts_at_once(tmp_path: Path) -> None:
    faults = Faults(gate=anyio.Event())
    async with files({"/f": CONTENT}, faults) as site, anyio.create_task_group() as group:
        group.start_soon(fetch, site, tmp_path / "f")
        with anyio.fail_after(10):
            while site.connections < 3:  # the fourth part is so short that it is over at once
                await anyio.sleep(0.01)
        assert faults.gate is not None
        faults.gate.set()
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert site.count("GET", "/f") == 4  # three whole parts and the rest
    assert site.most_connections >= 3


async def test_one_connection_if_that_is_what_is_configured(tmp_path: Path) -> None:
    async with files({"/f": CONTENT}) as site:
        await fetch(site, tmp_path / "f", connections=1, part_bytes=MEGABYTE // 4)
    assert site.most_connections == 1


@pytest.mark.parametrize("cut_after", [100_000, 700_001])
@pytest.mark.parametrize("connections", [1, 4])
async def test_a_server_that_cuts_again_and_again_is_survived(tmp_path: Path, cut_after: int, connections: int) -> None:
    async with files({"/f": CONTENT}, Faults(cut_after=cut_after)) as site:
        seen = await fetch(site, tmp_path / "f", connections=connections)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert seen.never_goes_back
    assert seen.steps[-1] == (len(CONTENT), len(CONTENT))
    assert site.sent_bytes <= 1.1 * len(CONTENT)


@settings(max_examples=20)
@given(
    content=st.integers(1, 90_000).map(os.urandom),
    cut_after=st.integers(500, 40_000),
    part_bytes=st.integers(700, 50_000),
    connections=st.integers(1, 4),
    ranges=st.booleans(),
)
async def test_whatever_the_parts_and_the_cuts_the_file_is_whole(
    content: bytes, cut_after: int, part_bytes: int, connections: int, ranges: bool
) -> None:
    faults = Faults(cut_after=cut_after if ranges else None, ranges=ranges)
    with TemporaryDirectory() as folder:
        async with files({"/f": content}, faults) as site:
            seen = await fetch(site, Path(folder) / "f", connections=connections, part_bytes=part_bytes)
        assert (Path(folder) / "f").read_bytes() == content
    assert seen.never_goes_back
    assert seen.steps[-1] == (len(content), len(content))


async def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    async with files({"/f": CONTENT}, Faults(busy=3)) as site:
        await fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


async def test_gives_up_when_nothing_arrives_any_more_and_keeps_what_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "RETRIES", 1)

    def handler(asked: Asked) -> Answer:
        whole = file_answer(asked, CONTENT, Faults())
        return whole if asked.headers["range"].startswith("bytes=0-") else Answer(503)

    async with serving(handler) as site:
        with pytest.raises(web.Unreachable, match="breaks off again and again") as caught:
            await fetch(site, tmp_path / "f")
    assert caught.value.retryable
    state = download.load_state(tmp_path / "f")
    assert state is not None and state.arrived == MEGABYTE
    assert not (tmp_path / "f").exists()


def asked_bytes(asked: Asked) -> int:
    start, _, end = asked.headers["range"].removeprefix("bytes=").partition("-")
    return int(end) - int(start) + 1


async def part_of_it(site: Site, target: Path) -> None:
    """A download that is cancelled half way."""
    site.faults.gate = anyio.Event()
    seen = Seen()

    async def fetching() -> None:
        await fetch(site, target, seen=seen)

    async with anyio.create_task_group() as group:
        group.start_soon(fetching)
        await seen.under_way.wait()
        group.cancel_scope.cancel()
    site.faults.gate = None


async def test_a_cancelled_download_goes_on_where_it_was(tmp_path: Path) -> None:
    async with files({"/f": CONTENT}) as site:
        await part_of_it(site, tmp_path / "f")
        assert not (tmp_path / "f").exists()
        site.asked.clear()
        seen = await fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    there_already = seen.steps[0][0]
    assert there_already > MEGABYTE
    assert sum(map(asked_bytes, site.asked)) == len(CONTENT) - there_already
    assert not download.partial_path(tmp_path / "f").exists()
    assert not download.state_path(tmp_path / "f").exists()


async def test_a_part_of_another_version_is_thrown_away(tmp_path: Path) -> None:
    other = os.urandom(len(CONTENT))
    content = {"/f": other}
    async with files(content) as site:
        await part_of_it(site, tmp_path / "f")
        content["/f"] = CONTENT
        seen = await fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert seen.never_goes_back


async def test_a_server_without_ranges_is_read_from_the_start_again(tmp_path: Path) -> None:
    async with files({"/f": CONTENT}, Faults(ranges=False)) as site:
        await fetch(site, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert site.count("GET", "/f") == 1


@pytest.mark.parametrize(("status", "error"), [(404, NotFound), (410, NotFound), (403, Forbidden), (401, Forbidden)])
async def test_refusals_are_told_at_once(tmp_path: Path, status: int, error: type[Exception]) -> None:
    async with serving(lambda asked: Answer(status)) as site:
        with pytest.raises(error):
            await fetch(site, tmp_path / "f")
    assert len(site.asked) == 1


async def test_credentials_do_not_follow_to_another_origin(tmp_path: Path) -> None:
    async with files({"/f": CONTENT}) as content:

        def redirect(asked: Asked) -> Answer:
            return Answer(302, {"location": f"{content.url}/f"})

        async with serving(redirect) as site, web.open_client() as client:
            remote = Remote(url=f"{site.url}/f", headers={"authorization": "Bearer secret"})
            await Download(client, remote, tmp_path / "f", connections=1, told=Seen()).run()
    assert site.asked[0].headers["authorization"] == "Bearer secret"
    assert all("authorization" not in asked.headers for asked in content.asked)


async def test_refuses_before_it_begins_if_the_disk_is_too_small(tmp_path: Path) -> None:
    huge = 2**60

    def handler(asked: Asked) -> Answer:
        return Answer(206, {"content-range": f"bytes 0-0/{huge}", "content-length": "1"}, b"x")

    async with serving(handler) as site:
        with pytest.raises(StorageFull, match=rf"needs {huge} bytes .* but only \d+ bytes"):
            await fetch(site, tmp_path / "f")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, or, where nothing may be mounted, a download whose file is always full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        download.partial_path(disk / "f").symlink_to("/dev/full")
    yield disk
    if mounted.returncode == 0:
        subprocess.run(["umount", str(disk)], check=True)


async def test_a_disk_that_fills_up_is_a_clear_error(small_disk: Path) -> None:
    content = tiny_gguf(MEGABYTE + MEGABYTE // 2)
    async with files({"/f": content}) as site:
        (small_disk / "other").write_bytes(b"\0" * 100_000)
        remote = Remote(url=f"{site.url}/f")
        seen = Seen()

        def told(completed: int, total: int | None) -> None:
            seen(completed, total)
            if not (small_disk / "more").exists() and completed:  # somebody else takes the room
                (small_disk / "more").write_bytes(b"\0" * (small_disk.stat().st_blksize * 128))

        async with web.open_client() as client:
            with pytest.raises(StorageFull, match=r"no space left in .* are free") as caught:
                await Download(client, remote, small_disk / "f", connections=1, told=told, part_bytes=MEGABYTE).run()
        assert caught.value.status == 507
        assert not (small_disk / "f").exists()
        (small_disk / "more").unlink()
        if not download.partial_path(small_disk / "f").is_symlink():
            assert download.partial_path(small_disk / "f").stat().st_size > 0  # kept
            async with web.open_client() as client:
                await Download(client, remote, small_disk / "f", connections=1, told=seen, part_bytes=MEGABYTE).run()
            assert (small_disk / "f").read_bytes() == content
            assert site.sent_bytes <= 1.8 * len(content)
