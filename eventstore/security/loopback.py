"""Tells addresses that only this machine reaches from others."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches the host, which may have brackets. A name is, if it is `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
