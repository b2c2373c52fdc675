"""Where a node and its replicas listen, and by which address the other nodes reach them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import counted
from eventstore.server.bootstrap import PORT_MAX, parse_address
from eventstore_cluster.shard_start import PORTS_BELOW

PORTS_A_SHARD: Final = 2
"""One for clients, the one above it for other replicas."""
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
    if clients + 1 > PORT_MAX:
        raise InvalidArgument(
            f"shard {shard} would listen on the ports {clients} and {clients + 1}, the last one is {PORT_MAX}; choose a lower "
            "port for --listen",
            field="listen",
            limit=PORT_MAX,
            value=listen_at,
        )
    return f"{host}:{clients}", f"{host}:{clients + 1}"


def ports_said(listen_at: str) -> str:
    """Returns where the replicas of a node listen, for people."""
    _, port = parse_address(listen_at, "listen")
    return "on free ports" if port == 0 else f"from port {port + PORTS_BELOW} on, {PORTS_A_SHARD} for each shard"


def check_http(http: str | None, listen_at: str, shard: int) -> None:
    """Raises InvalidArgument: a replica of the shard listens where /metrics and /health are to be."""
    if http is not None and parse_address(http, "http")[1] in _ports_of(parse_address(listen_at, "listen")[1], shard):
        raise InvalidArgument(
            f"--http {http} has a port of shard {shard}, which listens {ports_said(listen_at)}; choose one below --listen",
            field="http",
            value=http,
        )


def check_apart(name: str, nodes: Mapping[str, str], shards: int) -> None:
    """Checks that no two nodes on one host need the same port. `nodes`: addresses of nodes, by name, whose replicas listen
    above them.

    Raises:
        InvalidArgument: the node `name`, or a replica on it, needs a port that another node on its host has; names the next
            port for --listen that is free of this, also with twice as many shards.
    """
    host, port = _split(nodes[name])
    others = {each: _split(nodes[each])[1] for each in nodes if each != name and _split(nodes[each])[0] == host}
    taken = _all_listeners(others, shards)
    clash = next(((each, who) for each, who in _listeners(name, port, shards).items() if each in taken), None)
    if clash is None:
        return
    room = 2 * shards  # for splits
    full = _all_listeners(others, room).keys()
    free = next(first for first in range(port + 1, PORT_MAX) if not full & _listeners(name, first, room).keys())
    raise InvalidArgument(
        f"port {clash[0]} of {host} is that of {taken[clash[0]]} and of {clash[1]}: a node takes its own port and, from "
        f"{PORTS_BELOW} above it on, {PORTS_A_SHARD} for each of {counted(shards, 'shard')}. Start {name} with --listen "
        f"{host}:{free}",
        field="listen",
        value=nodes[name],
        limit=free,
    )


def _all_listeners(nodes: Mapping[str, int], shards: int) -> dict[int, str]:
    return {port: who for name, at in nodes.items() for port, who in _listeners(name, at, shards).items()}


def _listeners(name: str, port: int, shards: int) -> dict[int, str]:
    of_shards = {each: f"shard {shard} on {name}" for shard in range(shards) for each in _ports_of(port, shard)}
    return {port: f"node {name}", **of_shards}


def _ports_of(port: int, shard: int) -> range:
    first = port + PORTS_BELOW + PORTS_A_SHARD * shard
    return range(first, first + PORTS_A_SHARD) if port else range(0)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def reached_by(listen_at: str, advertise: str | None) -> str:
    """Returns the host by which others reach a node.

    Raises:
        InvalidArgument: it listens on all addresses of its machine, and none of them is named.
    """
    if advertise is not None:
        if not advertise or "/" in advertise or advertise in _EVERYWHERE:
            raise InvalidArgument(
                f"--advertise is {advertise!r}, expected the name or the address of this machine",
                field="advertise",
                value=advertise,
            )
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
