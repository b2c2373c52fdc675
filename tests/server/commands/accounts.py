"""A domain whose commands are about several aggregates."""

from __future__ import annotations

from dataclasses import dataclass

import trio

import eventstore.domain as d


@dataclass(frozen=True)
class Open:
    account: str
    cents: int = 0


@dataclass(frozen=True)
class Move:
    """Moves an amount, if it is there; `limit`, an account, is only looked at: it must have less than 1,000."""

    source: str
    target: str
    cents: int


@dataclass(frozen=True)
class MoveWithin(Move):
    limit: str


@dataclass(frozen=True)
class MoveSlowly(Move):
    pass


@dataclass(frozen=True)
class Misuse:
    """Changes only the second aggregate, or fails when both are changed."""

    first: str
    second: str
    how: str


@dataclass(frozen=True)
class Changed:
    cents: int


class Account(d.Aggregate):
    cents = 0

    @d.applies(Changed)
    def _(self, event: Changed) -> None:
        self.cents += event.cents


app = d.Domain()
gates: dict[str, trio.Event] = {}


@app.handles(Open)
def open_account(command: Open, account: Account) -> None:
    account.apply(Changed(command.cents))


@app.handles(Move, aggregates=("source", "target"))
def move(command: Move, source: Account, target: Account) -> None:
    if not command.cents:
        return
    if source.cents < command.cents:
        d.reject(f"{source.id} has {source.cents}", code="not_covered")
    source.apply(Changed(-command.cents))
    target.apply(Changed(command.cents))


@app.handles(MoveWithin, aggregates=("source", "target", "limit"))
def move_within(command: MoveWithin, source: Account, target: Account, limit: Account) -> None:
    if limit.cents >= 1_000:
        d.reject("too much", code="limit")
    move(command, source, target)


@app.handles(MoveSlowly, aggregates=("source", "target"))
async def move_slowly(command: MoveSlowly, source: Account, target: Account) -> None:
    await trio.lowlevel.checkpoint()
    move(command, source, target)


@app.handles(Misuse, aggregates=("first", "second"))
def misuse(command: Misuse, first: Account, second: Account) -> None:
    second.apply(Changed(1))
    if command.how == "fail":
        first.apply(Changed(1))
        raise ValueError("a bug")
