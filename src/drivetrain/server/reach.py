"""How far a key may send the library: to files of this machine, and to addresses that somebody made up. Pure.

The scope `models` is for the configured registry and hub. What is elsewhere, on this machine's disk or in its network,
is an administrator's: whoever may name any path or address may read what only this machine can.
"""

from urllib.parse import urlsplit

from drivetrain.errors import BadRequest, Forbidden
from drivetrain.governance import Principal
from drivetrain.library import sources
from drivetrain.server.auth import check_model, described

HUB = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})


def check_local(who: Principal, path: str) -> None:
    """Raises `Forbidden` where this one may not have the server read its own files."""
    if "admin" not in who.scopes:
        raise Forbidden(f"{described(who)} may not import {path[:200]!r}: files of the server need the scope 'admin'")


def check_source(who: Principal, source: str, *, name: str | None = None, insecure: bool = False) -> None:
    """Raises `Forbidden` where this one may not pull that, or not under that name."""
    try:
        parsed = sources.parse(source, insecure=insecure)
    except BadRequest:
        return  # the pull refuses it too, in its own words
    check_model(who, name or parsed.id)
    match parsed:
        case sources.Local():
            check_local(who, source)
        case sources.Url(url=url) if urlsplit(url).hostname not in HUB:
            _check_address(who, source)
        case sources.RegistryName(base_url=base_url) if base_url or insecure:
            _check_address(who, source)


def check_target(who: Principal, name: str, *, insecure: bool = False) -> None:
    """Raises `Forbidden` where this one may not push that, or not to there."""
    try:
        parsed = sources.registry_name(name, insecure=insecure)
    except BadRequest:
        return
    check_model(who, parsed.id)
    if parsed.base_url or insecure:
        _check_address(who, name)


def _check_address(who: Principal, address: str) -> None:
    if "admin" not in who.scopes:
        raise Forbidden(
            f"{described(who)} may not have this server connect to {address[:200]!r}: other addresses than those of "
            "the configured registry and hub need the scope 'admin'"
        )
