"""Who is connected, for the console."""

from __future__ import annotations

from eventstore.console.subject import ConnectedClient
from eventstore.server.access.doorkeeper import Doorkeeper
from eventstore.server.net.connection import Connection
from eventstore.server.net.gate import Gate


def connected_clients(gate: Gate, door: Doorkeeper | None) -> list[ConnectedClient]:
    """Returns the clients that have said HELLO, those that came first before the others; may be called on any thread."""
    greeted = [each for each in list(gate.connections) if each.greeted]
    return [_client(each, door) for each in sorted(greeted, key=lambda each: each.since_us)]


def _client(connection: Connection, door: Doorkeeper | None) -> ConnectedClient:
    identity = None if door is None else door.identity_of(connection)
    bound = [each.use for each in list(connection.bound.values())]
    return ConnectedClient(
        connection.name, f"{connection.host}:{connection.port}", None if identity is None else identity.name,
        connection.since_us, (*sorted(connection.uses), *(use for use in bound if use is not None)),
        connection.doing if isinstance(connection.doing, str) else connection.doing.__name__, connection.unsent_bytes,
    )  # fmt: skip
