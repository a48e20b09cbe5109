"""What an answer is called: JSON, as the dialect of its path writes it, and nothing where there is no body."""

import pytest

from drivetrain.dialects import ollama
from drivetrain.errors import NotFound
from drivetrain.server.routing import Routes
from tests.unit.server.tape import asking

pytestmark = pytest.mark.anyio


async def answered(body: bytes, *, method: str = "GET", json_type: bytes = b"application/json") -> list[bytes]:
    """The header lines of an answer."""
    exchange, tape = asking(method, "/")
    exchange.json_type = json_type
    await exchange.respond(200, body)
    return tape.written.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]


async def test_an_answer_without_a_body_has_no_type() -> None:
    assert await answered(b"") == [b"content-length: 0"]


async def test_a_document_is_json_unless_its_dialect_calls_it_otherwise() -> None:
    assert await answered(b"{}") == [b"content-type: application/json", b"content-length: 2"]
    ours = await answered(b"{}", json_type=b"application/json; charset=utf-8")
    assert ours == [b"content-type: application/json; charset=utf-8", b"content-length: 2"]


async def test_an_answer_to_head_has_the_type_of_what_it_leaves_out() -> None:
    assert await answered(b"{}", method="HEAD") == [b"content-type: application/json", b"content-length: 2"]


def test_each_prefix_has_its_own_name_for_json_and_its_own_errors() -> None:
    routes = Routes()
    routes.renderers["/api/"] = ollama.encode_error
    routes.json_types["/api/"] = b"application/json; charset=utf-8"
    assert routes.json_type("/api/chat") == b"application/json; charset=utf-8"
    assert routes.json_type("/v1/chat/completions") == b"application/json"
    assert routes.render("/api/chat", NotFound("gone")) == b'{"error":"gone"}'
