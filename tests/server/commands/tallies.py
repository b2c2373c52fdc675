"""A domain for tests of commands. Its events name the state they were decided on, so that a reader can check that commands took
effect one after the other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import trio

import eventstore.domain as d
from eventstore.errors import ShuttingDown
from tests.raising import NoText, cancelled_by_trio

gates: dict[str, trio.Event] = {}
"""The events that handlers of `Wait` wait for, by aggregate; set them in the thread of the handlers."""


@dataclass(frozen=True)
class Add:
    tally: str
    amount: int = 1


@dataclass(frozen=True)
class AddBelow:
    tally: str
    amount: int
    limit: int


@dataclass(frozen=True)
class Raise:
    """Adds as much as is missing to `to`, and nothing if nothing is."""

    tally: str
    to: int


@dataclass(frozen=True)
class Rename:
    tally: str
    name: str


@dataclass(frozen=True)
class AddOften:
    tally: str
    times: int


@dataclass(frozen=True)
class Write:
    tally: str
    characters: int


@dataclass(frozen=True)
class Break:
    """Adds one, then raises the error named by `how`."""

    tally: str
    how: str


@dataclass(frozen=True)
class BreakLate:
    """Adds one, then awaits what raises."""

    tally: str
    how: str


@dataclass(frozen=True)
class Block:
    tally: str
    seconds: float


@dataclass(frozen=True)
class BlockLate:
    """Waits before it blocks."""

    tally: str
    seconds: float


@dataclass(frozen=True)
class Wait:
    tally: str


@dataclass(frozen=True)
class Ring:
    """For the other class of aggregates."""

    bell: str


@dataclass(frozen=True)
class Added:
    amount: int
    before: int


@dataclass(frozen=True)
class Renamed:
    name: str


@dataclass(frozen=True)
class Written:
    text: str


@dataclass(frozen=True)
class Rung:
    before: int


class Tally(d.Aggregate):
    value = 0
    name = ""

    def add(self, amount: int) -> None:
        self.apply(Added(amount, self.value))

    @d.applies(Added)
    def _(self, event: Added) -> None:
        self.value += event.amount

    @d.applies(Renamed)
    def _(self, event: Renamed) -> None:
        self.name = event.name

    @d.applies(Written)
    def _(self, event: Written) -> None:
        """Only its size matters."""


class Bell(d.Aggregate):
    rung = 0
    name = ""

    @d.applies(Rung)
    def _(self, event: Rung) -> None:
        self.rung += 1

    @d.applies(Renamed)
    def _(self, event: Renamed) -> None:
        self.name = event.name


@d.command("RenameBell")
@dataclass(frozen=True)
class RenameBell:
    bell: str
    name: str


app = d.Domain()


@app.handles(Add)
def add(command: Add, tally: Tally) -> None:
    tally.add(command.amount)


@app.handles(AddBelow)
def add_below(command: AddBelow, tally: Tally) -> None:
    if tally.value + command.amount > command.limit:
        d.reject(f"{tally.id} is at {tally.value}", code="limit", missing=command.limit - tally.value)
    tally.add(command.amount)


@app.handles(Raise)
def raise_to(command: Raise, tally: Tally) -> None:
    if tally.value < command.to:
        tally.add(command.to - tally.value)


@app.handles(Rename)
def rename(command: Rename, tally: Tally) -> None:
    tally.apply(Renamed(command.name))


@app.handles(AddOften)
def add_often(command: AddOften, tally: Tally) -> None:
    for _ in range(command.times):
        tally.add(1)


@app.handles(Write)
def write(command: Write, tally: Tally) -> None:
    tally.apply(Written("x" * command.characters))


@app.handles(Break)
def break_off(command: Break, tally: Tally) -> None:
    tally.add(1)
    raise BREAKS[command.how]


@app.handles(BreakLate)
async def break_late(command: BreakLate, tally: Tally) -> None:
    tally.add(1)
    try:
        await cancelled_by_trio()
    except trio.Cancelled as cancelled:
        if command.how == "in a group":
            raise BaseExceptionGroup("", [cancelled]) from None
        raise


@app.handles(Block)
def block(command: Block, tally: Tally) -> None:
    time.sleep(command.seconds)  # on purpose: a handler that blocks
    tally.add(1)


@app.handles(BlockLate)
async def block_late(command: BlockLate, tally: Tally) -> None:
    await trio.lowlevel.checkpoint()
    time.sleep(command.seconds)  # noqa: ASYNC251 # on purpose
    tally.add(1)
    await trio.lowlevel.checkpoint()


@app.handles(Wait)
async def wait(command: Wait, tally: Tally) -> None:
    await gates.setdefault(command.tally, trio.Event()).wait()
    tally.add(1)


@app.handles(Ring)
def ring(command: Ring, bell: Bell) -> None:
    bell.apply(Rung(bell.rung))


@app.handles(RenameBell)
def rename_bell(command: RenameBell, bell: Bell) -> None:
    bell.apply(Renamed(command.name))


class OddlyCoded(d.Rejected):
    code = "odd"  # type: ignore[assignment] # what an author may well write


BREAKS: dict[str, BaseException] = {
    "bug": ValueError("a bug"),
    "exit": SystemExit(3),
    "cancelled by asyncio": asyncio.CancelledError(),
    "closed": GeneratorExit("end"),
    "no text": NoText(None),
    "text that is none": d.Rejected(ValueError("wrapped")),  # type: ignore[arg-type] # what an author may well write
    "code that is none": OddlyCoded("odd"),
    "too many fields": d.Rejected("many", **{f"field_{number}": "x" * 5_000 for number in range(10_000)}),
    "a word of the server's own": ShuttingDown("not for a handler to say"),
}
