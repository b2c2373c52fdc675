"""Why a connection could not be made, or was lost, in words that say what to look at."""

from __future__ import annotations

from eventstore.client.address import Address
from eventstore.errors import ConnectionLost


class Silent(OSError):
    """Somebody accepts connections there, and does not answer the hello: a server that hangs, or no event store at all."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"connected, but the hello was not answered within {timeout_s:g} s")


def lost(address: Address, cause: Exception | None) -> ConnectionLost:
    """The error for whoever waited."""
    why = getattr(cause, "strerror", None) or str(cause or "") or "the connection was closed"
    question = (
        "is this the port of an event store, and not its --http?" if isinstance(cause, Silent) else "is the server running?"
    )
    return ConnectionLost(f"{address}: {why}; {question}", address=str(address), cause=why)
