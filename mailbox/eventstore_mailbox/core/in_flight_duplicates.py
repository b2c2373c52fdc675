"""Duplicates of commands that are still in flight: they are not handled, and get the answer of the first."""

from __future__ import annotations

from eventstore_mailbox.core.state import PLAIN, AnyEntry, Lane


class InFlightDuplicates:
    """Plain appends are not compared here: the store finds their duplicates."""

    def __init__(self) -> None:
        self.by_entry: dict[AnyEntry, list[AnyEntry]] = {}
        self.total = 0

    def add(self, lane: Lane, entry: AnyEntry) -> bool:
        """Adds the entry and returns True if it duplicates one of the lane. Precondition: the lane has entries.

        A lane keeps the command ids of its entries only while there are several: most never have.
        """
        if entry.command is PLAIN:
            return False
        if lane.ids is None:
            first = lane.first
            assert first is not None
            lane.ids = {} if first.command is PLAIN else {first.command_id: first}
        original = lane.ids.setdefault(entry.command_id, entry)
        if original is entry:
            return False
        self.by_entry.setdefault(original, []).append(entry)
        self.total += 1
        return True

    def pop(self, entry: AnyEntry) -> list[AnyEntry]:
        """Removes and returns the duplicates of this entry, with its answer."""
        duplicates = self.by_entry.pop(entry, [])
        for duplicate in duplicates:
            duplicate.status = entry.status
            duplicate.result = entry.result
        return duplicates
