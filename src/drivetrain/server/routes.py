"""The table of routes, and the scope that each of them takes."""

from drivetrain.dialects import Surface, ollama, openai
from drivetrain.server.admin import Admin
from drivetrain.server.exchange import Exchange
from drivetrain.server.inference import Inference
from drivetrain.server.media import Media, check_embedding
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


def routes(
    inference: Inference,
    models: Models,
    native: Ollama,
    operations: Operations,
    media: Media,
    admin: Admin | None = None,
) -> Routes:
    table = Routes()
    table.renderers["/api/"] = ollama.encode_error
    table.json_types["/api/"] = b"application/json; charset=utf-8"
    _openai(table, inference, models, media)
    _ollama(table, native)
    table.add("GET HEAD", "/healthz", operations.healthz, scope=None)
    table.add("GET HEAD", "/readyz", operations.readyz, scope=None)
    table.add("GET", "/metrics", operations.metrics, scope="metrics")
    table.add("GET", "/v1/engines", operations.engines, scope="metrics")
    table.add("GET", "/v1/explain", operations.explain, scope="metrics")
    table.add("GET", "/v1/events", operations.events, scope="metrics")
    if admin is not None:
        admin.join(table)
    return table


def _openai(table: Routes, inference: Inference, models: Models, media: Media) -> None:
    async def embeddings(exchange: Exchange) -> None:
        request = openai.decode_embed_request(await inference.body(exchange))
        check_embedding(request)
        answer, _ = await inference.embeddings(exchange, openai.EMBEDDINGS, request)
        await exchange.respond(200, openai.encode_embeddings(request, answer))

    table.renderers["/v1/completions"] = openai.COMPLETIONS.encode_error
    table.renderers["/v1/embeddings"] = openai.encode_embed_error
    table.add("POST", "/v1/chat/completions", _surface(inference, openai.CHAT, media), scope="inference")
    table.add("POST", "/v1/completions", _surface(inference, openai.COMPLETIONS, media), scope="inference")
    table.add("POST", "/v1/embeddings", embeddings, scope="inference")
    table.add("GET", "/v1/models", models.list, scope="inference")
    table.add("POST", "/v1/models", models.create, scope="models")
    table.under("GET", "/v1/models/", models.get, scope="inference")
    table.under("POST", "/v1/models/", models.command, scope="models")
    table.under("PATCH", "/v1/models/", models.update, scope="models")
    table.under("DELETE", "/v1/models/", models.delete, scope="models")


def _surface(inference: Inference, surface: Surface, media: Media) -> Handler:
    async def handle(exchange: Exchange) -> None:
        request = surface.decode_request(await inference.body(exchange))
        await inference.answer(exchange, surface, await media.inlined(request))

    return handle


def _ollama(table: Routes, native: Ollama) -> None:
    table.add("GET HEAD", "/", native.root, scope=None)
    table.add("GET HEAD", "/api/version", native.version, scope=None)
    table.add("GET", "/api/status", native.status, scope="inference")
    table.add("GET HEAD", "/api/tags", native.tags, scope="inference")
    table.add("GET", "/api/ps", native.ps, scope="metrics")
    table.add("POST", "/api/show", native.show, scope="inference")
    table.add("POST", "/api/chat", native.chat, scope="inference")
    table.add("POST", "/api/generate", native.generate, scope="inference")
    table.add("POST", "/api/embed", native.embed, scope="inference")
    table.add("POST", "/api/embeddings", native.embeddings, scope="inference")
    table.add("POST", "/api/pull", native.pull, scope="models")
    table.add("POST", "/api/push", native.push, scope="models")
    table.add("POST", "/api/create", native.create, scope="models")
    table.add("POST", "/api/copy", native.copy, scope="models")
    table.add("DELETE", "/api/delete", native.delete, scope="models")
    table.under("HEAD", "/api/blobs/", native.head_blob, scope="models")
    table.under("POST", "/api/blobs/", native.put_blob, scope="models")
    table.add("POST", "/api/me", native.account, scope="inference")
    table.add("POST", "/api/signout", native.account, scope="inference")
    table.under("DELETE", "/api/user/keys/", native.account, scope="inference")
    table.add("POST", "/api/experimental/web_search", native.web, scope="inference")
    table.add("POST", "/api/experimental/web_fetch", native.web, scope="inference")
