"""Addresses of servers: `tcp://host:port`, `tls://host:port`, and several of one cluster, with commas between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from eventstore.errors import InvalidArgument
from eventstore.fields import without_password
from eventstore.security.loopback import is_loopback

ADDRESSES_MAX: Final = 64
"""Of one client; all are tried at once if one of them is silent."""


class Address(NamedTuple):
    """A host name or IP address (IPv6 without brackets), a port, and whether TLS is spoken there."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{self.scheme}://{self.host}:{self.port}"

    @property
    def scheme(self) -> str:
        """How the address begins: `tls` or `tcp`."""
        return "tls" if self.tls else "tcp"

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine's own, so that nothing between can listen."""
        return is_loopback(self.host)


class Addresses:
    """Where a server, or the nodes of one cluster, can be reached. Not empty; the one that answered last is tried first."""

    def __init__(self, given: Sequence[Address]) -> None:
        self._in_turn = tuple(given)

    def __str__(self) -> str:
        return ",".join(map(str, self._in_turn))

    @property
    def are_several(self) -> bool:
        """Whether there is more than one."""
        return len(self._in_turn) > 1

    @property
    def first(self) -> Address:
        """The one that answered last."""
        return self._in_turn[0]

    def in_turn(self) -> Sequence[Address]:
        """Returns them in the order in which they are tried."""
        return self._in_turn

    def answered(self, address: Address) -> None:
        """Puts an address before the others."""
        self._in_turn = (address, *(each for each in self._in_turn if each != address))


def parse_addresses(text: str) -> Addresses:
    """Parses one address or several, as in tcp://n1:7701,n2:7701 or tcp://n1:7701,tcp://n2:7701. One given twice counts once.

    Raises:
        InvalidArgument
    """
    if not isinstance(text, str) or "," not in text:
        return Addresses([parse_address(text)])
    parts = [part.strip() for part in text.split(",")]
    scheme, named, _ = parts[0].partition("://")
    if not named:
        raise _malformed(text)
    found = dict.fromkeys(parse_address(part if "://" in part else f"{scheme}://{part}") for part in parts)
    if len({each.tls for each in found}) > 1:
        raise InvalidArgument(
            f"some addresses of {text!r} are tls://, some tcp://; a cluster has one of them", field="address", value=ascii(text)
        )
    if len(found) > ADDRESSES_MAX:
        raise InvalidArgument(
            f"{len(found)} addresses, a client takes up to {ADDRESSES_MAX}",
            field="address",
            limit=ADDRESSES_MAX,
            value=len(found),
        )
    return Addresses(list(found))


def parse_address(text: str) -> Address:
    """Parses an address, as in tcp://127.0.0.1:7701, tcp://[::1]:7701 or tls://db.example.org:7701.

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
    if parts.scheme not in ("tcp", "tls") or not host or not port or extra:
        raise _malformed(text)
    return Address(host, port, parts.scheme == "tls")


def _malformed(text: object) -> InvalidArgument:
    if isinstance(text, str):
        text = without_password(text)
    return InvalidArgument(
        f"address {text!r} is not of the form tcp://host:port or tls://host:port, as in tcp://127.0.0.1:7701",
        field="address",
        value=ascii(text),
    )
