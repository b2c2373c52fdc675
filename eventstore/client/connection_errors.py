"""ConnectionLost errors that say why a connection failed, and what to check."""

from __future__ import annotations

from eventstore.client.address import Address
from eventstore.errors import ConnectionLost


class HelloTimeout(OSError):
    """The peer accepted the connection but did not answer the hello: a server that hangs, or not an event store."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"connected, but the hello was not answered within {timeout_s:g} s")


def connection_lost(address: Address, cause: Exception | None) -> ConnectionLost:
    """Returns the error for callers that waited for this connection."""
    why = getattr(cause, "strerror", None) or str(cause or "") or "the connection was closed"
    hello = isinstance(cause, HelloTimeout)
    hint = "is this the port of an event store, and not its --http?" if hello else "is the server running?"
    return ConnectionLost(f"{address}: {why}; {hint}", address=str(address), cause=why)
