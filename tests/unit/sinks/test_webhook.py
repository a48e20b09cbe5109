"""Webhooks: signed, told apart, tried again, and never fooled by an answer."""

import hmac

import msgspec
import pytest

from drivetrain.governance import Attempt
from drivetrain.sinks.batches import Batch
from drivetrain.sinks.target import Refused, Taken
from drivetrain.sinks.webhook import Webhook
from drivetrain.web import Unreachable
from tests.fakes.exports import attempt
from tests.fakes.receiver import Receiver, receiving

BATCH = Batch(first=3, last=5, rows=tuple((seq, attempt(seq)) for seq in (3, 5)), place="")


async def send(receiver: Receiver, batch: Batch = BATCH, secret: str | None = "s3cret") -> Taken | Refused:
    hook = Webhook("hook", receiver.url + "/usage?from=drivetrain", {"authorization": "Bearer t"}, secret)
    try:
        answer = await hook.send(batch)
        assert isinstance(answer, Taken | Refused)
        return answer
    finally:
        await hook.aclose()


async def test_a_batch_is_json_lines_that_their_receiver_can_verify() -> None:
    with receiving() as receiver:
        assert await send(receiver) == Taken()
    (posted,) = receiver.posted
    assert posted.path == "/usage?from=drivetrain"
    assert posted.headers["content-type"] == "application/x-ndjson"
    assert posted.headers["authorization"] == "Bearer t"
    assert posted.headers["x-drivetrain-signature"] == f"sha256={hmac.digest(b's3cret', posted.body, 'sha256').hex()}"
    lines = [msgspec.json.decode(line) for line in posted.body.splitlines()]
    assert [line.pop("seq") for line in lines] == [3, 5]
    assert [msgspec.convert(line, Attempt) for line in lines] == [attempt(3), attempt(5)]


async def test_without_a_secret_nothing_is_signed() -> None:
    with receiving() as receiver:
        await send(receiver, secret=None)
    assert "x-drivetrain-signature" not in receiver.posted[0].headers


async def test_a_batch_that_is_sent_again_says_so() -> None:
    with receiving() as receiver:
        await send(receiver)
        await send(receiver)
        await send(receiver, msgspec.structs.replace(BATCH, rows=BATCH.rows[:1]))
    deliveries = [posted.headers["x-drivetrain-delivery"] for posted in receiver.posted]
    assert deliveries == ["hook-3-5-2", "hook-3-5-2", "hook-3-5-1"]


@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 404, 408, 410, 429, 500, 502, 503])
async def test_what_may_be_mended_is_tried_again(status: int) -> None:
    with receiving() as receiver:
        receiver.answers = [(status, b"not now")]
        receiver.headers = {"location": receiver.url + "/elsewhere"}
        with pytest.raises(Unreachable, match=rf"127\.0\.0\.1 answered {status}: not now"):
            await send(receiver)
        assert await send(receiver) == Taken()
    assert [posted.path for posted in receiver.posted] == ["/usage?from=drivetrain"] * 2  # no redirect is followed


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_is_wrong_with_the_rows_is_refused(status: int) -> None:
    with receiving() as receiver:
        receiver.answers = [(status, b"no such model")]
        assert await send(receiver) == Refused(why=f"127.0.0.1 answered {status}: no such model")


async def test_nobody_listens() -> None:
    with receiving() as receiver:
        pass
    with pytest.raises(Unreachable, match=r"POST to 127\.0\.0\.1"):
        await send(receiver)
