"""Whether a configuration that fits the schema makes sense: names lead somewhere, addresses can be spoken to."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec

from drivetrain.config.check import brief
from drivetrain.config.problems import Path, suggestion
from drivetrain.config.schema import Config, Engine, Policy, Route, Routing, Sink, When
from drivetrain.config.secrets import HIDDEN, is_secret

_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?:[0-9]{1,5}")
_PROMPT = re.compile(r"[^@\s]+@[1-9][0-9]*")
_SCHEMES: Mapping[str, Collection[str]] = {
    "engine": ("http", "https", "unix"),
    "store": ("sqlite", "postgresql", "postgres"),
    "shared": ("redis", "rediss", "valkey", "valkeys", "unix"),
    "registry": ("http", "https"),
    "sink": ("http", "https"),
    "provider": ("https", "http"),
}

Finding = tuple[Path, str]
OptionsOf = Callable[[str], type[msgspec.Struct] | None]  # of an installed kind: the type of its options, if it tells


def findings(config: Config, kinds: Collection[str] | None, options_of: OptionsOf | None = None) -> Iterator[Finding]:
    """What makes no sense. `kinds` are the engine kinds that are installed, None if that is not to be checked."""
    yield from _engines(config, kinds, options_of)
    for name, route in config.models.items():
        yield from _route(config, ("models", name), route)
    for list, names in (("pin", config.residency.pin), ("preload", config.residency.preload)):
        yield from ((("residency", list, n), "a model needs a name") for n, name in enumerate(names) if not name)
    for name, policy in config.policies.items():
        yield from _policy(("policies", name), policy)
        yield from _routing(("policies", name, "routing"), policy.routing, config.engines)
    yield from _url(("store", "url"), config.store.url, "store")
    yield from _url(("shared", "url"), config.shared.url, "shared")
    if config.shared.mode == "leased" and config.shared.url is None:
        yield ("shared", "mode"), "there is nothing to take leases of; give `shared.url`, or leave it out"
    yield from _url(("oidc", "issuer"), config.oidc.issuer, "provider")
    yield from _url(("oidc", "jwks_url"), config.oidc.jwks_url, "provider")
    for name, sink in config.sinks.items():
        yield from _sink(("sinks", name), sink)
    yield from _url(("downloads", "huggingface"), config.downloads.huggingface, "registry")
    yield from _url(("downloads", "ollama"), config.downloads.ollama, "registry")


def _engines(config: Config, kinds: Collection[str] | None, options_of: OptionsOf | None) -> Iterator[Finding]:
    for name, engine in config.engines.items():
        here: Path = ("engines", name)
        if not _ENGINE_NAME.fullmatch(name):
            yield here, "a name begins with a letter or digit, then letters, digits, '.', '_' and '-'"
        if kinds is not None and engine.kind not in kinds:
            hint = suggestion(engine.kind, kinds)
            yield (*here, "kind"), f"no installed package offers engines of kind {engine.kind!r}{hint}"
        elif options_of is not None and engine.options and (told := options_of(engine.kind)) is not None:
            yield from _options((*here, "options"), engine.options, told)
        yield from _url((*here, "url"), engine.url, "engine")
        yield from _discover(here, engine)


def _options(here: Path, given: Mapping[str, Any], told: type[msgspec.Struct]) -> Iterator[Finding]:
    """Members that the kind of an engine does not know, or that it takes in another form."""
    types = {field.encode_name: field.type for field in msgspec.structs.fields(told)}
    for name, value in given.items():
        where = (*here, name)
        if name in types:
            try:
                msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                yield where, f"{error}: {HIDDEN if is_secret(where) else brief(value)}"
        elif told.__struct_config__.forbid_unknown_fields:
            hint = suggestion(name, (*types, *Engine.__struct_fields__))
            known = hint if hint.startswith("; did") else suggestion(name, types)
            yield where, f"is not known to this kind of engine{known}"


def _discover(here: Path, engine: Engine) -> Iterator[Finding]:
    """One way to find instances, and one that an engine of this kind can have."""
    if (discover := engine.discover) is None:
        return
    here = (*here, "discover")
    ways = [name for name in ("list", "dns", "file") if getattr(discover, name)]
    if engine.url is not None:
        yield here, "an engine has a url, or it discovers its instances; leave one of the two out"
    if engine.kind == "llamacpp":
        yield here, "the embedded engine is one, and has no instances to discover"
    if len(ways) != 1:
        given = f", not {' and '.join(ways)}" if ways else ""
        yield here, f"give one of list, dns and file{given}"
    for position, url in enumerate(discover.list):
        yield from _url((*here, "list", position), url, "engine")
    if discover.dns is not None and not _HOST_AND_PORT.fullmatch(discover.dns):
        yield (*here, "dns"), f"{discover.dns!r} must look like host:port"


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
    if policy.hedge.least_s > policy.hedge.most_s:
        yield (*here, "hedge", "least_s"), f"is more than `most_s`, {policy.hedge.most_s:g}"
    if policy.prompt is not None and not _PROMPT.fullmatch(policy.prompt):
        yield (*here, "prompt"), f"{policy.prompt!r} is no version of a prompt; expected NAME@VERSION such as support@3"
    for position, pattern in enumerate(policy.bodies.redact):
        try:
            re.compile(pattern)
        except re.error as error:
            yield (*here, "bodies", "redact", position), f"{pattern!r} is no regular expression: {error}"


def _routing(here: Path, routing: Routing, engines: Collection[str]) -> Iterator[Finding]:
    """A rule says something, of engines that there are, for requests that there can be."""
    for position, rule in enumerate(routing.rules):
        at: Path = (*here, "rules", position)
        when = rule.when
        for place, engine in enumerate(rule.engines):
            if engine not in engines:
                yield (*at, "engines", place), f"there is no engine {engine!r}{suggestion(engine, engines)}"
        if not rule.engines and rule.tier is None and rule.goal is None:
            yield at, "says nothing; give it engines, a tier or a goal"
        if rule.engines and rule.tier is not None:
            yield at, "engines or a tier, not both"
        over, under = when.prompt_tokens_over, when.prompt_tokens_under
        if over is not None and under is not None and under <= over + 1:
            yield (*at, "when"), f"no prompt has over {over} and under {under} tokens"
        if when == When() and position + 1 < len(routing.rules):
            yield (*at, "when"), "holds for every request, so the rules after it never do"


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
