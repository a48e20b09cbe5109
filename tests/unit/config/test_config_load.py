"""A configuration is the sum of its layers, validated whole; every mistake is told with its place."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from drivetrain import config
from drivetrain.config.schema import Budget, Engine, Policy, Route, Target, Timeouts

NOTHING: Mapping[str, str] = {}

EXAMPLE = """\
server:   {host: 127.0.0.1, port: 11435, workers: 1, auth: auto}
store:    {url: "sqlite:///state/drivetrain.db"}
shared:   {url: null}
engines:
  local:  {kind: llamacpp}
  box-1:  {kind: ollama, url: "http://10.0.0.7:11434", region: eu}
  gpu-a:  {kind: vllm, url: "http://10.0.0.5:8000", weight: 2}
  api:    {kind: openai, url: "https://api.example.com/v1", api_key: "${API_KEY}"}
models:
  chat:
    targets: [{engine: gpu-a, model: org/name, weight: 9}, {engine: box-1, model: "name:7b"}]
    policy: interactive
policies:
  interactive:
    timeouts: {connect_s: 2, first_token_s: 30, idle_s: 30, total_s: 600}
    limits:   {requests_per_minute: 600, tokens_per_minute: 200000, concurrency: 16}
    queue:    {size: 64, timeout_s: 30}
    budgets:  [{usd: 50, per: month, hard: true}]
"""


class Files:
    """A folder of configurations; problems come back without its path."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "drivetrain.yaml"

    def resolve(self, text: str, environ: Mapping[str, str] = NOTHING, **how: Any) -> config.Resolved:
        self._file.write_text(text)
        return config.resolve(self._file, environ, **how)

    def problems(self, text: str, environ: Mapping[str, str] = NOTHING, **how: Any) -> list[str]:
        with pytest.raises(config.ConfigError) as caught:
            self.resolve(text, environ, **how)
        return str(caught.value).replace(f"{self._file}:", "").splitlines()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# --- defaults and layers ----------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold() -> None:
    loaded = config.load(None, NOTHING)

    assert (loaded.server.host, loaded.server.port) == ("127.0.0.1", 11435)
    assert {"local": Engine(kind="llamacpp")} == loaded.engines
    assert {"default": Policy()} == loaded.policies


def test_the_example_of_the_architecture_is_read_as_it_stands(files: Files) -> None:
    loaded = files.resolve(EXAMPLE, {"API_KEY": "k-1"}).config

    assert loaded.engines["api"].api_key == "k-1"
    targets = (Target(engine="gpu-a", model="org/name", weight=9), Target(engine="box-1", model="name:7b"))
    assert Route(targets=targets, policy="interactive") == loaded.models["chat"]
    assert (Budget(usd=50, per="month"),) == loaded.policies["interactive"].budgets
    assert Timeouts(connect_s=2, first_token_s=30, idle_s=30, total_s=600) == loaded.policies["interactive"].timeouts


def test_a_section_that_is_named_and_left_empty_is_the_default(files: Files) -> None:
    assert config.load(None, NOTHING) == files.resolve("server:\nengines:\nresidency:\n").config


def test_a_flag_counts_before_the_environment_before_the_file_before_the_default(files: Files) -> None:
    text = "server: {host: 10.0.0.1, port: 1, workers: 2}"
    environ = {"DRIVETRAIN_SERVER__PORT": "2", "DRIVETRAIN_SERVER__HOST": "10.0.0.2"}
    resolved = files.resolve(text, environ, flags={"server.host": "10.0.0.3", "server.workers": None})

    server = resolved.config.server
    assert (server.host, server.port, server.workers, server.auth) == ("10.0.0.3", 2, 2, "auto")
    origins = {name: resolved.origins[f"server.{name}"].rsplit("/")[-1] for name in ("host", "port", "workers", "auth")}
    assert origins == {
        "host": "--host",
        "port": "$DRIVETRAIN_SERVER__PORT",
        "workers": "drivetrain.yaml:1:44",
        "auth": "default",
    }


