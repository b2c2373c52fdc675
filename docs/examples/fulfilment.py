"""Orders that are paid or cancelled: a process over an order and its stock.

    eventstore serve --domain fulfilment:app

An order is placed; the process reserves a piece, accepts the order, and waits 30 minutes for the payment. Then it cancels the
order, and gives the piece back once the order says that it is cancelled: it may have been paid in the last moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import eventstore as es
import eventstore.domain as d

# -- commands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    order: str
    article: str


@dataclass(frozen=True)
class Accept:
    order: str


@dataclass(frozen=True)
class Pay:
    order: str


@dataclass(frozen=True)
class Cancel:
    order: str
    why: str


@dataclass(frozen=True)
class Deliver:
    article: str
    pieces: int


@dataclass(frozen=True)
class Reserve:
    article: str
    order: str


@dataclass(frozen=True)
class Release:
    article: str
    order: str


# -- events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    article: str


@dataclass(frozen=True)
class Accepted:
    pass


@dataclass(frozen=True)
class Paid:
    pass


@dataclass(frozen=True)
class Cancelled:
    why: str


@dataclass(frozen=True)
class Delivered:
    pieces: int


@dataclass(frozen=True)
class Reserved:
    order: str


@dataclass(frozen=True)
class Released:
    order: str


# -- aggregates -----------------------------------------------------------------------------------------------------------

app = d.Domain()


class Order(d.Aggregate):
    state = "new"

    @d.applies(Placed)
    def _(self, event: Placed) -> None:
        self.state = "placed"

    @d.applies(Accepted)
    def _(self, event: Accepted) -> None:
        self.state = "accepted"

    @d.applies(Paid)
    def _(self, event: Paid) -> None:
        self.state = "paid"

    @d.applies(Cancelled)
    def _(self, event: Cancelled) -> None:
        self.state = "cancelled"


@app.handles(Place)
def place(command: Place, order: Order) -> None:
    if order.state != "new":
        d.reject("it is placed already", code="placed")
    order.apply(Placed(command.article))


@app.handles(Accept)
def accept(command: Accept, order: Order) -> None:
    order.apply(Accepted())


@app.handles(Pay)
def pay(command: Pay, order: Order) -> None:
    if order.state != "accepted":
        d.reject(f"it is {order.state}", code="not_open")
    order.apply(Paid())


@app.handles(Cancel)
def cancel(command: Cancel, order: Order) -> None:
    if order.state in ("placed", "accepted"):
        order.apply(Cancelled(command.why))


class Article(d.Aggregate):
    pieces = 0
    reserved: frozenset[str] = frozenset()

    @d.applies(Delivered)
    def _(self, event: Delivered) -> None:
        self.pieces += event.pieces

    @d.applies(Reserved)
    def _(self, event: Reserved) -> None:
        self.reserved |= {event.order}

    @d.applies(Released)
    def _(self, event: Released) -> None:
        self.reserved -= {event.order}


@app.handles(Deliver)
def deliver(command: Deliver, article: Article) -> None:
    article.apply(Delivered(command.pieces))


@app.handles(Reserve)
def reserve(command: Reserve, article: Article) -> None:
    if len(article.reserved) >= article.pieces:
        d.reject("all pieces are taken", code="sold_out")
    article.apply(Reserved(command.order))


@app.handles(Release)
def release(command: Release, article: Article) -> None:
    if command.order in article.reserved:
        article.apply(Released(command.order))


# -- the process ----------------------------------------------------------------------------------------------------------


class Fulfilment(d.Process):
    stuck_after = "2h"

    @d.on(Placed, starts=True, to="reserving")
    def placed(self, event: Placed) -> None:
        self.send(Reserve(event.article, self.key), undo=Release(event.article, self.key))

    @d.refused(Reserve, at="reserving", to="cancelling")
    def sold_out(self, rejection: es.Rejected) -> None:
        self.send(Cancel(self.key, rejection.message))

    @d.on(Reserved, by="order", at="reserving", to="waiting for payment")
    def reserved(self, event: Reserved) -> None:
        self.send(Accept(self.key))
        self.later("payment", after="30m")

    @d.on(Paid, at=("waiting for payment", "cancelling"), to="paid")
    def paid(self, event: Paid) -> None:
        self.end()

    @d.deadline("payment", at="waiting for payment", to="cancelling")
    def not_paid(self) -> None:
        self.send(Cancel(self.key, "it was not paid"))

    @d.on(Cancelled, at="cancelling", to="cancelled")
    def cancelled(self, event: Cancelled) -> None:
        self.compensate()
        self.end()


app.process(Fulfilment)
