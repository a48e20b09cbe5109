"""Brings a database to the newest schema with Alembic. Slow to import: only for a database that is not there yet."""

import sqlite3
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine

from drivetrain.errors import Internal


def upgrade(url: str) -> None:
    """Run every step that the database lacks. Raises `Internal` for a schema that only a newer Drivetrain knows."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in revisions():
            advice = "upgrade Drivetrain, or set store.url to another store"
            raise Internal(f"the store {url} has schema {current}, which a newer Drivetrain wrote; {advice}")
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def revisions() -> list[str]:
    """Every known schema, newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def dump(path: Path) -> str:
    """The whole schema of a SQLite database as SQL, its revision included: what `schema.sql` must be."""
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rootpage").fetchall()
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    stamp = f"INSERT INTO alembic_version VALUES ('{revision}')"  # noqa: S608 - a revision of ours
    lines = "\n".join(f"{statement};" for statement in [*(sql for (sql,) in made), stamp]).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
