"""The tail: what memory knows of the event files that are not sorted yet. The last of them is the one being written.

Everything an aggregate needs is in arrays and in two dicts of plain strings and ints per file. Python's garbage
collector does not look into those: five million aggregates in objects of their own would cost it seconds, here they
cost it nothing.

Per commit: where its record begins, its first sequence, the version it led to, and the commit of the same aggregate
before it (a linked list through an array). `heads`: aggregate id → its last commit. `commands`: hash of (aggregate id,
command id) → commit; a hit is always verified against the record, so that a collision of hashes costs a read and never
an event.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM

NO_COMMIT: Final = 0xFFFFFFFF


def command_key(aggregate_id: str, command_id: str) -> int:
    """In-memory only: differs from process to process, which keeps outsiders from constructing collisions."""
    return hash((aggregate_id, command_id))


class TailFile:
    """One event file's commits, in commit order; a commit's place in this order is its ordinal."""

    __slots__ = (
        "_walked",
        "collided",
        "commands",
        "end",
        "file",
        "first_sequence",
        "heads",
        "next_sequence",
        "number",
        "offsets",
        "previous",
        "sequences",
        "sorting",
        "versions",
    )  # fmt: skip

    def __init__(self, number: int, first_sequence: int) -> None:
        self.number = number
        self.file: File | None = None  # of the unsorted file, also after its name belongs to the sorted one
        self.first_sequence = self.next_sequence = first_sequence
        self.end = RECORDS_FROM
        self.offsets = array("I")
        self.sequences = array("Q")
        self.versions = array("Q")
        self.previous = array("I")
        self.heads: dict[str, int] = {}
        self.commands: dict[int, int] = {}
        self.collided: dict[int, list[int]] = {}
        self.sorting = False
        self._walked: tuple[str, array[int]] = ("", array("I"))

    def add(self, aggregate_id: str, key: int, offset: int, length: int, sequence: int, version: int, count: int) -> None:
        """Appends a commit that leads its aggregate to `version`. `key` comes from `command_key`."""
        ordinal = len(self.offsets)
        self.offsets.append(offset)
        self.sequences.append(sequence)
        self.versions.append(version)
        heads = self.heads
        self.previous.append(heads.get(aggregate_id, NO_COMMIT))
        heads[aggregate_id] = ordinal
        if self.commands.setdefault(key, ordinal) != ordinal:
            self.collided.setdefault(key, []).append(ordinal)
        self.end = offset + length
        self.next_sequence = sequence + count

    def undo_last(self, aggregate_id: str, key: int) -> None:
        """Takes back the last `add`, which was for this aggregate and key."""
        ordinal = len(self.offsets) - 1
        before = self.previous[ordinal]
        if before == NO_COMMIT:
            del self.heads[aggregate_id]
        else:
            self.heads[aggregate_id] = before
        if self.commands[key] == ordinal:
            del self.commands[key]
        else:
            self.collided[key].remove(ordinal)
        self._walked = ("", array("I"))
        self.end = self.offsets.pop()
        self.next_sequence = self.sequences.pop()
        self.versions.pop()
        self.previous.pop()

    def version(self, aggregate_id: str) -> int | None:
        """The aggregate's version after its last commit in this file; None where it has none here."""
        ordinal = self.heads.get(aggregate_id)
        return None if ordinal is None else self.versions[ordinal]

    def candidates(self, key: int) -> list[int]:
        """Ordinals of the commits that may be the one with this key."""
        ordinal = self.commands.get(key)
        return [] if ordinal is None else [ordinal, *self.collided.get(key, ())]

    def extent(self, ordinal: int) -> tuple[int, int]:
        """Where the commit's record begins and ends."""
        end, offsets, following = (
            self.end,
            self.offsets,
            ordinal + 1,
        )  # `end` first: another thread may append meanwhile
        return offsets[ordinal], offsets[following] if following < len(offsets) else end

    def commits_of(self, aggregate_id: str, from_version: int, to_version: int) -> array[int]:
        """Ordinals, ascending, of the aggregate's commits that hold a version in [from_version, to_version].

        The first of them may begin in front of `from_version` and the last end behind `to_version`.
        """
        chain = self._chain(aggregate_id)
        at = self.versions.__getitem__
        first = bisect_left(chain, from_version, key=at)
        last = bisect_left(chain, to_version, key=at)
        return chain[first : last + 1]

    def _chain(self, aggregate_id: str) -> array[int]:
        """All commits of the aggregate here. The last one asked for is kept, so that paging does not walk it again."""
        walked_id, walked = self._walked
        if walked_id != aggregate_id:
            walked = array("I")
        stop = walked[-1] if walked else NO_COMMIT
        newer = array("I")
        ordinal = self.heads.get(aggregate_id, NO_COMMIT)
        previous = self.previous
        while ordinal not in (NO_COMMIT, stop):
            newer.append(ordinal)
            ordinal = previous[ordinal]
        newer.reverse()
        chain = walked + newer if ordinal == stop else newer
        self._walked = (aggregate_id, chain)
        return chain

    def ordinal_at(self, sequence: int) -> int:
        """The commit that holds `sequence`."""
        return bisect_right(self.sequences, sequence) - 1

    def written_commits(self, visible_sequence: int) -> int:
        """How many commits, from the first, end at or before `visible_sequence`."""
        if visible_sequence >= self.next_sequence - 1:
            return len(self.offsets)
        return bisect_right(self.sequences, visible_sequence)


class Tail:
    """All unsorted files, oldest first. There is always a current one once something was appended."""

    __slots__ = ("files",)

    def __init__(self) -> None:
        self.files: list[TailFile] = []

    @property
    def current(self) -> TailFile:
        return self.files[-1]

    def begin(self, number: int, first_sequence: int) -> TailFile:
        file = TailFile(number, first_sequence)
        self.files = [*self.files, file]  # readers on other threads keep the list they hold
        return file

    def drop(self, file: TailFile) -> None:
        self.files = [other for other in self.files if other is not file]

    def version(self, aggregate_id: str) -> int | None:
        for file in reversed(self.files):
            ordinal = file.heads.get(aggregate_id)
            if ordinal is not None:
                return file.versions[ordinal]
        return None

    def find(self, key: int, matches: Callable[[TailFile, int], bool]) -> tuple[TailFile, int] | None:
        """The commit with this key for which `matches` says yes."""
        for file in self.files:
            if key in file.commands:
                for ordinal in file.candidates(key):
                    if matches(file, ordinal):
                        return file, ordinal
        return None
