"""A command on its way through a mailbox, from acceptance until its sender is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from eventstore_mailbox.lane import Lane

Command = TypeVar("Command")
Outcome = TypeVar("Outcome")

COMMITTED, DUPLICATE, CONFLICT, REFUSED, UNCHANGED, FAILED, STOPPED, OVERLOADED = range(8)
"""What became of a command. The first four are what a store says of a change, and come with its outcome. UNCHANGED: the handler
made no change. FAILED: `Entry.error` is what the handler raised, or why it could not run. STOPPED: nobody
knows. OVERLOADED: it was not accepted."""

WAITING: Final = -1
"""Not handled yet, or to be handled again."""
IN_FLIGHT: Final = -2
"""Handled; its change is on its way to the store."""
SURE: Final = -3
"""To be handled on an aggregate that was brought up to the store for this command."""
STORED: Final = -4
"""The store has its change; its events are on their way to be published."""


class Entry(Generic[Command, Outcome]):
    """A command for one aggregate. Its maker may derive from it to carry more along (with `__slots__`).

    `sender` is the maker's own: it comes back with the answer, and with the batch if that has no other change in it.
    `status` and `result` are final when the entry is answered, and not before. An entry is
    submitted once, or again after it was OVERLOADED.
    """

    __slots__ = ("accepted", "aggregate_id", "command", "command_id", "lane", "next", "result", "sender", "status")

    lane: Lane
    next: Entry[Command, Outcome] | None
    accepted: float
    result: object

    def __init__(self, aggregate_id: str, command_id: str, command: Command, sender: object = None) -> None:
        self.aggregate_id = aggregate_id
        self.command_id = command_id
        self.command = command
        self.sender = sender
        self.status = WAITING
        self.next = None

    @property
    def outcome(self) -> Outcome | None:
        """What the store said; None unless the status is COMMITTED, DUPLICATE, CONFLICT or REFUSED."""
        return cast("Outcome", self.result) if 0 <= self.status <= REFUSED else None

    @property
    def error(self) -> BaseException | None:
        """Why it FAILED, was STOPPED or not accepted; else None."""
        return cast("BaseException", self.result) if self.status >= FAILED else None


AnyEntry: TypeAlias = Entry[object, object]