def test_a_flag_hides_no_mistake_of_the_file(files: Files) -> None:
    text = "server:\n  port: abc\n  workers: 0\nshared: {mode: leased}\n"
    flags = {"server.port": 0, "server.workers": 1}

    told = files.problems(text, flags=flags)
    assert told == files.problems(text)
    assert told == [
        "2:9: server.port: expected an integer from 0 to 65535, got 'abc'",
        "3:12: server.workers: expected an integer of at least 1, got 0",
    ]


def test_a_flag_is_checked_like_the_file(files: Files) -> None:
    told = files.problems("server: {port: 1}", flags={"server.port": 70000})
    assert told == ["--port: server.port: expected an integer from 0 to 65535, got 70000"]


def test_a_flag_needs_no_section_in_the_file(files: Files) -> None:
    resolved = files.resolve("engines: {b: {kind: ollama, url: 'http://a', num_ctx: 8}}", flags={"server.port": 7})
    assert resolved.config.server.port == 7
    assert resolved.origins["engines.b.options.num_ctx"].endswith("drivetrain.yaml:1:55")


def test_parameters_of_a_policy_have_the_types_that_requests_take(files: Files) -> None:
    text = "policies:\n  calm:\n    parameters: {temperature: hot, top_k: 5, own: x}\n"
    told = files.problems(text)
    assert told == ['3:31: policies.calm.parameters.temperature: must be a number, not "hot"']


def test_a_wrong_type_is_told_with_every_other_one_wherever_it_stands(files: Files) -> None:
    text = """\
server: {port: x}
policies:
  calm: {parameters: {temperature: hot}}
  free: {parameters: 5, settings: [1]}
sinks:
  a: {kind: webhook, url: "http://x", headers: {a: 1, b: [2], c: "3"}}
  b: {kind: webhook, url: "http://x", headers: 3}
engines:
  e: {kind: openai, url: "http://x", options: 4}
"""
    assert files.problems(text) == [
        "1:16: server.port: expected an integer from 0 to 65535, got 'x'",
        '3:36: policies.calm.parameters.temperature: must be a number, not "hot"',
        "4:22: policies.free.parameters: expected a mapping, got 5",
        "4:35: policies.free.settings: expected a mapping, got a list",
        "6:52: sinks.a.headers.a: expected a text, got 1",
        "6:58: sinks.a.headers.b: expected a text, got a list",
        "7:48: sinks.b.headers: expected a mapping, got 3",
        "9:47: engines.e.options: expected a mapping, got 4",
    ]


def test_a_mapping_with_nothing_in_it_is_empty(files: Files) -> None:
    resolved = files.resolve("policies:\n  calm:\n    parameters:\n")
    assert resolved.config.policies["calm"].parameters == {}


def test_every_value_has_an_origin(files: Files) -> None:
    resolved = files.resolve(EXAMPLE, {"API_KEY": "k"})
    assert config.flat(msgspec.to_builtins(resolved.config)).keys() == resolved.origins.keys()


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("DRIVETRAIN_SERVER__PORT", "8080", "server.port", 8080),
        ("DRIVETRAIN_SERVER__DROP_IN", "true", "server.drop_in", True),
        ("DRIVETRAIN_SERVER__DRAIN_S", "2.5", "server.drain_s", 2.5),
        ("DRIVETRAIN_SERVER__ORIGINS", "[app://x, '*']", "server.origins[0]", "app://x"),
        ("DRIVETRAIN_ENGINES__BOX_1__URL", "http://b:1", "engines.box-1.url", "http://b:1"),
        ("DRIVETRAIN_ENGINES__BOX_1__API_KEY", "123", "engines.box-1.api_key", "***"),
        ("DRIVETRAIN_ENGINES__BOX_1__NUM_CTX", "8192", "engines.box-1.options.num_ctx", 8192),
        ("DRIVETRAIN_ENGINES__NEW", "{kind: openai, url: 'http://n'}", "engines.new.kind", "openai"),
        ("DRIVETRAIN_POLICIES__DEFAULT__LIMITS__CONCURRENCY", "4", "policies.default.limits.concurrency", 4),
        ("DRIVETRAIN_SHARED__URL", "redis://r", "shared.url", "redis://r"),
    ],
)
def test_a_variable_of_the_environment_sets_any_value(
    files: Files, variable: str, text: str, path: str, value: Any
) -> None:
    resolved = files.resolve("engines: {box-1: {kind: ollama, url: 'http://a'}}", {variable: text})
    assert value == config.flat(config.dump(resolved.config))[path]


