"""Plain appends that go through the mailboxes: one entry each, the call that collects their outcomes, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from eventstore_mailbox.core.state import PLAIN, Entry
from eventstore_mailbox.errors import MailboxFull

Deliver: TypeAlias = Callable[[list[object]], None]
DeliverSome: TypeAlias = Callable[[Sequence[int], list[object]], None]
"""Called with places of a call, and their outcomes."""


class AppendCall:
    """Collects the outcomes of one call of plain appends.

    Delivers all of them in order when the last one is there. With `deliver_some`, delivers each outcome when it is there.
    """

    __slots__ = ("_deliver", "_deliver_some", "_missing", "_outcomes", "source")

    def __init__(self, count: int, deliver: Deliver, source: object, deliver_some: DeliverSome | None = None) -> None:
        self._outcomes: list[object] = [None] * count
        self._missing = count
        self._deliver = deliver
        self._deliver_some = deliver_some
        self.source = source

    def put(self, places: Sequence[int], outcomes: list[object]) -> None:
        if self._deliver_some is not None:
            self._deliver_some(places, outcomes)
            return
        for place, outcome in zip(places, outcomes, strict=True):
            self._outcomes[place] = outcome
        self._missing -= len(places)
        if not self._missing:
            self._deliver(self._outcomes)


class PlainEntry(Entry[object, object]):
    """A plain append in a lane, after other commands of its aggregate."""

    __slots__ = ("call", "change", "place")

    def __init__(self, aggregate_id: str, command_id: str, change: object, call: AppendCall, place: int) -> None:
        super().__init__(aggregate_id, command_id, PLAIN, call.source)
        self.change = change
        self.call = call
        self.place = place


class WaitingBytes:
    """The bytes of plain appends that wait in lanes for commands whose handlers take time."""

    def __init__(self, bytes_max: int, size: Callable[[object], int] | None) -> None:
        self._bytes_max = bytes_max
        self._size = size
        self.bytes = 0

    def add(self, changes: Sequence[object]) -> None:
        """Counts changes together.

        Raises:
            MailboxFull: there is no room for them; none is counted.
        """
        if self._size is None:
            return
        total = self.bytes + sum(map(self._size, changes))
        if total > self._bytes_max:
            raise MailboxFull("the lanes of plain appends", self.bytes, self._bytes_max, "bytes")
        self.bytes = total

    def remove(self, change: object) -> None:
        if self._size is not None:
            self.bytes -= self._size(change)
