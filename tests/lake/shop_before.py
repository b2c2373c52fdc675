"""The shop before it knew what is placed."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d


@d.event("shop.Paid")
@dataclass(frozen=True)
class PaidBefore:
    cents: int


class OrderBefore(d.Aggregate):
    @d.applies(PaidBefore)
    def _(self, event: PaidBefore) -> None:
        pass


@d.command(id="order")
@dataclass(frozen=True)
class PayBefore:
    order: str


app = d.Domain()


@app.handles(PayBefore)
def pay(command: PayBefore, order: OrderBefore) -> None:
    pass
