"""A request that is only asked about: what `/v1/explain` is told of it, as the gateway knows requests."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from drivetrain.errors import BadRequest
from drivetrain.governance import Attempt
from drivetrain.policies import demand
from drivetrain.policies.classes import class_of
from drivetrain.router import Facts
from drivetrain.server.exchange import Exchange
from drivetrain.types import Message, Request, Text

MOST_DIGITS = 9
USUAL = Facts()


class DryRun(NamedTuple):
    facts: Facts
    request: Request  # no more than what a prompt begins with
    session: str


def dry_run(exchange: Exchange, model: str, like: Facts = USUAL) -> DryRun:
    """`like`: what holds of it as far as nothing is told. Raises `BadRequest` for a member that cannot be read."""
    request = _words(exchange, model)
    spoken = demand.prompt_tokens(request) if request.messages else like.prompt_tokens
    limit = _count(exchange, "output_tokens", 0)
    priority = exchange.query("priority")
    facts = Facts(
        prompt_tokens=_count(exchange, "prompt_tokens", max(1, spoken)),
        output_tokens=limit or like.output_tokens,
        limit=limit,
        tools=_flag(exchange, "tools"),
        images=_flag(exchange, "images"),
        schema=_flag(exchange, "schema"),
        priority=class_of(priority.encode() if priority is not None else None, None, exchange.who.priority),
        deadline_s=_count(exchange, "within_ms", 0) / 1000 or None,
        region=exchange.query("region") or "",
    )
    return DryRun(facts, request, exchange.query("session") or "")


def facts_on_record(attempts: Sequence[Attempt]) -> Facts:
    """What the ledger still knows of a request: how long its prompt was, and its answer."""
    return Facts(
        prompt_tokens=max(row.prompt_tokens for row in attempts) or USUAL.prompt_tokens,
        output_tokens=max(row.completion_tokens for row in attempts) or USUAL.output_tokens,
    )


def _words(exchange: Exchange, model: str) -> Request:
    system, message = exchange.query("system"), exchange.query("message")
    request = Request(model=model)
    if system is not None:
        request = _with(request, Message(role="system", content=(Text(text=system),)))
    return request if message is None else _with(request, Message(role="user", content=(Text(text=message),)))


def _with(request: Request, message: Message) -> Request:
    return replace(request, messages=(*request.messages, message))


def _flag(exchange: Exchange, name: str) -> bool:
    written = exchange.query(name) or "false"
    if written not in ("true", "false"):
        raise BadRequest(f"{name}={written[:100]!r} must be true or false", param=name)
    return written == "true"


def _count(exchange: Exchange, name: str, usual: int) -> int:
    written = exchange.query(name)
    if written is None:
        return usual
    if not (written.isascii() and written.isdigit() and len(written) <= MOST_DIGITS and int(written)):
        raise BadRequest(f"{name}={written[:100]!r} must be a number, from 1", param=name)
    return int(written)
