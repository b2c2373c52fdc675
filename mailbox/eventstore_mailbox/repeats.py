"""Commands that came again while the first one is still on its way: they are not handled, and get the first one's answer."""

from __future__ import annotations

from eventstore_mailbox.entry import AnyEntry
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.plain import PLAIN


class Repeats:
    """Plain appends are left to the store, which compares what they bring."""

    def __init__(self) -> None:
        self.by_entry: dict[AnyEntry, list[AnyEntry]] = {}
        self.count = 0

    def joins(self, lane: Lane, entry: AnyEntry) -> bool:
        """Whether the entry repeats one of the lane. Precondition: the lane has entries.

        A lane keeps the command ids of its entries only while there are several: most never have.
        """
        if entry.command is PLAIN:
            return False
        if lane.ids is None:
            first = lane.first
            assert first is not None
            lane.ids = {} if first.command is PLAIN else {first.command_id: first}
        before = lane.ids.setdefault(entry.command_id, entry)
        if before is entry:
            return False
        self.by_entry.setdefault(before, []).append(entry)
        self.count += 1
        return True

    def of(self, entry: AnyEntry) -> list[AnyEntry]:
        """Those that waited for this entry, with its answer."""
        repeats = self.by_entry.pop(entry, [])
        for repeat in repeats:
            repeat.status = entry.status
            repeat.result = entry.result
        return repeats
