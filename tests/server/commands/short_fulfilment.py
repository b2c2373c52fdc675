"""The domain of docs/examples/fulfilment.py with a deadline of a moment, and a process that is soon stuck."""

from __future__ import annotations

from dataclasses import dataclass

import eventstore.domain as d
import tests.examples  # noqa: F401 # puts the examples on the path

import fulfilment as of  # isort: skip
from fulfilment import Pay, Place  # isort: skip

__all__ = ["Fulfilment", "Go", "Pay", "Place", "Start", "app"]


@dataclass(frozen=True)
class Start:
    job: str


@dataclass(frozen=True)
class Go:
    job: str


@dataclass(frozen=True)
class Started:
    pass


@dataclass(frozen=True)
class Gone:
    pass


class Job(d.Aggregate):
    gone = False

    @d.applies(Started)
    def _(self, event: Started) -> None: ...

    @d.applies(Gone)
    def _(self, event: Gone) -> None:
        self.gone = True


app = d.Domain()
for command, handler in {
    of.Place: of.place,
    of.Accept: of.accept,
    of.Pay: of.pay,
    of.Cancel: of.cancel,
    of.Deliver: of.deliver,
    of.Reserve: of.reserve,
    of.Release: of.release,
}.items():
    app.handles(command)(handler)


@app.handles(Start)
def start(command: Start, job: Job) -> None:
    job.apply(Started())


@app.handles(Go)
def go(command: Go, job: Job) -> None:
    job.apply(Gone())


class Fulfilment(of.Fulfilment):
    @d.on(of.Reserved, by="order", at="reserving", to="waiting for payment")
    def reserved(self, event: of.Reserved) -> None:
        self.send(of.Accept(self.key))
        self.later("payment", after="300ms")


class Quiet(d.Process):
    stuck_after = "100ms"

    @d.on(Started, starts=True, to="begun")
    def started(self, event: Started) -> None: ...

    @d.on(Gone)
    def gone(self, event: Gone) -> None:
        self.end()


app.process(Fulfilment)
app.process(Quiet)
