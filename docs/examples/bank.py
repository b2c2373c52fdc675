"""A bank: accounts, transfers between two of them, and a table of balances.

    eventstore serve --domain bank:app

A transfer is two commands on two aggregates, so it cannot be one commit; it continues from event to event instead. `Transfer`
takes the money from the sender (Sent). The reaction to it asks the receiver, who always answers with an event (Received or
ReceiptRefused). The reaction to a refusal returns the money. Every decision is an event: if the refusal were only an error, a
reaction that runs again after a crash could get another decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import eventstore.domain as d

# -- commands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    account: str
    owner: str


@dataclass(frozen=True)
class Deposit:
    account: str
    cents: int


@dataclass(frozen=True)
class Withdraw:
    account: str
    cents: int


@dataclass(frozen=True)
class Transfer:
    account: str
    to: str
    cents: int


@dataclass(frozen=True)
class Receive:
    account: str
    sender: str
    cents: int


@dataclass(frozen=True)
class TakeBack:
    account: str
    to: str
    cents: int


# -- events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    owner: str


@dataclass(frozen=True)
class Deposited:
    cents: int


@dataclass(frozen=True)
class Withdrawn:
    cents: int


@dataclass(frozen=True)
class Sent:
    to: str
    cents: int


@dataclass(frozen=True)
class Received:
    sender: str
    cents: int


@dataclass(frozen=True)
class ReceiptRefused:
    sender: str
    cents: int


@dataclass(frozen=True)
class TakenBack:
    to: str
    cents: int


# -- the aggregate --------------------------------------------------------------------------------------------------------


class Account(d.Aggregate):
    owner: str | None = None
    balance = 0

    def open(self, owner: str) -> None:
        if self.owner is not None:
            d.reject(f"account {self.id} already belongs to {self.owner}", code="already_open")
        self.apply(Opened(owner))

    def deposit(self, cents: int) -> None:
        self._check(cents)
        self.apply(Deposited(cents))

    def withdraw(self, cents: int) -> None:
        self._check_covered(cents)
        self.apply(Withdrawn(cents))

    def send(self, to: str, cents: int) -> None:
        self._check_covered(cents)
        if to == self.id:
            d.reject("sender and receiver are the same", code="same_account")
        self.apply(Sent(to, cents))

    def receive(self, sender: str, cents: int) -> None:
        self.apply(ReceiptRefused(sender, cents) if self.owner is None else Received(sender, cents))

    def take_back(self, to: str, cents: int) -> None:
        self.apply(TakenBack(to, cents))

    def _check(self, cents: int) -> None:
        if self.owner is None:
            d.reject(f"there is no account {self.id}", code="not_open")
        if cents <= 0:
            d.reject(f"{cents} is not a valid amount", code="amount")

    def _check_covered(self, cents: int) -> None:
        self._check(cents)
        if cents > self.balance:
            d.reject(f"account {self.id} has {self.balance}", code="not_covered", missing=cents - self.balance)

    @d.applies(Opened)
    def _(self, event: Opened) -> None:
        self.owner = event.owner

    @d.applies(Deposited)
    def _(self, event: Deposited) -> None:
        self.balance += event.cents

    @d.applies(Withdrawn)
    def _(self, event: Withdrawn) -> None:
        self.balance -= event.cents

    @d.applies(Sent)
    def _(self, event: Sent) -> None:
        self.balance -= event.cents

    @d.applies(Received)
    def _(self, event: Received) -> None:
        self.balance += event.cents

    @d.applies(ReceiptRefused)
    def _(self, event: ReceiptRefused) -> None:
        """Changes nothing here: the money is returned to the sender."""

    @d.applies(TakenBack)
    def _(self, event: TakenBack) -> None:
        self.balance += event.cents


# -- the domain -----------------------------------------------------------------------------------------------------------

app = d.Domain()


@app.handles(Open)
def open_account(command: Open, account: Account) -> None:
    account.open(command.owner)


@app.handles(Deposit)
def deposit(command: Deposit, account: Account) -> None:
    account.deposit(command.cents)


@app.handles(Withdraw)
def withdraw(command: Withdraw, account: Account) -> None:
    account.withdraw(command.cents)


@app.handles(Transfer)
def transfer(command: Transfer, account: Account) -> None:
    account.send(command.to, command.cents)


@app.handles(Receive)
def receive(command: Receive, account: Account) -> None:
    account.receive(command.sender, command.cents)


@app.handles(TakeBack)
def take_back(command: TakeBack, account: Account) -> None:
    account.take_back(command.to, command.cents)


@app.reacts(Sent)
async def pay_in(event: Sent, send: d.Send) -> None:
    await send(Receive(event.to, sender=send.cause.aggregate_id, cents=event.cents))


@app.reacts(ReceiptRefused)
async def pay_back(event: ReceiptRefused, send: d.Send) -> None:
    await send(TakeBack(event.sender, to=send.cause.aggregate_id, cents=event.cents))


# -- a read model ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Balance:
    owner: str = ""
    cents: int = 0
    movements: int = 0


class Balances(d.Projection[Balance]):
    name = "balances"
    columns: ClassVar = {"owner": str, "cents": int, "movements": int}

    def initial(self) -> Balance:
        return Balance()

    def row(self, key: str, state: Balance) -> dict[str, object]:
        return {"owner": state.owner, "cents": state.cents, "movements": state.movements}

    @d.folds(Opened)
    def _(self, state: Balance, event: Opened) -> Balance:
        return replace(state, owner=event.owner)

    @d.folds(Deposited)
    @d.folds(Received)
    @d.folds(TakenBack)
    def _(self, state: Balance, event: Deposited | Received | TakenBack) -> Balance:
        return replace(state, cents=state.cents + event.cents, movements=state.movements + 1)

    @d.folds(Withdrawn)
    @d.folds(Sent)
    def _(self, state: Balance, event: Withdrawn | Sent) -> Balance:
        return replace(state, cents=state.cents - event.cents, movements=state.movements + 1)
