"""The reference says what the code does."""

from pathlib import Path

import msgspec

from drivetrain.telemetry import notices
from drivetrain.types import Notice

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_events_page_holds_the_table_of_events() -> None:
    assert notices.table() in (REFERENCE / "events.md").read_text()


def test_the_events_page_explains_every_member() -> None:
    page = (REFERENCE / "events.md").read_text()
    members = [*Notice.__struct_fields__, "alias"]
    assert [name for name in members if f"`{name}`" not in page] == []
    assert f"the last {notices.KEPT} events" in page


def test_an_example_of_the_events_page_is_what_is_sent() -> None:
    notice = Notice(name="model.ready", model="smollm2:135m", engine="local", at_s=1764460218.102214)
    frame = notices.encode(notices.Entry(1764460218102214, notice)).decode()
    assert frame.rstrip() in (REFERENCE / "events.md").read_text()
    assert msgspec.json.decode(frame.split("data: ")[1])["alias"] == "OnModelReady"
