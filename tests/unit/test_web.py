"""Outgoing HTTP tells its failures as ours."""

import asyncio

import pytest

from drivetrain import web
from drivetrain.errors import BadRequest
from tests.fakes.registries import Answer, serving

pytestmark = pytest.mark.anyio


async def test_a_server_that_is_not_there() -> None:
    async with web.open_client() as client:
        with pytest.raises(web.Unreachable, match=r"^the hub: ") as caught, web.translated("the hub"):
            await client.get("http://127.0.0.1:9/")
    assert (caught.value.status, caught.value.retryable) == (424, True)


async def test_a_host_that_has_no_address_or_takes_no_connection_is_named() -> None:
    async with web.open_client(proxies=False) as client:
        with pytest.raises(web.Unreachable) as caught, web.translated("the hub"):
            await client.get("http://nowhere.invalid/x")
        assert caught.value.message == (
            "the hub: the host 'nowhere.invalid' cannot be found; check its name, and that this machine can look names "
            "up"
        )
        with pytest.raises(web.Unreachable) as caught, web.translated("the hub"):
            await client.get("http://127.0.0.1:9/")
        assert caught.value.message.startswith("the hub: the host '127.0.0.1' cannot be reached: ")


async def test_a_server_that_says_nothing() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, web.open_client(idle_s=0.1) as client:
        with pytest.raises(web.Unreachable, match="no answer in time"), web.translated("the hub"):
            await client.get(f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("url", ["ftp://example.com/x", "http://[::1/x"])
async def test_an_address_that_is_none_is_the_callers_fault(url: str) -> None:
    async with web.open_client() as client:
        with pytest.raises(BadRequest), web.translated("the hub"):
            await client.get(url)


async def test_an_answer_that_is_too_long_is_cut_off() -> None:
    async with serving(lambda asked: Answer(200, body=b"x" * 1000)) as site, web.open_client() as client:
        async with client.stream("GET", site.url) as response:
            with pytest.raises(web.Unreachable, match="more than 999 bytes"):
                await web.read_limited(response, 999)
        async with client.stream("GET", site.url) as response:
            assert len(await web.read_limited(response, 1000)) == 1000


async def test_endless_redirects_end() -> None:
    async with serving(lambda asked: Answer(302, {"location": "/again"})) as site, web.open_client() as client:
        with pytest.raises(web.Unreachable), web.translated("the hub"):
            await client.get(site.url)
    assert len(site.asked) == 6
