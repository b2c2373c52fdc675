"""Changes on their way to the store: a double buffer, swapped and never copied.

The front draft fills while the one before it is persisted; one at a time, so that an aggregate's changes are only ever
persisted in the order they were made. A draft that has reached a bound is closed and a new one begun, so drafts may queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from itertools import count

from eventstore_mailbox.entry import IN_FLIGHT, AnyEntry
from eventstore_mailbox.lane import NOWHERE, Lane
from eventstore_mailbox.plain import PLAIN

_numbers = count()


class Draft:
    """A batch in the making. `number` is unique in the process: lanes remember it to tell whether they are in this one."""

    __slots__ = ("changes", "entries", "followers", "number", "size_bytes")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.entries: list[AnyEntry] = []
        self.changes: list[object] = []
        self.followers: list[int] = []
        self.size_bytes = 0


class EventMailbox:
    def __init__(self, changes_max: int, bytes_max: int, size: Callable[[object], int] | None) -> None:
        self.front = Draft()
        self.writing: Draft | None = None
        self._closed: deque[Draft] = deque()
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._size = size

    def add(self, lane: Lane, entry: AnyEntry, change: object) -> None:
        front, size = self.front, self._size
        entries = front.entries
        if size is not None:
            whole = front.size_bytes + size(change)
            if whole > self._bytes_max and entries:
                whole -= front.size_bytes
                front = self._close()
                entries = front.entries
            front.size_bytes = whole
        if lane.mark == front.number:
            front.followers.append(len(entries))
        elif entry.command is not PLAIN:  # nothing rests on a plain append: its sender named the version
            lane.mark = front.number
        entry.status = IN_FLIGHT
        lane.flying += 1
        entries.append(entry)
        front.changes.append(change)
        if len(entries) >= self._changes_max:
            self._close()

    def take(self) -> Draft | None:
        """The next batch to persist, unless there is none or one is being persisted. `settled` ends it."""
        if self.writing is not None:
            return None
        if self._closed:
            self.writing = self._closed.popleft()
        elif self.front.entries:
            self.writing, self.front = self.front, Draft()
        return self.writing

    def settled(self) -> None:
        self.writing = None

    def drop(self, lanes: Collection[Lane]) -> None:
        """Takes the changes of these aggregates out of what is not being persisted."""
        for lane in lanes:
            lane.mark = NOWHERE  # the next change of it rests on nothing in the front draft
        kept = (self._without(draft, lanes) for draft in self._closed)
        self._closed = deque(draft for draft in kept if draft.entries)
        self.front = self._without(self.front, lanes)

    @property
    def waiting(self) -> int:
        """Changes that are not being persisted yet."""
        return len(self.front.entries) + sum(len(draft.entries) for draft in self._closed)

    def _close(self) -> Draft:
        self._closed.append(self.front)
        self.front = Draft()
        return self.front

    def _without(self, draft: Draft, lanes: Collection[Lane]) -> Draft:
        """The draft, rebuilt if it has changes of these; the lanes that stay keep their mark, because the number stays."""
        kept = [place for place, entry in enumerate(draft.entries) if entry.lane not in lanes]
        if len(kept) == len(draft.entries):
            return draft
        rest = Draft()
        rest.number = draft.number
        rest.entries = [draft.entries[place] for place in kept]
        rest.changes = [draft.changes[place] for place in kept]
        moved = {old: new for new, old in enumerate(kept)}
        rest.followers = [moved[place] for place in draft.followers if place in moved]
        rest.size_bytes = sum(map(self._size, rest.changes)) if self._size is not None else 0
        return rest
