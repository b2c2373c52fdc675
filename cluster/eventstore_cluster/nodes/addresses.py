"""Where a node and its replicas listen, and by which address the other nodes reach them."""

from __future__ import annotations

import ipaddress
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.server.bootstrap import parse_address

PORTS_BELOW: Final = 10
PORTS_A_SHARD: Final = 2
"""One for clients, the one above it for other replicas."""
_PORT_MAX: Final = 65_535
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "[::]", "*"})


def replica_addresses(listen_at: str, shard: int) -> tuple[str, str]:
    """Returns where a replica of the shard listens, for clients and for other replicas; on free ports if the node's is 0.

    Raises:
        InvalidArgument: there is no such port.
    """
    host, port = parse_address(listen_at, "listen")
    if port == 0:
        return f"{host}:0", f"{host}:0"
    clients = port + PORTS_BELOW + PORTS_A_SHARD * shard
    if clients + 1 > _PORT_MAX:
        raise InvalidArgument(
            f"shard {shard} would listen on the ports {clients} and {clients + 1}, the last one is {_PORT_MAX}; choose a lower "
            "port for --listen",
            field="listen",
            limit=_PORT_MAX,
            value=listen_at,
        )
    return f"{host}:{clients}", f"{host}:{clients + 1}"


def reached_by(listen_at: str, advertise: str | None) -> str:
    """Returns the host by which others reach a node.

    Raises:
        InvalidArgument: it listens on all addresses of its machine, and none of them is named.
    """
    if advertise is not None:
        if not advertise or "/" in advertise or advertise in _EVERYWHERE:
            raise InvalidArgument(
                f"--advertise is {advertise!r}, expected the name or the address of this machine", field="advertise",
                value=advertise,
            )  # fmt: skip
        return _in_brackets(advertise)
    host, _ = parse_address(listen_at, "listen")
    if host in _EVERYWHERE:
        raise InvalidArgument(
            f"other nodes cannot reach {listen_at}: name this machine as they do, with --advertise HOST, or listen on one of "
            "its addresses",
            field="listen",
            value=listen_at,
        )
    return _in_brackets(host)


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. Names are not resolved."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
