"""A domain that publishes its events: all of them to one topic, and messages made of some to others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import eventstore as es
import eventstore.domain as d
from tests.raising import NoText

broken: set[str] = {"nowhere", "limbo", "hell", "void", "abyss"}
"""The addresses that the functions for carriers and shipping cannot handle."""

errors: dict[str, BaseException] = {
    "limbo": asyncio.CancelledError(), "hell": SystemExit(666), "void": NoText(None), "abyss": GeneratorExit("end"),
}  # fmt: skip
"""What they raise at some of them."""

app = d.Domain()
parking = d.Domain()
mended = d.Domain()


@dataclass(frozen=True)
class Placed:
    customer: str
    cents: int


@dataclass(frozen=True)
class Sent:
    address: str


@app.publishes("billing", Placed)
def bill(event: Placed, stored: es.Event) -> object:
    return {"order": stored.aggregate_id, "cents": event.cents} if event.cents else None


@app.publishes("carriers", Sent, on_failure="stop")
def carry(event: Sent, stored: es.Event) -> object:
    return ship(event, stored)


@parking.publishes("parcels", Sent)
@app.publishes("shipping", Sent)
def ship(event: Sent, stored: es.Event) -> object:
    if event.address in broken:
        raise errors.get(event.address, LookupError(f"no carrier goes to {event.address}"))
    return event.address.encode()


app.publishes_as_stored("orders", Placed, Sent)


@mended.publishes("parcels", Sent)
def ship_anywhere(event: Sent, stored: es.Event) -> object:
    return event.address.encode()
