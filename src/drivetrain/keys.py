"""What an API key looks like, and how one is known again without being kept. Pure, but for the chance in a new key.

`dt-<12 characters that everybody may see>-<43 that are secret>`: the first part finds the row, the second is compared
with the HMAC that the row holds. The secret has 256 bits of chance, so that a slow hash would protect nothing more.
"""

import hmac
import re
import secrets
from functools import lru_cache

PUBLIC_CHARACTERS = 12
SECRET_CHARACTERS = 43
_LOWER = "0123456789abcdefghijklmnopqrstuvwxyz"
_ALL = _LOWER + _LOWER[10:].upper()  # without signs: a double click selects a part whole
_FORM = re.compile(rf"dt-([0-9a-z]{{{PUBLIC_CHARACTERS}}})-([0-9A-Za-z]{{{SECRET_CHARACTERS}}})", re.ASCII)
_NOTHING = "0" * 64


def new() -> tuple[str, str]:
    """Public id and secret of a key that nobody has had before."""
    public_id = "".join(secrets.choice(_LOWER) for _ in range(PUBLIC_CHARACTERS))
    return public_id, "".join(secrets.choice(_ALL) for _ in range(SECRET_CHARACTERS))


def text(public_id: str, secret: str) -> str:
    """What its owner is given, once."""
    return f"dt-{public_id}-{secret}"


def parse(text: str) -> tuple[str, str] | None:
    """Public id and secret, or `None` for what cannot be a key of ours."""
    found = _FORM.fullmatch(text)
    return (found[1], found[2]) if found else None


def hashed(pepper: bytes, secret: str) -> str:
    """HMAC-SHA-256 in hexadecimal: what the store keeps instead of the secret."""
    made = _begun(pepper).copy()
    made.update(secret.encode())
    return made.hexdigest()


@lru_cache(maxsize=8)
def _begun(pepper: bytes) -> hmac.HMAC:
    """With the pepper taken in. `hmac.digest` lets go of the interpreter for each key, and has to wait for it again."""
    return hmac.new(pepper, digestmod="sha256")


def matches(pepper: bytes, secret: str, hash: str) -> bool:
    """Whether `hash` was made of this secret. Takes as long for a wrong one as for the right one."""
    return hmac.compare_digest(hashed(pepper, secret), hash)


def matches_nothing(pepper: bytes, secret: str) -> bool:
    """False, after the same work: an unknown public id must not be told from a wrong secret by the clock."""
    matches(pepper, secret, _NOTHING)
    return False
