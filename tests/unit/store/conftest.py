"""An administration of each store, for all tests of this folder."""

from tests.unit.store.administrators import admin, clock, embedded, file

__all__ = ["admin", "clock", "embedded", "file"]
