"""Outgoing HTTP off the request path: registries, hubs, a server of ours that the command line talks to.

The only importer of httpx2. Others use the client that `open_client` makes and wrap what may fail in `translated`.
"""

import socket
from collections.abc import AsyncIterable, Iterator, Mapping
from contextlib import contextmanager

import httpx2

from drivetrain import __version__
from drivetrain.errors import BadRequest, ServerError
from drivetrain.types import Value

Client = httpx2.AsyncClient
Response = httpx2.Response


class Unreachable(ServerError):
    """A registry, a hub or another server that was named gave no answer, or none of use. Trying again later may help.

    424, Failed Dependency (RFC 4918 §11.4): the caller named that server, and this one is well.
    """

    status = 424
    code = "unreachable"
    retryable = True


def open_client(
    base_url: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    connect_s: float = 10.0,
    idle_s: float | None = 30.0,
    connections: int = 16,
    verify: bool = True,
    proxies: bool = True,
    uds: str | None = None,
) -> Client:
    """A client that follows redirects and drops credentials when one leads to another origin.

    `idle_s` bounds each wait for bytes, never the whole answer; None waits for ever. `proxies` tells whether those that
    the environment names are used: never for a server on this machine. `uds`: the path of a Unix socket to connect to
    instead of the URL's host. Close it with `async with`.
    """
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx2.AsyncClient(
        base_url=base_url,
        headers={"user-agent": f"drivetrain/{__version__}", **(headers or {})},
        timeout=httpx2.Timeout(idle_s, connect=connect_s, pool=None),
        limits=limits,
        transport=httpx2.AsyncHTTPTransport(uds=uds, limits=limits) if uds else None,
        follow_redirects=True,
        max_redirects=5,
        verify=verify,
        trust_env=proxies,
    )


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns a failure of the transport into ours: `what` names the server or the errand in the message."""
    try:
        yield
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise BadRequest(f"{what}: {error}") from error
    except httpx2.TimeoutException as error:
        raise Unreachable(f"{what}: no answer in time ({type(error).__name__})") from error
    except httpx2.ConnectError as error:
        raise Unreachable(f"{what}: {_unconnected(error)}") from error
    except httpx2.RequestError as error:
        raise Unreachable(f"{what}: {str(error) or type(error).__name__}") from error
    except httpx2.StreamError as error:
        raise Unreachable(f"{what}: {type(error).__name__}") from error


def _unconnected(error: httpx2.ConnectError) -> str:
    """Which host it was, and what is the matter with it, in words rather than numbers."""
    host = error.request.url.host
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return f"the host {host!r} cannot be found; check its name, and that this machine can look names up"
        cause = cause.__cause__ or cause.__context__
    return f"the host {host!r} cannot be reached: {str(error) or type(error).__name__}"


class Fetched(Value, frozen=True, kw_only=True):
    """An answer to `fetch_pinned`."""

    status: int
    location: str  # where a redirect leads, as it was written
    body: bytes


async def fetch_pinned(url: str, address: str, limit: int) -> Fetched:
    """What a GET of `url` answers when its host is taken to be at the IP address `address`, whatever name servers say.

    Follows no redirect, sends no credentials, uses no proxy, and takes no compressed body. Raises `Unreachable` for no
    answer, and for one of more than `limit` bytes.
    """
    asked = httpx2.URL(url)
    headers = {"host": asked.netloc.decode("ascii"), "accept": "image/*", "accept-encoding": "identity"}
    with translated(f"host {asked.host!r}"):
        async with open_client(headers=headers, idle_s=10.0, proxies=False) as client:
            request = client.build_request(
                "GET", asked.copy_with(host=address, fragment=None), extensions={"sni_hostname": asked.host}
            )
            answer = await client.send(request, stream=True, follow_redirects=False)
            try:
                return Fetched(
                    status=answer.status_code,
                    location=answer.headers.get("location", ""),
                    body=await _read(answer.aiter_raw(), limit, "it") if answer.status_code == 200 else b"",
                )
            finally:
                await answer.aclose()


async def read_limited(response: Response, limit: int) -> bytes:
    """The body of a streamed answer. Raises `Unreachable` if it is longer than `limit` bytes."""
    return await _read(response.aiter_bytes(), limit, response.url.host)


async def _read(pieces: AsyncIterable[bytes], limit: int, who: str) -> bytes:
    body = bytearray()
    async for data in pieces:
        body += data
        if len(body) > limit:
            raise Unreachable(f"{who} sends more than {limit} bytes")
    return bytes(body)
