"""Tokens: 256 random bits, shown once and stored as a salted hash.

A fast hash is enough: unlike a password, 256 random bits cannot be guessed, however fast the guesses are.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

_PREFIX: Final = "es"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class StoredToken:
    """What is kept of a token.

    Attributes:
        expires: None: never.
    """

    salt: bytes
    digest: bytes
    created: datetime
    expires: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires


_NONE: Final = (bytes(_SALT_BYTES), bytes(hashlib.sha256().digest_size))


def new_token(created: datetime, expires: datetime | None) -> tuple[str, str, StoredToken]:
    """Returns a token, its id, by which it can be revoked, and what is kept of it."""
    token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{_PREFIX}_{token_id}_{secret}", token_id, StoredToken(salt, _digest(salt, secret), created, expires)


def find_token(token: str, known: Mapping[str, StoredToken]) -> str | None:
    """Returns the id of a known token; None if it is not known. Does the same work for every text."""
    prefix, token_id, secret = (*token.split("_", 2), "", "")[:3]
    found = known.get(token_id)
    salt, digest = _NONE if found is None else (found.salt, found.digest)
    same = hmac.compare_digest(_digest(salt, secret), digest)
    return token_id if same and found is not None and prefix == _PREFIX else None


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()
