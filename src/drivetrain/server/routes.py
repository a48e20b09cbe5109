"""The table of routes."""

from drivetrain.dialects import Surface, ollama, openai
from drivetrain.server.exchange import Exchange
from drivetrain.server.inference import Inference
from drivetrain.server.models import Models
from drivetrain.server.ollama import Ollama
from drivetrain.server.operations import Operations
from drivetrain.server.routing import Handler, Routes

# Where tokens are made. A worker of several looks at these before it relays them, see `relay`.
INFERENCE = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
    }
)


def routes(inference: Inference, models: Models, native: Ollama, operations: Operations) -> Routes:
    table = Routes()
    table.renderers["/api/"] = ollama.encode_error
    table.json_types["/api/"] = b"application/json; charset=utf-8"
    _openai(table, inference, models)
    _ollama(table, native)
    table.add("GET HEAD", "/healthz", operations.healthz)
    table.add("GET HEAD", "/readyz", operations.readyz)
    table.add("GET", "/metrics", operations.metrics)
    table.add("GET", "/v1/engines", operations.engines)
    table.add("GET", "/v1/events", operations.events)
    return table


def _openai(table: Routes, inference: Inference, models: Models) -> None:
    async def embeddings(exchange: Exchange) -> None:
        request = openai.decode_embed_request(await inference.body(exchange))
        answer, _ = await inference.embeddings(exchange, openai.EMBEDDINGS, request)
        await exchange.respond(200, openai.encode_embeddings(request, answer))

    table.add("POST", "/v1/chat/completions", _surface(inference, openai.CHAT))
    table.add("POST", "/v1/completions", _surface(inference, openai.COMPLETIONS))
    table.add("POST", "/v1/embeddings", embeddings)
    table.add("GET", "/v1/models", models.list)
    table.add("POST", "/v1/models", models.create)
    table.under("GET", "/v1/models/", models.get)
    table.under("PATCH", "/v1/models/", models.update)
    table.under("DELETE", "/v1/models/", models.delete)


def _surface(inference: Inference, surface: Surface) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await inference.generate(exchange, surface)

    return handle


def _ollama(table: Routes, native: Ollama) -> None:
    table.add("GET HEAD", "/", native.root)
    table.add("GET HEAD", "/api/version", native.version)
    table.add("GET", "/api/status", native.status)
    table.add("GET HEAD", "/api/tags", native.tags)
    table.add("GET", "/api/ps", native.ps)
    table.add("POST", "/api/show", native.show)
    table.add("POST", "/api/chat", native.chat)
    table.add("POST", "/api/generate", native.generate)
    table.add("POST", "/api/embed", native.embed)
    table.add("POST", "/api/embeddings", native.embeddings)
    table.add("POST", "/api/pull", native.pull)
    table.add("POST", "/api/push", native.push)
    table.add("POST", "/api/create", native.create)
    table.add("POST", "/api/copy", native.copy)
    table.add("DELETE", "/api/delete", native.delete)
    table.under("HEAD", "/api/blobs/", native.head_blob)
    table.under("POST", "/api/blobs/", native.put_blob)
    table.add("POST", "/api/me", native.account)
    table.add("POST", "/api/signout", native.account)
