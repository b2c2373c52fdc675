"""Duplicates of commands that are still in flight: they are not handled, and get the answer of the first.

Another command under the same id is not a duplicate. It is handled in its turn: if the first was stored, the store
refuses it, and if the first was not, it takes effect.
"""

from __future__ import annotations

from collections.abc import Callable

from eventstore_mailbox.core.joint_commands import PART
from eventstore_mailbox.core.state import COMMITTED, DUPLICATE, PLAIN, AggregateQueue, AnyEntry


class InFlightDuplicates:
    """The duplicates of each entry that is in flight. Plain appends are not compared here: the store finds their duplicates.

    `same` is `Ports.same`.
    """

    def __init__(self, same: Callable[[object, object], bool]) -> None:
        self._same = same
        self.by_entry: dict[AnyEntry, list[AnyEntry]] = {}
        self.total = 0

    def add(self, lane: AggregateQueue, entry: AnyEntry) -> bool:
        """Adds the entry and returns True if it duplicates one of the lane. Precondition: the lane has entries.

        A lane keeps the command ids of its entries only while there are several: most never have.
        """
        if entry.command is PLAIN:
            return False
        if lane.ids is None:
            first = lane.first
            assert first is not None
            lane.ids = {} if first.command is PLAIN or first.command is PART else {first.command_id: first}
        original = lane.ids.setdefault(entry.command_id, entry)
        if original is entry or not self._same(original.command, entry.command):
            return False
        self.by_entry.setdefault(original, []).append(entry)
        self.total += 1
        return True

    def pop(self, entry: AnyEntry) -> list[AnyEntry]:
        """Removes and returns the duplicates of this entry, with its answer. If it was COMMITTED, they get DUPLICATE."""
        duplicates = self.by_entry.pop(entry, [])
        status, result = entry.status, entry.result if duplicates else None
        if status == COMMITTED and isinstance(result, tuple):
            status, result = DUPLICATE, (DUPLICATE, *result[1:])
        for duplicate in duplicates:
            duplicate.status = status
            duplicate.result = result
        return duplicates
