"""Versions of named prompts in the store. One is never changed: a new text is the next version of its name.

Blocking; for a thread of its own.
"""

import time
from collections.abc import Callable, Collection, Mapping

from sqlalchemy import Connection, insert, select, tuple_

from drivetrain.errors import BadRequest, NotFound
from drivetrain.rollouts.plan import Prompt
from drivetrain.store import audit, tables
from drivetrain.store.database import Store

PAGE = 1_000
CHARACTERS = 200_000  # of one text
NAME_CHARACTERS = 100
_COLUMNS = tables.prompts.c


class Prompts:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def list(self, *, name: str | None = None, after: str = "", limit: int = PAGE) -> list[Prompt]:
        """By name and version, those after the reference `after`. Raises `BadRequest` for one that is no reference."""
        asked = select(tables.prompts).order_by(_COLUMNS.name, _COLUMNS.version).limit(limit)
        if name is not None:
            asked = asked.where(_COLUMNS.name == name)
        if after:
            asked = asked.where(tuple_(_COLUMNS.name, _COLUMNS.version) > tuple_(*_parted(after)))
        with self._store.reading() as connection:
            return [Prompt(**row) for row in connection.execute(asked).mappings()]

    def get(self, reference: str) -> Prompt:
        """Of `name@version` that one, of a name its newest. Raises `NotFound`, and `BadRequest` for what is neither."""
        if not reference.isprintable():
            raise NotFound(f"there is no prompt {reference[:100]!r}")
        name, version = _parted(reference) if "@" in reference else (reference, None)
        asked = select(tables.prompts).where(_COLUMNS.name == name).order_by(_COLUMNS.version.desc()).limit(1)
        if version is not None:
            asked = asked.where(_COLUMNS.version == version)
        with self._store.reading() as connection:
            row = connection.execute(asked).mappings().first()
        if row is None:
            raise NotFound(f"there is no prompt {reference[:100]!r}; list them to see their names and versions")
        return Prompt(**row)

    def add(self, name: str, text: str, *, actor: str, request_id: str = "") -> Prompt:
        """The next version of this name. The newest one, if that is its text already. Raises `BadRequest` for what is
        no name, or too long."""
        _check(name, text)
        now_s = self._clock()
        with audit.writing(self._store, at_s=now_s, actor=actor, request_id=request_id) as transaction:
            newest = select(tables.prompts).where(_COLUMNS.name == name).order_by(_COLUMNS.version.desc()).limit(1)
            row = transaction.connection.execute(newest).mappings().first()
            if row is not None and row["text"] == text:
                return Prompt(**row)
            version = 1 if row is None else row["version"] + 1
            made = Prompt(name=name, version=version, text=text, created_s=now_s)
            fields = {"name": name, "version": version, "text": text, "created_s": now_s}
            transaction.connection.execute(insert(tables.prompts).values(**fields))
            transaction.write("create", "prompt", made.reference, None, fields)
            return made


def every(connection: Connection) -> Mapping[str, Prompt]:
    """All of them, by their references."""
    found = (Prompt(**row) for row in connection.execute(select(tables.prompts)).mappings())
    return {prompt.reference: prompt for prompt in found}


def require(connection: Connection, references: Collection[str]) -> None:
    """Raises `BadRequest` for one that there is not."""
    for reference in references:
        name, version = _parted(reference)
        found = select(_COLUMNS.version).where(_COLUMNS.name == name, _COLUMNS.version == version)
        if connection.execute(found).first() is None:
            raise BadRequest(f"there is no prompt {reference!r}; add it first", param="prompt")


def _parted(reference: str) -> tuple[str, int]:
    name, _, version = reference.rpartition("@")
    if not (name and name.isprintable() and version.isascii() and version.isdigit() and len(version) < 10):
        raise BadRequest(f"{reference[:100]!r} is no version of a prompt; write NAME@VERSION", param="prompt")
    return name, int(version)


def _check(name: str, text: str) -> None:
    plain = name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if not plain or len(name) > NAME_CHARACTERS:
        raise BadRequest(f"name {name[:100]!r} of a prompt: letters, digits, `-`, `_` and `.`", param="name")
    if not text.strip() or "\0" in text or len(text) > CHARACTERS:
        problem = f"from 1 to {CHARACTERS} characters, none of them zero"
        raise BadRequest(f"text of a prompt, {len(text)} characters: {problem}", param="text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"text of a prompt: {error}", param="text") from error