def test_other_variables_of_ours_are_no_configuration() -> None:
    assert config.load(None, NOTHING) == config.load(None, {"DRIVETRAIN_HOME": "/x", "DRIVETRAIN_API_KEY": "k"})


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("DRIVETRAIN_SERVER__PRT", "1", "server.prt: is not known here; did you mean 'port'?"),
        ("DRIVETRAIN_SEVER__PORT", "1", "sever: is not known here; did you mean 'server'?"),
        ("DRIVETRAIN_SERVER__PORT", "x", "server.port: expected an integer from 0 to 65535, got 'x'"),
        ("DRIVETRAIN_SERVER__PORT__X", "1", "server.port.x: is not known here"),
        (
            "DRIVETRAIN_POLICIES__DEFAULT__QUEUE",
            "1",
            "policies.default.queue: is a section; name one of its members: size, timeout_s, reserved",
        ),
    ],
)
def test_a_variable_that_leads_nowhere_is_told_by_its_name(variable: str, text: str, problem: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.load(None, {variable: text})
    assert f"${variable}: {problem}" == str(caught.value)


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "environ", "meant"),
    [
        ('"${KEY}"', {"KEY": "k"}, "k"),
        ("${KEY}", {"KEY": "12345"}, "12345"),
        ('"Bearer ${KEY}"', {"KEY": "k"}, "Bearer k"),
        ('"${KEY:-none}"', {}, "none"),
        ('"${KEY:-none}"', {"KEY": ""}, "none"),
        ('"${KEY:-}"', {}, ""),
        ('"${KEY}"', {"KEY": "${HOME} $$"}, "${HOME} $$"),
        ('"$${KEY} costs $$5 or $5"', {}, "${KEY} costs $5 or $5"),
    ],
)
def test_references_to_the_environment(files: Files, written: str, environ: dict[str, str], meant: str) -> None:
    loaded = files.resolve(f"engines:\n  e:\n    kind: openai\n    api_key: {written}\n", environ).config
    assert meant == loaded.engines["e"].api_key


def test_what_a_reference_gives_has_the_type_of_its_place(files: Files) -> None:
    text = "server: {port: '${PORT}'}\nengines:\n e:\n  kind: x\n  layers: ${N}\n  tag: '${N}'\n  token: ${N}\n"
    loaded = files.resolve(text, {"PORT": "8080", "N": "7"}).config
    assert (loaded.server.port, loaded.engines["e"].options) == (8080, {"layers": 7, "tag": "7", "token": "7"})


