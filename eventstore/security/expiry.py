"""Reads until when a certificate is valid: the few bytes of DER around that, since the standard library has no call for it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0  # optional, before the number of the certificate
_UTC_TIME: Final = 0x17
_VALIDITY: Final = 3  # after number, algorithm and issuer
_CERTIFICATES_MAX: Final = 20


def expires(path: str) -> datetime | None:
    """Returns when the first of the certificates in a file expires; None: it is unknown."""
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
        found = [expires_of(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{each}{_END}")) for each in _bodies(text)]
    except (OSError, ValueError):
        return None
    return min(found, default=None)


def expires_of(der: bytes) -> datetime:
    """Returns until when a certificate is valid. Raises ValueError: it is none."""
    try:
        (_, certificate), *_ = _values(der)
        (_, signed), *_ = _values(certificate)
        parts = [value for tag, value in _values(signed) if tag != _VERSION]
        _, (tag, end) = _values(parts[_VALIDITY])
        text = end.decode("ascii").removesuffix("Z")
        return datetime.strptime(text, "%y%m%d%H%M%S" if tag == _UTC_TIME else "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except (IndexError, TypeError) as error:
        raise ValueError(f"not a certificate: {error}") from None


def _bodies(text: str) -> list[str]:
    return [part.partition(_END)[0] for part in text.split(_BEGIN)[1 : _CERTIFICATES_MAX + 1]]


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and value of each element. Raises IndexError, ValueError."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size >= 0x80:
            wide = size & 0x7F
            size, at = int.from_bytes(data[at : at + wide], "big"), at + wide
        if at + size > len(data):
            raise ValueError("an element is longer than what it is in")
        yield tag, data[at : at + size]
        at += size
