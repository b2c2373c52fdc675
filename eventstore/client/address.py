"""Addresses of servers: `tcp://host:port`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from eventstore.errors import InvalidArgument


class Address(NamedTuple):
    """A host name or IP address (IPv6 without brackets), and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parses an address, as in tcp://127.0.0.1:7701 or tcp://[::1]:7701.

    Raises:
        InvalidArgument
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except (ValueError, AttributeError, TypeError):  # UnicodeError is a ValueError
        raise _malformed(text) from None
    extra = parts.path or parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme != "tcp" or not host or not port or extra:
        raise _malformed(text)
    return Address(host, port)


def _malformed(text: object) -> InvalidArgument:
    return InvalidArgument(
        f"address {text!r} is not of the form tcp://host:port, as in tcp://127.0.0.1:7701",
        field="address",
        value=ascii(text),
    )
