"""Whether a configuration that fits the schema makes sense: names lead somewhere, addresses can be spoken to."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from drivetrain.config.problems import Path, suggestion
from drivetrain.config.schema import Config, Policy, Route, Sink

_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SCHEMES: Mapping[str, Collection[str]] = {
    "engine": ("http", "https", "unix"),
    "store": ("sqlite", "postgresql", "postgres"),
    "shared": ("redis", "rediss", "valkey", "valkeys", "unix"),
    "registry": ("http", "https"),
    "sink": ("http", "https"),
    "provider": ("https", "http"),
}

Finding = tuple[Path, str]


def findings(config: Config, kinds: Collection[str] | None) -> Iterator[Finding]:
    """What makes no sense. `kinds` are the engine kinds that are installed, None if that is not to be checked."""
    yield from _engines(config, kinds)
    for name, route in config.models.items():
        yield from _route(config, ("models", name), route)
    for name, policy in config.policies.items():
        yield from _policy(("policies", name), policy)
    yield from _url(("store", "url"), config.store.url, "store")
    yield from _url(("shared", "url"), config.shared.url, "shared")
    yield from _url(("oidc", "issuer"), config.oidc.issuer, "provider")
    yield from _url(("oidc", "jwks_url"), config.oidc.jwks_url, "provider")
    for name, sink in config.sinks.items():
        yield from _sink(("sinks", name), sink)
    yield from _url(("downloads", "huggingface"), config.downloads.huggingface, "registry")
    yield from _url(("downloads", "ollama"), config.downloads.ollama, "registry")


def _engines(config: Config, kinds: Collection[str] | None) -> Iterator[Finding]:
    for name, engine in config.engines.items():
        here: Path = ("engines", name)
        if not _ENGINE_NAME.fullmatch(name):
            yield here, "a name begins with a letter or digit, then letters, digits, '.', '_' and '-'"
        if kinds is not None and engine.kind not in kinds:
            hint = suggestion(engine.kind, kinds)
            yield (*here, "kind"), f"no installed package offers engines of kind {engine.kind!r}{hint}"
        yield from _url((*here, "url"), engine.url, "engine")


def _route(config: Config, here: Path, route: Route) -> Iterator[Finding]:
    if not here[-1]:
        yield here, "a model needs a name"
    for position, target in enumerate(route.targets):
        if target.engine not in config.engines:
            hint = suggestion(target.engine, config.engines)
            yield (*here, "targets", position, "engine"), f"there is no engine {target.engine!r}{hint}"
    if not any(target.weight for target in route.targets):
        yield (*here, "targets"), "every target has weight 0, so nothing could answer; give one of them a weight"
    if route.policy not in config.policies:
        yield (*here, "policy"), f"there is no policy {route.policy!r}{suggestion(route.policy, config.policies)}"


def _policy(here: Path, policy: Policy) -> Iterator[Finding]:
    for position, budget in enumerate(policy.budgets):
        if not _is_zone(budget.zone):
            known = "expected a name such as UTC or Europe/Berlin"
            yield (*here, "budgets", position, "zone"), f"time zone {budget.zone!r} is not known here; {known}"
    for position, pattern in enumerate(policy.bodies.redact):
        try:
            re.compile(pattern)
        except re.error as error:
            yield (*here, "bodies", "redact", position), f"{pattern!r} is no regular expression: {error}"


def _is_zone(name: str) -> bool:
    try:
        return name == "UTC" or bool(ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        return False


# Members of a sink that its kind needs, and those that it may have beside the ones for all kinds.
_SINK_NEEDS: Mapping[str, tuple[str, ...]] = {
    "bigquery": ("dataset",),
    "parquet": ("path",),
    "otlp": ("url",),
    "webhook": ("url",),
}
_SINK_TAKES: Mapping[str, tuple[str, ...]] = {
    "bigquery": ("project", "dataset", "table", "url", "grpc"),
    "parquet": ("path",),
    "otlp": ("url", "headers"),
    "webhook": ("url", "headers", "secret"),
}
_SINK_COMMON = ("kind", "batch_rows", "every_s")
_BIGQUERY_NAME = re.compile(r"\w{1,1024}", re.ASCII)


def _sink(here: Path, sink: Sink) -> Iterator[Finding]:
    """A sink's name becomes that of a file."""
    if not _ENGINE_NAME.fullmatch(str(here[-1])):
        yield here, "a name begins with a letter or digit, then letters, digits, '.', '_' and '-'"
    needs = [member for member in _SINK_NEEDS[sink.kind] if not getattr(sink, member)]
    if needs:
        yield here, f"a sink of kind {sink.kind!r} needs {' and '.join(map(repr, needs))}"
    default = Sink(kind=sink.kind)
    for member in set(Sink.__struct_fields__) - {*_SINK_TAKES[sink.kind], *_SINK_COMMON}:
        if getattr(sink, member) != getattr(default, member):
            yield (*here, member), f"means nothing to a sink of kind {sink.kind!r}"
    yield from _url((*here, "url"), sink.url, "sink")
    if sink.kind == "bigquery":
        yield from _bigquery(here, sink)


def _bigquery(here: Path, sink: Sink) -> Iterator[Finding]:
    for member in ("dataset", "table"):
        name = getattr(sink, member)
        if name and not _BIGQUERY_NAME.fullmatch(name):
            yield (*here, member), f"{name!r} is no name for BigQuery: letters, digits and '_'"
    if bool(sink.url) != bool(sink.grpc):
        yield here, "an emulator has both addresses, 'url' and 'grpc'; leave both out for BigQuery itself"
    if sink.grpc and not sink.project:
        yield here, "an emulator needs 'project'; any name will do"


def _url(path: Path, url: str | None, use: str) -> Iterator[Finding]:
    if url is None:
        return
    schemes = _SCHEMES[use]
    wrong = _wrong(url, schemes)
    if wrong:
        yield path, f"{wrong}; expected a URL such as {_example(schemes)}"


def _wrong(url: str, schemes: Collection[str]) -> str:
    """What is wrong with a URL, "" if nothing. Never quotes it: it may hold a password."""
    try:
        parts = urlsplit(url)
        scheme, _ = parts.scheme.split("+")[0], parts.port
    except ValueError as error:
        return f"is no URL ({error})"
    if scheme not in schemes:
        return f"scheme {scheme!r} is none of {', '.join(schemes)}" if scheme and "//" in url else "is no URL"
    if scheme in ("unix", "sqlite"):
        return "" if parts.path else "names no file"
    return "" if parts.hostname else "names no host"


def _example(schemes: Collection[str]) -> str:
    first = next(iter(schemes))
    examples: Mapping[str, Any] = {"sqlite": "sqlite:///state/drivetrain.db", "redis": "redis://127.0.0.1:6379"}
    return str(examples.get(first, f"{first}://127.0.0.1:8000"))
