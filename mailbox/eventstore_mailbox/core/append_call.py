"""Plain appends that go through the mailboxes: one entry each, and the call that collects their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from eventstore_mailbox.core.state import PLAIN, Entry

Deliver: TypeAlias = Callable[[list[object]], None]


class AppendCall:
    """Collects the outcomes of one call of plain appends; delivers them in order after the last one."""

    __slots__ = ("_deliver", "_missing", "_outcomes", "source")

    def __init__(self, count: int, deliver: Deliver, source: object) -> None:
        self._outcomes: list[object] = [None] * count
        self._missing = count
        self._deliver = deliver
        self.source = source

    def put(self, place: int, outcome: object) -> None:
        self._outcomes[place] = outcome
        self._missing -= 1
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
