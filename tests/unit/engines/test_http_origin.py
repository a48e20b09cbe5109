"""A base URL and its headers are checked once, when an engine is opened."""

import pytest

from drivetrain.engines._http.origin import Origin, common_head, parse_origin, request_head
from drivetrain.errors import BadRequest

HTTP = Origin(url="http://box:8000", host="box", port=8000, authority="box:8000")
HTTPS = Origin(url="https://box/v1", host="box", port=443, secure=True, prefix="/v1", authority="box")
UMLAUT = Origin(url="http://xn--bcher-kva.de", host="bücher.de", port=80, authority="xn--bcher-kva.de")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://box:8000", HTTP),
        ("http://box:8000/", HTTP),
        ("https://box/v1", HTTPS),
        ("https://box/v1/", HTTPS),
        ("http://[::1]:80", Origin(url="http://[::1]:80", host="::1", port=80, authority="[::1]:80")),
        ("http://bücher.de", UMLAUT),
        ("unix:/run/a.sock", Origin(url="unix:/run/a.sock", socket="/run/a.sock")),
        ("unix:///run/a.sock", Origin(url="unix:///run/a.sock", socket="/run/a.sock")),
    ],
)  # fmt: skip
def test_a_url_says_where_to_connect(url: str, expected: Origin) -> None:
    assert parse_origin(url) == expected


@pytest.mark.parametrize(
    "url",
    ["", "box:8000", "ftp://box", "http://", "http://box:99999", "http://box:x", "http://u:p@box", "http://box/?a=b",
     "http://box/#f", "http://box/a b", "http://box/ü", "http://a..b", "unix:a.sock", "http://[::1"],
)  # fmt: skip
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_origin(url)


def test_credentials_in_a_url_do_not_reach_the_message() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_origin("http://user:secret@box")
    assert "secret" not in caught.value.message


def test_a_request_names_its_host_and_key_and_wants_no_compression() -> None:
    common = common_head(HTTP, "key", {"X-Team": "a"})
    assert request_head("POST", "/v1/x", common) == (
        b"POST /v1/x HTTP/1.1\r\nhost: box:8000\r\nuser-agent: drivetrain\r\naccept-encoding: identity\r\n"
        b"authorization: Bearer key\r\nx-team: a\r\ncontent-type: application/json\r\ncontent-length: "
    )


@pytest.mark.parametrize(
    ("key", "headers"),
    [("a\r\nx: y", {}), (None, {"x": "a\nb"}), (None, {"a b": "c"}), (None, {"x\r\n": "c"}), (None, {"Host": "c"}),
     (None, {"Content-Length": "3"}), (None, {"x": "\u20ac"})],
)  # fmt: skip
def test_a_header_that_could_change_the_message_is_refused(key: str | None, headers: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        common_head(HTTP, key, headers)


@pytest.mark.parametrize("path", ["", "v1", "/a b", "/a\r\nx: y", "/ü"])
def test_a_path_that_could_change_the_message_is_refused(path: str) -> None:
    with pytest.raises(BadRequest):
        request_head("GET", path, b"")
