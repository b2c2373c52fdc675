"""A domain whose events have columns of many types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import eventstore.domain as d


@d.event("shop.Placed")
@dataclass(frozen=True)
class Placed:
    customer: UUID
    total: Decimal
    at: datetime
    items: tuple[str, ...] = ()


@d.event("shop.Paid")
@dataclass(frozen=True)
class Paid:
    cents: int


class Order(d.Aggregate):
    @d.applies(Placed)
    def _(self, event: Placed) -> None:
        pass

    @d.applies(Paid)
    def _(self, event: Paid) -> None:
        pass


app = d.Domain()


@d.command(id="order")
@dataclass(frozen=True)
class Pay:
    order: str
    cents: int


@app.handles(Pay)
def pay(command: Pay, order: Order) -> None:
    order.apply(Paid(command.cents))
