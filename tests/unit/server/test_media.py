"""Images named by address: refused unless allowed, and then fetched from where anybody could fetch them, no further."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from drivetrain import web
from drivetrain.config.schema import Server
from drivetrain.dialects import openai
from drivetrain.errors import BadRequest
from drivetrain.server.media import MAX_IMAGES, Media, check_embedding, is_public, resolved
from drivetrain.types import Image, Request

pytestmark = pytest.mark.anyio
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
INLINE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
PUBLIC = "93.184.216.34"


def asked(*urls: str, extra: Mapping[str, object] = {}) -> Request:
    parts = [{"type": "text", "text": "What is this?"}]
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}, "x": 1} for url in urls]
    body = {"model": "m", "messages": [{"role": "user", "content": [*parts, *images], **extra}]}
    return openai.CHAT.decode_request(msgspec.json.encode(body))


class Internet:
    """Names and what is behind each address. Remembers which addresses were connected to."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = {name.replace("_", "."): [address] for name, address in hosts.items()}
        self.answers: dict[str, web.Fetched] = {}
        self.connected: list[tuple[str, str]] = []
        self.resolving: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolving.append(host)
        return self.hosts.get(host) or await resolved(host, port)

    async def fetch(self, url: str, address: str, limit: int) -> web.Fetched:
        self.connected.append((url, address))
        return self.answers.get(url, web.Fetched(status=200, location="", body=PNG))

    def redirect(self, url: str, location: str) -> None:
        self.answers[url] = web.Fetched(status=302, location=location, body=b"")

    def media(self, *hosts: str) -> Media:
        return Media(Server(media_hosts=hosts), self.resolve, self.fetch)


def image(request: Request) -> str:
    return next(part.url for message in request.messages for part in message.content if isinstance(part, Image))


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example.com/cat.png",
        "https://images.example.com/cat.png",
        "HTTP://images.example.com/cat.png",
        " http://images.example.com/cat.png",
        "//images.example.com/cat.png",
        "file:///etc/passwd",
        "ftp://images.example.com/cat.png",
        "unix:/run/docker.sock",
        "gopher://127.0.0.1:6379/_INFO",
        "DATA:image/png;base64,AAAA",
        "cat.png",
        "",
        "http://[::1",
        "http://",
    ],
)
async def test_unless_allowed_no_address_is_fetched_nor_passed_on(url: str) -> None:
    internet = Internet()
    with pytest.raises(BadRequest, match="send the image itself, as data:") as refused:
        await internet.media().inlined(asked(url))
    assert refused.value.param == "messages"
    assert (internet.connected, internet.resolving) == ([], [])


async def test_what_is_in_the_request_itself_passes_untouched() -> None:
    request = asked(INLINE)
    assert await Internet().media().inlined(request) is request
    assert await Internet().media().inlined(asked()) == asked()


@pytest.mark.parametrize(
    ("pattern", "host", "fetched"),
    [
        ("images.example.com", "images.example.com", True),
        ("images.example.com", "IMAGES.example.com.", True),
        ("*.example.com", "a.b.example.com", True),
        ("*", "anything.example.org", True),
        ("*.example.com", "example.com", False),
        ("example.com", "images.example.com", False),
        ("images.example.com", "images.example.com.evil.org", False),
        ("images.example.com", "imagesXexample.com", False),
        ("*.example.com", "evil.org", False),
    ],
)
async def test_only_hosts_on_the_list_are_asked(pattern: str, host: str, fetched: bool) -> None:
    internet = Internet()
    internet.hosts = {host.lower(): [PUBLIC]}
    work = internet.media(pattern).inlined(asked(f"https://{host}/cat.png"))
    if fetched:
        assert image(await work) == INLINE
    else:
        with pytest.raises(BadRequest, match=r"not in server\.media_hosts"):
            await work


