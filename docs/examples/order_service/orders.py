"""The domain: orders that are placed and cancelled, a table of them, and a message for each to ship."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import eventstore as es
import eventstore.domain as d

CENTS_MAX = 1_000_000


@dataclass(frozen=True)
class PlaceOrder:
    order: str
    customer: str
    cents: int


@dataclass(frozen=True)
class CancelOrder:
    order: str
    why: str


@dataclass(frozen=True)
class OrderPlaced:
    customer: str
    cents: int


@dataclass(frozen=True)
class OrderCancelled:
    why: str


class Order(d.Aggregate):
    customer = ""
    cents = 0
    cancelled = False

    @d.applies(OrderPlaced)
    def _(self, event: OrderPlaced) -> None:
        self.customer, self.cents = event.customer, event.cents

    @d.applies(OrderCancelled)
    def _(self, event: OrderCancelled) -> None:
        self.cancelled = True


app = d.Domain()


@app.handles(PlaceOrder)
def place(command: PlaceOrder, order: Order) -> None:
    if order.customer:
        d.reject(f"{command.order} is placed already", code="placed")
    if not 0 < command.cents <= CENTS_MAX:
        d.reject(f"an order is of 1 to {CENTS_MAX} cents", code="cents")
    order.apply(OrderPlaced(command.customer, command.cents))


@app.handles(CancelOrder)
def cancel(command: CancelOrder, order: Order) -> None:
    if not order.customer or order.cancelled:
        d.reject(f"there is no order {command.order} to cancel", code="none")
    order.apply(OrderCancelled(command.why))


@app.publishes("orders-to-ship", OrderPlaced)
def to_ship(event: OrderPlaced, stored: es.Event) -> object:
    return {"order": stored.aggregate_id, "customer": event.customer}


@dataclass(frozen=True)
class Row:
    customer: str = ""
    cents: int = 0
    cancelled: bool = False


class Orders(d.Projection[Row]):
    name = "orders"
    columns: ClassVar = {"customer": str, "cents": int, "cancelled": bool}

    def initial(self) -> Row:
        return Row()

    @d.folds(OrderPlaced)
    def _(self, state: Row, event: OrderPlaced) -> Row:
        return Row(event.customer, event.cents)

    @d.folds(OrderCancelled)
    def _(self, state: Row, event: OrderCancelled) -> Row:
        return replace(state, cancelled=True)

    def row(self, key: str, state: Row) -> dict[str, object]:
        return {"customer": state.customer, "cents": state.cents, "cancelled": state.cancelled}
