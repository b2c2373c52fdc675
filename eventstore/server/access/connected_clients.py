"""Who is connected."""

from __future__ import annotations

from itertools import islice
from typing import Final

from eventstore.protocol.server_info import ClientInfo
from eventstore.security.access_list import Identity
from eventstore.server.access.doorkeeper import Doorkeeper
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate

_LINES_MAX: Final = 20
"""Of what a client does, in an answer."""


def client_rows(gate: Gate, door: Doorkeeper | None, skip: int, limit: int) -> list[ClientInfo]:
    """Returns `limit` clients that have said HELLO, oldest first, after the first `skip`."""
    greeted = (each for each in gate.connections if each.greeted)  # in the order in which they came: sorting 1,000 takes 0.5 ms
    skip = min(skip, len(gate.connections))  # no page begins where islice cannot count to
    asked = islice(greeted, skip, skip + limit)
    return [_row(each, None if door is None else door.identity_of(each)) for each in asked]


def _row(connection: ServerConnection, identity: Identity | None) -> ClientInfo:
    told = [each for each in connection.bound.values() if type(each).use is not None]
    count = len(connection.uses) + len(told)
    does = sorted(connection.uses)[:_LINES_MAX]
    does += [str(each.use) for each in told[: _LINES_MAX - len(does)]]  # made when it is asked for, of thousands that wait
    if count > _LINES_MAX:
        does.append(f"and {count - _LINES_MAX} more")
    doing = connection.doing if isinstance(connection.doing, str) else connection.doing.__name__
    return ClientInfo(
        connection.name,
        f"{connection.host}:{connection.port}",
        None if identity is None else identity.name,
        connection.since_us,
        "\n".join(does),
        doing,
        connection.unsent_bytes,
    )
