"""The two surfaces as codecs: `CHAT` and `GENERATE`, and which of them an engine is asked by."""

from collections.abc import Callable

from drivetrain.dialects.ollama import context, replies, requests, upstream
from drivetrain.dialects.ollama.errors import decode_error, encode_error
from drivetrain.dialects.ollama.frames import Decoder
from drivetrain.dialects.ollama.replies import Clock, Reply, Shape
from drivetrain.dialects.ollama.wire import GenerateBody, read
from drivetrain.errors import DrivetrainError
from drivetrain.types import Request


class OllamaSurface:
    """A `drivetrain.dialects.Surface`. `name` is that of the source of requests decoded by it."""

    def __init__(
        self,
        name: str,
        path: str,
        *,
        decode: Callable[[bytes], Request],
        encode: Callable[[Request], bytes],
        shape: Shape,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self._decode = decode
        self._encode = encode
        self._shape = shape
        self._clock = clock

    def decode_request(self, body: bytes) -> Request:
        return self._decode(body)

    def timed(self, clock: Clock) -> "OllamaSurface":
        """The same, with frames that tell when they were made. Without a clock they tell when their answer was."""
        return OllamaSurface(
            self.name, self.path, decode=self._decode, encode=self._encode, shape=self._shape, clock=clock
        )

    def reply(self, request: Request, *, id: str, created_s: float) -> Reply:
        """Ollama's frames carry no id."""
        created_ns = round(created_s * 1e6) * 1000  # by way of microseconds: a double has no room for more digits
        return Reply(request, clock=self._clock or (lambda: created_ns), shape=self._shape)

    def encode_request(self, request: Request) -> bytes:
        return self._encode(request)

    def decoder(self, request: Request) -> Decoder:
        return Decoder(request, self.name)

    def decode_error(self, status: int, body: bytes) -> DrivetrainError:
        return decode_error(status, body)

    def encode_error(self, error: DrivetrainError) -> bytes:
        return encode_error(error)


CHAT = OllamaSurface(
    requests.CHAT, "/api/chat", decode=requests.decode_chat, encode=upstream.encode_chat, shape=replies.CHAT
)
GENERATE = OllamaSurface(
    requests.GENERATE,
    "/api/generate",
    decode=requests.decode_generate,
    encode=upstream.encode_generate,
    shape=replies.GENERATE,
)


def surface_for(request: Request) -> OllamaSurface:
    """By which surface an Ollama engine is asked: the caller's own if it can be, else the one that fits.

    A generate request that continues a transcript of ours goes out as chat: the engine could not read its `context`.
    """
    if request.completion is not None:
        return GENERATE
    if request.source is None or request.source.dialect != requests.GENERATE:
        return CHAT
    said = request.source.fields.get("context")
    return (
        CHAT
        if said is not None and context.is_ours(read(b'{"context":' + bytes(said) + b"}", GenerateBody).context)
        else GENERATE
    )