def test_a_secret_file_is_read_without_its_last_line_break(files: Files, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    resolved = files.resolve(
        f"engines: {{e: {{kind: openai, api_key: 'file:{tmp_path}/key', x: 'file:{tmp_path}/key'}}}}"
    )

    engine = resolved.config.engines["e"]
    assert (engine.api_key, engine.options) == ("s3cret", {"x": "s3cret"})
    assert "s3cret" not in json.dumps(config.dump(resolved.config, resolved.secrets))


def test_an_origin_that_is_a_file_url_is_no_secret_file(files: Files) -> None:
    assert files.resolve("server: {origins: ['file://*']}").config.server.origins == ("file://*",)


def test_what_a_reference_misses_is_told(files: Files, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    text = "engines:\n a: {kind: openai, api_key: '${KEY}'}\n b: {kind: openai, api_key: '${a-b}'}\n"
    text += "".join(
        f" {name}: {{kind: openai, api_key: 'file:{tmp_path}/{name}'}}\n" for name in ("none", "bytes", "large")
    )

    assert [
        "2:29: engines.a.api_key: the environment variable KEY is not set; set it, or write ${KEY:-default}",
        "3:29: engines.b.api_key: '${a-b}' is no reference; "
        "write ${NAME} or ${NAME:-default}, and $$ for a dollar sign",
        f"4:32: engines.none.api_key: the secret file {tmp_path}/none cannot be read: No such file or directory",
        f"5:33: engines.bytes.api_key: the secret file {tmp_path}/bytes is not UTF-8 text",
        f"6:33: engines.large.api_key: the secret file {tmp_path}/large is larger than 64 KiB",
    ] == files.problems(text)


def test_a_message_never_shows_a_secret(files: Files, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret")
    text = f"server: {{workers: '${{W}}',\n port: 'file:{tmp_path}/key'}}\n"
    text += "engines: {e: {kind: openai, api_key: [s3cret]}}"
    told = files.problems(text, {"W": "s3cret"})

    assert told[0] == "1:19: server.workers: expected an integer of at least 1, got the value of '${W}'"
    assert told[2] == "3:38: engines.e.api_key: expected a text or null, got ***"
    assert "s3cret" not in "".join(told)


def test_showing_hides_secrets_by_name_and_passwords_in_urls(files: Files) -> None:
    text = """\
store: {url: "postgresql://app:pw-1@db/x"}
engines:
  key-box:
    kind: openai
    url: "http://user:pw-2@host:1/v1"
    headers: {Authorization: "Bearer pw-3", x-api-key: pw-4, x-team: red}
    max_tokens: 5
    tls: {password: pw-5, credentials: {a: pw-6}}
"""
    shown = config.dump(files.resolve(text).config)

    assert "pw-" not in json.dumps(shown)
    assert shown["store"]["url"] == "postgresql://app:***@db/x"
    assert shown["engines"]["key-box"]["url"] == "http://user:***@host:1/v1"
    assert shown["engines"]["key-box"]["options"] == {
        "headers": {"Authorization": "***", "x-api-key": "***", "x-team": "red"},
        "max_tokens": 5,
        "tls": {"password": "***", "credentials": {"a": "***"}},
    }
    assert (
        config.dump(files.resolve(EXAMPLE, {"API_KEY": ""}).config)["policies"]["interactive"]["timeouts"][
            "first_token_s"
        ]
        == 30.0
    )


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_every_mistake_is_listed_with_place_path_value_and_what_is_expected(files: Files) -> None:
    text = """\
server: {port: 99999, worker: 2, auth: yes, drop_in: no, host: 5}
engines:
  box-1: {kind: ollama, weight: 0}
  api: {url: "https://x"}
models:
  chat: {targets: [{engine: box-1, model: m, weight: x}, {engine: box-1}]}
  empty: {}
policies:
  p: {timeouts: {total_s: -1}, budgets: [{usd: 1, per: mont}], queue: 3}
logging: [a]
"""
    assert files.problems(text) == [
        "1:23: server.worker: is not known here; did you mean 'workers'?",
        "1:16: server.port: expected an integer from 0 to 65535, got 99999",
        "1:40: server.auth: expected one of 'auto', 'off', 'on', got 'yes'",
        "1:54: server.drop_in: expected true or false, got 'no'",
        "1:64: server.host: expected a text, got 5",
        "3:33: engines.box-1.weight: expected an integer of at least 1, got 0",
        "4:3: engines.api: needs 'kind', a text",
        "6:54: models.chat.targets[0].weight: expected an integer of at least 0, got 'x'",
        "6:58: models.chat.targets[1]: needs 'model', a text",
        "7:3: models.empty: needs 'targets', a list of mappings, 1 or more",
        "9:27: policies.p.timeouts.total_s: expected a number above 0, got -1",
        "9:56: policies.p.budgets[0].per: expected one of 'day', 'hour', 'month', 'total', 'week', got 'mont'; "
        "did you mean 'month'?",
        "9:71: policies.p.queue: expected a mapping, got 3",
        "10:10: logging: expected a mapping, got a list",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "models: {m: {targets: [{engine: gpu, model: x}]}}\nengines: {gpu-a: {kind: vllm}}",
            "1:33: models.m.targets[0].engine: there is no engine 'gpu'; did you mean 'gpu-a'?",
        ),
        (
            "models: {m: {targets: [{engine: local, model: x}], policy: fast}}",
            "1:60: models.m.policy: there is no policy 'fast'; known: default",
        ),
        (
            "models: {m: {targets: [{engine: local, model: x, weight: 0}]}}",
            "1:23: models.m.targets: every target has weight 0, so nothing could answer; give one of them a weight",
        ),
        (
            "models: {m: {targets: []}}",
            "1:23: models.m.targets: expected a list of mappings, 1 or more, got an empty list",
        ),
        (
            "engines: {e: {kind: openai, url: 'ftp://x'}}",
            "1:34: engines.e.url: scheme 'ftp' is none of http, https, unix; "
            "expected a URL such as http://127.0.0.1:8000",
        ),
        (
            "engines: {e: {kind: openai, url: 'localhost:8000'}}",
            "1:34: engines.e.url: is no URL; expected a URL such as http://127.0.0.1:8000",
        ),
        (
            "engines: {e: {kind: openai, url: 'http://:8000'}}",
            "1:34: engines.e.url: names no host; expected a URL such as http://127.0.0.1:8000",
        ),
        (
            "engines: {e: {kind: openai, url: 'http://h:99999'}}",
            "1:34: engines.e.url: is no URL (Port out of range 0-65535); expected a URL such as http://127.0.0.1:8000",
        ),
        (
            "shared: {mode: leased}",
            "1:16: shared.mode: there is nothing to take leases of; give `shared.url`, or leave it out",
        ),
        (
            "engines: {'a b': {kind: openai}}",
            "1:11: engines.\"a b\": a name begins with a letter or digit, then letters, digits, '.', '_' and '-'",
        ),
        (
            "policies: {p: {hedge: {percent: 5, least_s: 3, most_s: 2}}}",
            "1:45: policies.p.hedge.least_s: is more than `most_s`, 2",
        ),
        (
            "policies: {p: {prompt: support}}",
            "1:24: policies.p.prompt: 'support' is no version of a prompt; expected NAME@VERSION such as support@3",
        ),
        (
            "policies: {p: {budgets: [{usd: 1, per: day}, {usd: 1, per: day, zone: Europe/Berlyn}]}}",
            "1:71: policies.p.budgets[1].zone: time zone 'Europe/Berlyn' is not known here; "
            "expected a name such as UTC or Europe/Berlin",
        ),
        (
            "policies: {p: {routing: {rules: [{when: {tools: true}}]}}}",
            "1:34: policies.p.routing.rules[0]: says nothing; give it engines, a tier or a goal",
        ),
        (
            "policies: {p: {routing: {rules: [{engines: [locl]}]}}}",
            "1:45: policies.p.routing.rules[0].engines[0]: there is no engine 'locl'; did you mean 'local'?",
        ),
        (
            "policies: {p: {routing: {rules: [{engines: [local], tier: 1}]}}}",
            "1:34: policies.p.routing.rules[0]: engines or a tier, not both",
        ),
        (
            "policies: {p: {routing: {rules: [{when: {prompt_tokens_over: 9, prompt_tokens_under: 10}, tier: 1}]}}}",
            "1:35: policies.p.routing.rules[0].when: no prompt has over 9 and under 10 tokens",
        ),
        (
            "policies: {p: {routing: {rules: [{tier: 1}, {when: {tools: true}, tier: 2}]}}}",
            "1:34: policies.p.routing.rules[0].when: holds for every request, so the rules after it never do",
        ),
        (
            "policies: {p: {bodies: {redact: ['a', '(']}}}",
            "1:39: policies.p.bodies.redact[1]: '(' is no regular expression: "
            "missing ), unterminated subpattern at position 0",
        ),
        (
            "engines: {gpu: {kind: vllm, url: 'http://a', discover: {dns: 'gpu:1'}}}",
            "1:46: engines.gpu.discover: an engine has a url, or it discovers its instances; leave one of the two out",
        ),
        (
            "engines: {gpu: {kind: llamacpp, discover: {dns: 'gpu:1'}}}",
            "1:33: engines.gpu.discover: the embedded engine is one, and has no instances to discover",
        ),
        (
            "engines: {gpu: {kind: vllm, discover: {every_s: 1}}}",
            "1:29: engines.gpu.discover: give one of list, dns and file",
        ),
        (
            "engines: {gpu: {kind: vllm, discover: {dns: 'gpu:1', file: a}}}",
            "1:29: engines.gpu.discover: give one of list, dns and file, not dns and file",
        ),
        (
            "engines: {gpu: {kind: vllm, discover: {list: ['http://a', 'b']}}}",
            "1:59: engines.gpu.discover.list[1]: is no URL; expected a URL such as http://127.0.0.1:8000",
        ),
        (
            "engines: {gpu: {kind: vllm, discover: {dns: gpu}}}",
            "1:45: engines.gpu.discover.dns: 'gpu' must look like host:port",
        ),
        (
            "store: {url: 'mysql://x'}",
            "1:14: store.url: scheme 'mysql' is none of sqlite, postgresql, postgres; "
            "expected a URL such as sqlite:///state/drivetrain.db",
        ),
    ],
)
def test_what_fits_the_schema_must_also_make_sense(files: Files, text: str, problem: str) -> None:
    assert [problem] == files.problems(text)


def test_the_embedded_engine_needs_no_entry_to_be_a_target(files: Files) -> None:
    loaded = files.resolve("models: {m: {targets: [{engine: local, model: x}]}}").config
    assert loaded.models["m"].targets[0].engine == "local"


def test_kinds_are_checked_against_what_is_installed(files: Files) -> None:
    assert files.problems("engines: {e: {kind: olama}}", kinds=("llamacpp", "ollama")) == [
        "1:21: engines.e.kind: no installed package offers engines of kind 'olama'; did you mean 'ollama'?"
    ]


def test_an_engine_keeps_the_options_of_its_kind(files: Files) -> None:
    resolved = files.resolve("engines: {e: {kind: x, num_ctx: 5, options: {deep: {a: [1]}}, wieght: 2}}")

    assert resolved.config.engines["e"].options == {"num_ctx": 5, "deep": {"a": [1]}, "wieght": 2}
    assert resolved.origins["engines.e.options.num_ctx"].endswith(":1:33")
    assert [warning.split("engines.e.wieght: ")[1] for warning in resolved.warnings] == [
        "is an option of the engine's kind; did you mean 'weight'?"
    ]


def test_an_option_is_said_once(files: Files) -> None:
    assert files.problems("engines: {e: {kind: x, a: 1, options: {a: 2}}}") == [
        "1:24: engines.e.a: is written twice: here and in 'options'"
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read: No such file or directory"), (b"a: \xff", "is not UTF-8 text: byte 3")],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(config.ConfigError) as caught:
        config.load(path, NOTHING)
    assert f"{path}: {problem}" == str(caught.value)


# --- showing and finding ----------------------------------------------------------------------------------------------


def test_what_is_shown_reads_back_as_it_was(files: Files) -> None:
    loaded = files.resolve(EXAMPLE, {"API_KEY": ""}).config
    assert loaded == files.resolve(config.to_yaml(config.dump(loaded))).config


@pytest.mark.parametrize(
    ("text", "valid"), [(EXAMPLE, True), ("engines: {e: {kind: x, own: 1}}", True), ("sever: {}", False)]
)
def test_the_schema_agrees_with_the_loader(files: Files, text: str, valid: bool) -> None:
    from drivetrain.config.document import parse

    assert valid == jsonschema_rs.validator_for(config.json_schema()).is_valid(parse(text, "f").data)


def test_the_home_is_the_environments_or_the_users(tmp_path: Path) -> None:
    assert tmp_path == config.home({"DRIVETRAIN_HOME": str(tmp_path)})
    assert Path("~/.drivetrain").expanduser() == config.home(NOTHING)
    assert config.find(tmp_path) is None
    (tmp_path / config.FILE).touch()
    assert tmp_path / config.FILE == config.find(tmp_path)
