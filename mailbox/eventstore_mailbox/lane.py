"""One aggregate's commands in a mailbox, from the oldest unanswered to the newest, and how far they have been handled.

    first              cursor              last
      │                  │                   │
      ▼                  ▼                   ▼
     [c1] ─► [c2] ─► [c3] ─► [c4] ─► … ─► [c9]
      in flight, in    to be handled
      order

An entry is linked once and keeps its place until it is answered, so an aggregate's order cannot be lost; a conflict moves the
cursor back, and nothing else. Entries leave at `first` alone. Aggregates do not share a lane: what holds one up holds up no
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore_mailbox.entry import COMMITTED, DUPLICATE, STORED, WAITING, AnyEntry

if TYPE_CHECKING:
    from eventstore_mailbox.command_mailbox import CommandMailbox
    from eventstore_mailbox.ports import Publication

FREE: Final = 0
DRAINING: Final = 1
"""Until what is on its way to the store is durable; then the aggregate is restored."""
PAUSED: Final = 4
"""Until some time after a command has conflicted again."""
RESTORING: Final = 2
HANDLING: Final = 3
"""An async handler is running."""

NOWHERE: Final = -1
"""In no batch."""

TAKEN: Final = frozenset((STORED, COMMITTED, DUPLICATE))
"""By the store, for good: whatever is set back, such an entry is not handled again, and the cursor passes over it."""


class Lane:
    """aggregate  in memory, or None
    flying     changes handed on and not durable yet
    passing    calls of plain appends on their way that this aggregate is among; nothing of the lane moves before they are done
    touched    since the last visit of the hand (see `residents`)
    resident   whether the hand visits it
    mark       number of the last batch that has a handler's change of this aggregate
    doubted    the aggregate that the command at the cursor was refused on, until it is brought up to the store
    backlog    durable changes that wait because publishing one of them failed; None: nothing failed
    """

    __slots__ = (
        "aggregate", "aggregate_id", "backlog", "cursor", "doubted", "first", "flying", "hold", "ids", "last", "mailbox",
        "mark", "passing", "resident", "touched",
    )  # fmt: skip

    def __init__(self, aggregate_id: str, mailbox: CommandMailbox) -> None:
        self.aggregate_id = aggregate_id
        self.mailbox = mailbox
        self.aggregate: object = None
        self.first: AnyEntry | None = None
        self.last: AnyEntry | None = None
        self.cursor: AnyEntry | None = None
        self.hold = FREE
        self.flying = 0
        self.passing = 0
        self.mark = NOWHERE
        self.touched = False
        self.resident = False
        self.doubted: object = None
        self.ids: dict[str, AnyEntry] | None = None
        self.backlog: list[tuple[AnyEntry, int, Publication[object, object]]] | None = None

    def set_back(self, to: AnyEntry | None) -> int:
        """Everything from `to` on that the store has not taken is to be handled again, on an aggregate restored from it;
        returns how many had been.

        Precondition: what lies before `to` is durable.
        """
        entry, count = to, 0
        while entry is not self.cursor:
            assert entry is not None
            if entry.status != WAITING and entry.status not in TAKEN:
                entry.status = WAITING
                count += 1
            entry = entry.next
        self.cursor = to
        self.aggregate = self.doubted = None
        self.flying = 0
        return count
