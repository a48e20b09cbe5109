"""Brings a database to the newest schema with Alembic. Slow to import: only for a database that is not there yet."""

import sqlite3
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from drivetrain.errors import Internal


def upgrade(connection: Connection, place: str, *, to: str = "head") -> None:
    """Run every step that the database lacks, in the transaction of `connection`. `place` is what messages call it.

    Raises `Internal` for a schema that only a newer Drivetrain knows, and if a step fails.
    """
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in revisions():
        advice = "upgrade Drivetrain, or set store.url to another store"
        raise Internal(f"the store {place} has schema {current}, which a newer Drivetrain wrote; {advice}")
    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except DBAPIError as error:
        told = " ".join(str(error.orig).split())
        raise Internal(f"the store {place} stays as it is, schema {current}: a step to {to} failed: {told}") from error


def revisions() -> list[str]:
    """Every known schema, newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def dump(path: Path) -> str:
    """The whole schema of a SQLite database as SQL, with the rows that it starts with: what `schema.sql` must be."""
    with closing(sqlite3.connect(path)) as connection:
        ours = "sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        made = connection.execute(f"SELECT sql FROM sqlite_master WHERE {ours} ORDER BY rowid").fetchall()  # noqa: S608 - a constant
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    stamp = f"INSERT INTO alembic_version VALUES ('{revision}')"  # noqa: S608 - a revision of ours
    head = "INSERT INTO head VALUES (1, 0, '')"
    lines = "\n".join(f"{statement};" for statement in [*(sql for (sql,) in made), head, stamp]).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config
