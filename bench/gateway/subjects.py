"""The gateways we measure: how each is installed and started. A table; `${…}` is filled in by `gateway.Place`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

LITELLM_CONFIG = """\
model_list:
  - model_name: bench
    litellm_params: {model: openai/mock, api_base: "${upstream}/v1", api_key: none}
litellm_settings: {telemetry: false}
"""
QUIET_UVICORN = """\
{"version": 1, "disable_existing_loggers": false,
 "loggers": {"uvicorn": {"level": "ERROR"}, "uvicorn.access": {"level": "ERROR"}, "uvicorn.error": {"level": "ERROR"}}}
"""
PORTKEY_PACKAGE = """\
{"private": true, "dependencies": {"@portkey-ai/gateway": "1.15.2"}, "overrides": {"@hono/node-server": "1.3.3"}}
"""
DRIVETRAIN_CONFIG = """\
engines:
  mock: {kind: openai, url: "${upstream}/v1"}
models:
  bench: {targets: [{engine: mock, model: mock}]}
logging: {level: error}
"""
# Everything that a team turns on: a key, its limits and budget, a policy's, a price, a durable row for each request.
GOVERNED_CONFIG = """\
server: {auth: "on"}
engines:
  mock: {kind: openai, url: "${upstream}/v1"}
models:
  bench: {targets: [{engine: mock, model: mock}], policy: governed}
policies:
  governed:
    limits: {requests_per_minute: 100000000, tokens_per_minute: 1000000000000, concurrency: 10000}
    budgets: [{usd: 1000000, per: month}]
logging: {level: error}
"""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One row. An empty `start` is the mock itself: the direct path all others are compared with."""

    name: str
    version: str = ""
    ready: str = "/health"
    model: str = "mock"
    start: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # written to ${home} before each start
    prepare: tuple[tuple[str, ...], ...] = ()  # run before each start; what the first one prints is ${key}
    headers: tuple[str, ...] = ()
    install: tuple[tuple[str, ...], ...] = ()  # run in ${peer}, once
    install_files: Mapping[str, str] = field(default_factory=dict)  # written to ${peer} before that
    start_timeout_s: float = 60.0


def venv(*packages: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """A virtual environment in ${peer}, then one pip call for each group of packages."""
    pip = ("${peer}/bin/python", "-m", "pip", "install", "--quiet")
    return (("${python}", "-m", "venv", "${peer}"), *((*pip, *group) for group in packages))


DIRECT = Subject(name="direct")

DRIVETRAIN = Subject(
    name="drivetrain",
    ready="/healthz",
    model="bench",
    files={"drivetrain.yaml": DRIVETRAIN_CONFIG},
    start=("${drivetrain}", "serve", "--home", "${home}", "--port", "${port}"),
)

# Beside gateways whose threads use every core as they come: one worker of ours is one core's.
TWO_WORKERS = replace(DRIVETRAIN, name="drivetrain two workers", start=(*DRIVETRAIN.start, "--workers", "2"))

GOVERNED = Subject(
    name="drivetrain governed",
    ready="/healthz",
    model="bench",
    files={"drivetrain.yaml": GOVERNED_CONFIG},
    prepare=(
        ("${drivetrain}", "keys", "create", "--name", "bench", "--home", "${home}"),
        ("${drivetrain}", "prices", "set", "*", "--input", "0.15", "--output", "0.6", "--home", "${home}"),
        (
            *("${drivetrain}", "limits", "set", "--key", "bench", "--requests-per-minute", "100000000"),
            *("--tokens-per-minute", "1000000000000", "--concurrency", "10000", "--home", "${home}"),
        ),
        (
            *("${drivetrain}", "budgets", "set", "--key", "bench", "--usd", "1000000", "--per", "month"),
            *("--home", "${home}"),
        ),
    ),
    start=DRIVETRAIN.start,
    headers=("Authorization: Bearer ${key}",),
)

# 1.110's own [proxy] extra does not resolve: take the extra of 1.108.7, then 1.110.2 without its dependencies.
# It refuses to start without a master key unless told otherwise, and asks the network for prices at every start.
LITELLM = Subject(
    name="litellm",
    version="1.110.2",
    ready="/health/liveliness",
    model="bench",
    install=venv(("litellm[proxy]==1.108.7",), ("--no-deps", "litellm==1.110.2", "semver==3.1.2")),
    files={"config.yaml": LITELLM_CONFIG, "log.json": QUIET_UVICORN},
    start=(
        *("${peer}/bin/litellm", "--config", "${home}/config.yaml", "--host", "127.0.0.1", "--port", "${port}"),
        *("--num_workers", "1", "--log_config", "${home}/log.json"),
    ),
    env={
        "DISABLE_ADMIN_UI": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_TELEMETRY": "False",
        "NO_DOCS": "True",
    },
    start_timeout_s=180.0,
)

# As its lock-free install resolves, it answers 500 to every stream: @hono/node-server must be 1.3.3.
PORTKEY = Subject(
    name="portkey",
    version="1.15.2",
    ready="/",
    install_files={"package.json": PORTKEY_PACKAGE},
    install=(("npm", "install", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"),),
    start=(
        *("node", "${peer}/node_modules/@portkey-ai/gateway/build/start-server.js"),
        *("--port=${port}", "--headless"),
    ),
    env={"NODE_ENV": "production"},
    headers=("x-portkey-provider: openai", "x-portkey-custom-host: ${upstream}/v1", "Authorization: Bearer none"),
)

SMG = Subject(
    name="smg",
    version="1.13.0",
    ready="/readiness",
    install=venv(("smg==1.13.0",)),
    start=(
        *("${peer}/bin/smg", "launch", "--host", "127.0.0.1", "--port", "${port}", "--worker-urls", "${upstream}"),
        *("--policy", "round_robin", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "${spare}"),
    ),
)

VLLM_ROUTER = Subject(
    name="vllm-router",
    version="0.1.17",
    ready="/readiness",
    install=venv(("vllm-router==0.1.17",)),
    start=(
        *("${peer}/bin/vllm-router", "--host", "127.0.0.1", "--port", "${port}", "--worker-urls", "${upstream}"),
        *("--policy", "round_robin", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "${spare}"),
    ),
)

SUBJECTS: dict[str, Subject] = {
    subject.name: subject for subject in (DIRECT, DRIVETRAIN, TWO_WORKERS, GOVERNED, SMG, VLLM_ROUTER, PORTKEY, LITELLM)
}
