"""`drivetrain show`: what is known of a model, and where each of its effective settings comes from."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import Server, connect, model_path
from drivetrain.cli.command import Call, command
from drivetrain.cli.completion import model_names

PARTS = ("license", "modelfile", "parameters", "system", "template")


@command()
@click.argument("model", shell_complete=model_names)
@click.option("--effective", is_flag=True, help="Each effective setting, and where it was said.")
@click.option("--part", type=click.Choice(PARTS), help="Only this part, as it is.")
def show(call: Call, model: str, effective: bool, part: str | None) -> None:
    """Show what is known of a model.

    Its architecture, capabilities, parameters, system prompt and licence.
    """
    asyncio.run(_effective(call, model) if effective else _show(call, model, part))


async def _effective(call: Call, model: str) -> None:
    async with connect(call) as server:
        answer = await server.get(model_path(model), effective="true")
    if call.json:
        output.emit(answer)
        return
    rows = [(name, str(setting["value"]), setting["origin"]) for name, setting in answer["effective"].items()]
    output.table(("SETTING", "VALUE", "FROM"), rows)


async def _show(call: Call, model: str, part: str | None) -> None:
    async with connect(call) as server:
        answer = await server.post("/api/show", {"model": model})
        expected = None if part else await _expected(call, server, model, answer)
    if call.json and expected:
        output.emit({**answer, "expected": expected})
    elif call.json:
        output.emit({part: answer.get(part, "")} if part else answer)
    elif part:
        click.echo(text_of(answer, part))
    else:
        click.echo(summary(answer, expected))


def text_of(answer: Mapping[str, Any], part: str) -> str:
    """One part of what the server knows of a model, "" if it knows none."""
    return str(answer.get(part) or "").strip()


async def _expected(call: Call, server: Server, model: str, answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not any(name.endswith(".expert_count") for name in answer.get("model_info") or ()):
        return None
    from drivetrain.cli import expected  # it takes long to import, and few models have experts

    return await expected.expected(call, server, model)


def summary(answer: Mapping[str, Any], expected: Mapping[str, Any] | None = None) -> str:
    """A model on one screen."""
    parts = [
        _section("Model", _facts(answer)),
        _section("Streaming", _predicted(expected) if expected else ()),
        _section("Capabilities", ((name, "") for name in answer.get("capabilities") or ())),
        _section("Parameters", (tuple(line.split(maxsplit=1)) for line in text_of(answer, "parameters").splitlines())),
        _section("System", _first_lines(text_of(answer, "system"))),
        _section("License", _first_lines(text_of(answer, "license"))),
    ]
    return "\n\n".join(filter(None, parts))


def _facts(answer: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    details, info = answer.get("details") or {}, answer.get("model_info") or {}
    architecture = str(info.get("general.architecture") or details.get("family") or "")
    facts = {
        "architecture": architecture,
        "parameters": details.get("parameter_size"),
        "context length": info.get(f"{architecture}.context_length") or details.get("context_length"),
        "embedding length": info.get(f"{architecture}.embedding_length") or details.get("embedding_length"),
        "quantization": details.get("quantization_level"),
        "format": details.get("format"),
    }
    return ((name, str(value)) for name, value in facts.items() if value)


def _predicted(told: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Of a streamed model: what was to be expected, and what was measured."""
    spread = f"{told['least_tokens_s']:.2g} to {told['most_tokens_s']:.2g}"
    yield "predicted", f"{told['tokens_s']:.2g} tokens/s ({spread})"
    if told["measured_tokens_s"]:
        yield "measured", f"{told['measured_tokens_s']:.2g} tokens/s"
    yield "hit rate", f"{told['hit_rate']:.0%}, {'measured' if told['measured_hits'] else 'estimated'}"
    yield "memory", output.size(told["memory_bytes"])
    yield "first token", f"{told['first_token_s']:.1f} s, of a prompt of {told['prompt_tokens']} tokens"


def _first_lines(text: str, count: int = 2) -> Iterable[tuple[str, str]]:
    return ((line.strip(), "") for line in text.splitlines()[:count])


def _section(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"    {row[0]:<20} {row[1] if len(row) > 1 else ''}".rstrip() for row in rows if row]
    return "\n".join([f"  {title}", *lines]) if lines else ""
