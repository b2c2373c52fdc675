"""A domain for tests of timers: orders that are cancelled unless they are paid in time."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d


@dataclass(frozen=True)
class Place:
    order: str
    within: str = "30m"


@dataclass(frozen=True)
class Pay:
    order: str


@dataclass(frozen=True)
class Extend:
    order: str
    within: str


@dataclass(frozen=True)
class CancelIfUnpaid:
    order: str


@dataclass(frozen=True)
class Remind:
    order: str
    text: str


@dataclass(frozen=True)
class Placed:
    within: str


@dataclass(frozen=True)
class Paid:
    pass


@dataclass(frozen=True)
class Cancelled:
    pass


@dataclass(frozen=True)
class Reminded:
    text: str


class Order(d.Aggregate):
    placed = paid = cancelled = False
    reminders = 0

    @d.applies(Placed)
    def _(self, event: Placed) -> None:
        self.placed = True

    @d.applies(Paid)
    def _(self, event: Paid) -> None:
        self.paid = True

    @d.applies(Cancelled)
    def _(self, event: Cancelled) -> None:
        self.cancelled = True

    @d.applies(Reminded)
    def _(self, event: Reminded) -> None:
        self.reminders += 1


app = d.Domain()


@app.handles(Place)
def place(command: Place, order: Order) -> None:
    if order.placed:
        d.reject("it is placed", code="placed")
    order.apply(Placed(command.within))
    d.send_later(order, CancelIfUnpaid(order.id), after=command.within, name="payment")


@app.handles(Pay)
def pay(command: Pay, order: Order) -> None:
    if order.cancelled:
        d.reject("it is cancelled", code="cancelled")
    order.apply(Paid())
    d.cancel_later(order, "payment")


@app.handles(Extend)
def extend(command: Extend, order: Order) -> None:
    d.move_later(order, "payment", after=command.within)


@app.handles(CancelIfUnpaid)
def cancel_if_unpaid(command: CancelIfUnpaid, order: Order) -> None:
    if order.paid:
        d.reject("it is paid", code="paid")
    order.apply(Cancelled())


@app.handles(Remind)
def remind(command: Remind, order: Order) -> None:
    if command.text == "bug":
        raise ValueError("a bug in a handler")
    order.apply(Reminded(command.text))


@app.reacts(Placed)
async def remind_later(event: Placed, send: d.Send) -> None:
    if event.within == "reminded":
        await send(Remind(send.cause.aggregate_id, "soon"), after="10ms", name="reminder")
