"""What is written to stderr: JSON lines, or readable ones on a terminal; secrets and prompts never.

Every package logs with the standard library, `logging.getLogger("drivetrain.…")`, extra fields in `extra=`; structlog
renders it, and what uvicorn, alembic and others say, in one shape.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TextIO

import msgspec

from drivetrain.governance import Attempt
from drivetrain.telemetry.redact import Redactor

if TYPE_CHECKING:
    from structlog.stdlib import ProcessorFormatter
    from structlog.typing import EventDict, WrappedLogger

Format = Literal["auto", "json", "console"]
Level = Literal["debug", "info", "warning", "error"]

request_id: ContextVar[str] = ContextVar("request_id", default="")

# Libraries whose news is ours to tell, or nobody's: only their warnings are shown, unless everything is.
_QUIET = ("alembic", "asyncio", "filelock", "httpcore2", "httpx2", "huggingface_hub", "urllib3", "uvicorn")


class Logs:
    """Where log lines go."""

    def __init__(self, *, level: Level = "info", format: Format = "auto", stream: TextIO | None = None) -> None:
        self.redactor = Redactor()
        self._stream = stream or sys.stderr
        self._handler = logging.StreamHandler(self._stream)
        self.set_format(format)
        self._plain = lru_cache(1024)(self.redactor.text)
        self._before: tuple[int, list[logging.Handler]] | None = None
        self._level = level
        self._access = level in ("debug", "info")

    def set_format(self, format: Format) -> None:
        terminal = not self._stream.closed and self._stream.isatty()
        self._json = format == "json" or (format == "auto" and not terminal)
        self._handler.setFormatter(_formatter(self.redactor, as_json=self._json, colors=terminal))

    def set_level(self, level: Level) -> None:
        """For all loggers of this process."""
        self._level = level
        self._access = level in ("debug", "info")
        logging.getLogger().setLevel(level.upper())
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)

    def know_secrets(self, secrets: Iterable[str]) -> None:
        """Never write these: the secrets of the configuration in force, instead of those before."""
        self.redactor.learn(secrets)
        self._plain.cache_clear()

    def install(self) -> None:
        """All that is logged in this process goes through here. A server must not install handlers of its own."""
        root = logging.getLogger()
        self._before = (root.level, list(root.handlers))
        root.handlers[:] = [self._handler]
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).propagate = name != "uvicorn.access"  # the access lines are ours
        self.set_level(self._level)
        logging.captureWarnings(True)

    def close(self) -> None:
        """Logging is as it was before `install`."""
        root = logging.getLogger()
        if self._before is not None:
            root.level, root.handlers[:] = self._before
            logging.captureWarnings(False)

    def access(self, attempts: Sequence[Attempt]) -> None:
        """One line per attempt, all in one write. Called on the ledger's thread."""
        if not self._access or not attempts:
            return
        line = self._json_line if self._json else self._console_line
        text = "".join([line(attempt) for attempt in attempts])
        self._handler.acquire()
        try:
            with suppress(OSError, ValueError):  # whoever read stderr has gone: no reason to stop answering
                self._stream.write(text)
                self._stream.flush()
        finally:
            self._handler.release()

    def _json_line(self, attempt: Attempt) -> str:
        attempt = self._without_secrets(attempt)
        ended = datetime.fromtimestamp(attempt.started_s + attempt.total_s, UTC).isoformat(timespec="milliseconds")
        head = f'{{"timestamp":"{ended}","level":"info","logger":"drivetrain.access","event":"attempt",'
        return f"{head}{msgspec.json.encode(attempt).decode()[1:]}\n"

    def _console_line(self, attempt: Attempt) -> str:
        attempt = self._without_secrets(attempt)
        ended = datetime.fromtimestamp(attempt.started_s + attempt.total_s).strftime("%H:%M:%S")
        took = f"{attempt.total_s * 1000:.0f} ms"
        if attempt.first_token_s is not None:
            took += f", first token {attempt.first_token_s * 1000:.0f} ms"
        tokens = f"{attempt.prompt_tokens}+{attempt.completion_tokens} tokens"
        ending = attempt.outcome if not attempt.why else f"{attempt.outcome} ({attempt.why})"
        what = f"{attempt.dialect} {attempt.model} → {attempt.engine or '-'}"
        return f"{ended} {attempt.status} {what} {ending} {tokens} {took}\n"

    def _without_secrets(self, attempt: Attempt) -> Attempt:
        """Names come from callers: somebody will send a key as a model's name."""
        plain = self._plain
        model, target, why = plain(attempt.model), plain(attempt.engine_model), plain(attempt.why)
        if (model, target, why) == (attempt.model, attempt.engine_model, attempt.why):
            return attempt
        return msgspec.structs.replace(attempt, model=model, engine_model=target, why=why)


@contextmanager
def in_request(id: str) -> Iterator[None]:
    """Lines logged in here carry the request's id."""
    token = request_id.set(id)
    try:
        yield
    finally:
        request_id.reset(token)


def _formatter(redactor: Redactor, *, as_json: bool, colors: bool) -> "ProcessorFormatter":
    # structlog imports rich when it is there, a third of a second that a server has no use for. CPython takes None in
    # sys.modules for "not installed".
    without_rich = "rich" not in sys.modules
    if without_rich:
        sys.modules["rich"] = None  # type: ignore[assignment]  # documented in `importlib`: makes the import fail
    import structlog

    if without_rich:
        del sys.modules["rich"]

    def in_this_request(_: "WrappedLogger", __: str, event: "EventDict") -> "EventDict":
        if id := request_id.get():
            event["request_id"] = id
        return event

    def redacted(_: "WrappedLogger", __: str, event: "EventDict") -> "EventDict":
        event.pop("color_message", None)  # uvicorn says everything twice
        return {name: redactor.value(value, name) for name, value in event.items()}

    def to_json(event: "EventDict", **_: object) -> str:
        return msgspec.json.encode(event).decode()

    as_text = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    renderer = structlog.processors.JSONRenderer(serializer=to_json) if as_json else as_text
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            in_this_request,
            structlog.processors.format_exc_info,
            redacted,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
