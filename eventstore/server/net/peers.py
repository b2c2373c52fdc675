"""Peers: whose a connection is. That of a known client is its identity; before, and where there are none, its network."""

from __future__ import annotations

import ipaddress
from typing import Final

_NETWORK_BITS: Final = 64  # of IPv6 a client has at least as many addresses as follow these


def network_of(host: str) -> str:
    """Returns what a client cannot easily change of its address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))


def peer_of_identity(name: str) -> str:
    """Returns the peer of an identity; no address is like it."""
    return f"identity {name}"