async def test_who_hides_another_host_behind_a_name_is_refused() -> None:
    internet = Internet()
    for url in (
        "https://images.example.com@evil.org/",
        "https://user:pw@images.example.com/",
        r"https://evil.org\@images.example.com/",
    ):
        with pytest.raises(BadRequest):
            await internet.media("images.example.com").inlined(asked(url))
    assert internet.connected == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:7f00:1::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "nonsense",
    ],
)
async def test_an_allowed_name_that_leads_inside_is_refused(address: str) -> None:
    assert not is_public(address)
    internet = Internet(images_example_com=address)
    with pytest.raises(BadRequest, match="is not on the public internet"):
        await internet.media("*").inlined(asked("http://images.example.com/cat.png"))
    assert internet.connected == []


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::8.8.8.8", "2002:808:808::"])
def test_what_anybody_could_reach_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "0", "[::ffff:7f00:1]"],
)
async def test_this_machine_is_known_however_it_is_written(host: str) -> None:
    internet = Internet()
    with pytest.raises(BadRequest):
        await internet.media("*").inlined(asked(f"http://{host}/cat.png"))
    assert internet.connected == []


async def test_one_address_inside_among_public_ones_is_enough_to_refuse() -> None:
    internet = Internet()
    internet.hosts["images.example.com"] = [PUBLIC, "10.0.0.1"]
    with pytest.raises(BadRequest, match="is not on the public internet"):
        await internet.media("*").inlined(asked("http://images.example.com/"))


# --- fetched ----------------------------------------------------------------------------------------------------------


async def test_the_engine_gets_the_image_itself_and_the_rest_as_it_was_written() -> None:
    internet = Internet(images_example_com=PUBLIC)
    inlined = await internet.media("*").inlined(asked("https://images.example.com/cat.png", extra={"name": "ada"}))
    sent = msgspec.json.decode(openai.CHAT.encode_request(inlined))
    assert sent["messages"] == [
        {
            "role": "user",
            "name": "ada",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": INLINE, "detail": "low"}, "x": 1},
            ],
        }
    ]
    assert image(inlined) == INLINE
    assert internet.connected == [("https://images.example.com/cat.png", PUBLIC)]


