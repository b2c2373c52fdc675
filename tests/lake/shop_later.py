"""The shop later on: with currencies, and one class more than before."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d
from tests.lake.shop import Placed


@d.event("shop.Paid")
@dataclass(frozen=True)
class PaidLater:
    cents: int
    currency: str = "EUR"


class OrderLater(d.Aggregate):
    @d.applies(PaidLater)
    def _(self, event: PaidLater) -> None:
        pass

    @d.applies(Placed)
    def _(self, event: Placed) -> None:
        pass


@d.command(id="order")
@dataclass(frozen=True)
class PayLater:
    order: str


app = d.Domain()


@app.handles(PayLater)
def pay(command: PayLater, order: OrderLater) -> None:
    pass
