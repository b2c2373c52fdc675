"""Plain appends: changes that come ready made, with the sender's own expected version.

One call brings many. Those that nothing is in front of go past the mailboxes (`passage`), the others through them, as entries;
the sender gets the outcomes of its call together and in order either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from eventstore_mailbox.entry import Entry

Deliver: TypeAlias = Callable[[list[object]], None]


class _Plain:
    __slots__ = ()


PLAIN: Final = _Plain()
"""The command of an entry that needs no handler."""


class Call:
    """Plain appends of one call, and what became of those that are answered."""

    __slots__ = ("_deliver", "_missing", "_outcomes", "source")

    def __init__(self, count: int, deliver: Deliver, source: object) -> None:
        self._outcomes: list[object] = [None] * count
        self._missing = count
        self._deliver = deliver
        self.source = source

    def put(self, place: int, outcome: object) -> None:
        """The last one has the call delivered."""
        self._outcomes[place] = outcome
        self._missing -= 1
        if not self._missing:
            self._deliver(self._outcomes)


class PlainEntry(Entry[object, object]):
    """A plain append in the mailbox, behind other commands of its aggregate."""

    __slots__ = ("call", "change", "place")

    def __init__(self, aggregate_id: str, command_id: str, change: object, call: Call, place: int) -> None:
        super().__init__(aggregate_id, command_id, PLAIN, call.source)
        self.change = change
        self.call = call
        self.place = place