async def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_checked() -> None:
    """A name server that tells something else the second time (DNS rebinding) is not asked a second time."""
    internet = Internet()
    told = iter([[PUBLIC], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(told)

    media = Media(Server(media_hosts=("*",)), rebinding, internet.fetch)
    await media.inlined(asked("http://images.example.com/cat.png"))
    assert internet.connected == [("http://images.example.com/cat.png", PUBLIC)]
    assert list(told) == [["127.0.0.1"]]


async def test_a_redirect_is_a_new_address_with_the_same_rules() -> None:
    internet = Internet(a_example_com=PUBLIC, b_example_com=PUBLIC, inside_example_com="10.0.0.1")
    internet.redirect("http://a.example.com/1", "http://b.example.com/2")
    internet.redirect("http://b.example.com/2", "/3")
    assert image(await internet.media("*").inlined(asked("http://a.example.com/1"))) == INLINE
    assert internet.connected[-1] == ("http://b.example.com/3", PUBLIC)
    for place in (
        "http://inside.example.com/",
        "http://127.0.0.1/",
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
    ):
        internet.redirect("http://a.example.com/1", place)
        before = len(internet.connected)
        with pytest.raises(BadRequest):
            await internet.media("*").inlined(asked("http://a.example.com/1"))
        assert len(internet.connected) == before + 1
    internet.redirect("http://a.example.com/1", "http://evil.org/")
    with pytest.raises(BadRequest, match=r"not in server\.media_hosts"):
        await internet.media("*.example.com").inlined(asked("http://a.example.com/1"))


async def test_a_circle_of_redirects_comes_to_an_end() -> None:
    internet = Internet(a_example_com=PUBLIC)
    internet.redirect("http://a.example.com/", "http://a.example.com/")
    with pytest.raises(BadRequest, match="too often"):
        await internet.media("*").inlined(asked("http://a.example.com/"))
    assert len(internet.connected) == 4


@pytest.mark.parametrize(
    "answer",
    [
        web.Fetched(status=404, location="", body=b""),
        web.Fetched(status=200, location="", body=b"<html>secret of the intranet</html>"),
        web.Fetched(status=200, location="", body=b"\x1f\x8b\x08compressed"),
        web.Fetched(status=200, location="", body=b""),
    ],
)
async def test_what_is_no_image_is_not_passed_on_nor_told(answer: web.Fetched) -> None:
    internet = Internet(a_example_com=PUBLIC)
    internet.answers["http://a.example.com/?token=hidden"] = answer
    with pytest.raises(BadRequest) as refused:
        await internet.media("*").inlined(asked("http://a.example.com/?token=hidden"))
    assert "secret" not in refused.value.message
    assert "hidden" not in refused.value.message


async def test_the_same_image_is_fetched_once_and_too_many_are_refused() -> None:
    internet = Internet(a_example_com=PUBLIC)
    await internet.media("*").inlined(asked(*["http://a.example.com/1"] * 5, INLINE))
    assert len(internet.connected) == 1
    many = [f"http://a.example.com/{n}" for n in range(MAX_IMAGES + 1)]
    with pytest.raises(BadRequest, match=f"at most {MAX_IMAGES}"):
        await internet.media("*").inlined(asked(*many))


async def test_a_new_configuration_changes_who_is_asked() -> None:
    media = Internet(a_example_com=PUBLIC).media()
    with pytest.raises(BadRequest):
        await media.inlined(asked("http://a.example.com/"))
    media.configure(Server(media_hosts=("a.example.com",)))
    assert image(await media.inlined(asked("http://a.example.com/"))) == INLINE


def test_a_conversation_cannot_be_slipped_past_as_something_to_embed() -> None:
    body = {"model": "m", "input": "x", "messages": [{"role": "user", "content": []}]}
    with pytest.raises(BadRequest, match="'messages' cannot be embedded"):
        check_embedding(openai.decode_embed_request(msgspec.json.encode(body)))


# --- over a real connection -------------------------------------------------------------------------------------------

Answer = Callable[[bytes], Awaitable[bytes]]


@asynccontextmanager
async def host(answer: bytes) -> AsyncGenerator[tuple[int, list[bytes]], None]:
    """A server on this machine that plays a public one: its port, and what it was asked."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], seen


async def test_a_pinned_request_goes_to_the_address_with_the_name_of_the_host() -> None:
    async with host(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc") as (port, seen):
        found = await web.fetch_pinned(f"http://images.example.com:{port}/a?b=c#d", "127.0.0.1", 10)
    assert (found.status, found.body) == (200, b"abc")
    lines = seen[0].lower().split(b"\r\n")
    assert lines[0] == b"get /a?b=c http/1.1"
    assert b"host: images.example.com:%d" % port in lines
    assert b"accept-encoding: identity" in lines
    assert not [line for line in lines if line.startswith((b"authorization", b"cookie", b"referer"))]


async def test_a_redirect_is_told_and_not_followed() -> None:
    async with host(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n") as (
        port,
        seen,
    ):
        found = await web.fetch_pinned(f"http://images.example.com:{port}/", "127.0.0.1", 10)
    assert (found.status, found.location, len(seen)) == (302, "http://127.0.0.1:1/", 1)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, b"", b"nonsense\r\n\r\n"])
async def test_too_much_and_nothing_at_all_are_no_answers(answer: bytes) -> None:
    async with host(answer) as (port, _):
        with pytest.raises(web.Unreachable):
            await web.fetch_pinned(f"http://images.example.com:{port}/", "127.0.0.1", 1000)


async def test_a_compressed_body_is_taken_as_it_comes_and_never_unpacked() -> None:
    import gzip

    bomb = gzip.compress(PNG + bytes(50_000_000), 9)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    async with host(head + bomb) as (port, _):
        found = await web.fetch_pinned(f"http://images.example.com:{port}/", "127.0.0.1", 1_000_000)
    assert found.body == bomb
