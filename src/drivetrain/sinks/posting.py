"""One HTTP POST of a batch, and what its answer means: taken, never to be taken, or to be tried again."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from drivetrain import web
from drivetrain.sinks.target import Refused, Taken

# 4xx that are about the address, the credentials or the moment, not about what was sent.
AGAIN = {401, 403, 404, 405, 407, 408, 409, 410, 421, 423, 425, 429}
ANSWER_BYTES = 1 << 20
TOLD_CHARACTERS = 300


class Poster:
    """Posts to one URL, over connections that are kept."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._client = web.open_client(headers=headers, connections=2)

    async def post(self, body: bytes, headers: Mapping[str, str]) -> tuple[Taken | Refused, bytes]:
        """The verdict, and the body of the answer. Raises `Unreachable` if this should be tried again."""
        with web.translated(f"POST to {self._host}"):
            request = self._client.build_request("POST", self._url, content=body, headers=headers)
            response = await self._client.send(request, stream=True, follow_redirects=False)
            try:
                answer = await web.read_limited(response, ANSWER_BYTES)
            finally:
                await response.aclose()
        return self._verdict(response.status_code, answer), answer

    def _verdict(self, status: int, answer: bytes) -> Taken | Refused:
        if 200 <= status < 300:
            return Taken()
        told = f"{self._host} answered {status}: {answer[:TOLD_CHARACTERS].decode(errors='replace').strip()}"
        if 400 <= status < 500 and status not in AGAIN:
            return Refused(why=told)
        raise web.Unreachable(told)

    async def aclose(self) -> None:
        await self._client.aclose()
