"""What a long errand tells while it runs, in Ollama's words."""

import msgspec


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    digest: str | None = None  # "sha256:…", of the part that is being moved
    total: int | None = None  # bytes
    completed: int | None = None  # bytes
