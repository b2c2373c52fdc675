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

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM

NO_COMMIT: Final = 0xFFFFFFFF
_KEPT_CHAINS_MAX: Final = 256  # together they hold each commit once at most: 4 bytes
_KEPT_COMMITS_MIN: Final = 64  # what is shorter is walked as quickly as found


def command_key(aggregate_id: str, command_id: str) -> int:
    """In-memory only: differs from process to process, which keeps outsiders from constructing collisions."""
    return hash((aggregate_id, command_id))


class TailFile:
    """One event file's commits, in commit order; a commit's place in this order is its ordinal."""

    __slots__ = (
        "_chains",
        "_chains_lock",
        "_undone",
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
        self._undone = 0
        self._chains: OrderedDict[str, array[int]] = OrderedDict()
        self._chains_lock = threading.Lock()

    def add_heads(self, aggregate_ids: Sequence[str], keys: Sequence[int], versions: Iterable[int]) -> list[int]:
        """Appends commits that lead their aggregates to these versions: the half that the next check needs. `keys` come from
        `command_key`. Returns of each the aggregate's commit before it in this file.

        The other half is `add_places`; until then they cannot be read, nor found.
        """
        heads = self.heads
        previous: list[int] = []
        before, found = heads.get, previous.append
        ordinals = list(range(len(self.versions), len(self.versions) + len(keys)))
        for aggregate_id, ordinal in zip(aggregate_ids, ordinals, strict=True):
            found(before(aggregate_id, NO_COMMIT))
            heads[aggregate_id] = ordinal
        owners = list(map(self.commands.setdefault, keys, ordinals))
        if owners != ordinals:
            for key, owner, ordinal in zip(keys, owners, ordinals, strict=True):
                if owner != ordinal:
                    self.collided.setdefault(key, []).append(ordinal)
        self.versions.extend(versions)
        self.previous.extend(previous)
        return previous

    def add_places(self, offset: int, lengths: Sequence[int], sequences: Sequence[int], last_count: int) -> None:
        """The other half: the records begin at `offset`, one behind the other; the last holds `last_count` events."""
        offsets = list(accumulate(lengths, initial=offset))
        end = offsets.pop()
        self.sequences.extend(sequences)
        self.offsets.extend(offsets)
        self.end = end
        self.next_sequence = sequences[-1] + last_count

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
            if not self.collided[key]:
                del self.collided[key]
        with self._chains_lock:
            self._undone += 1
            self._chains.pop(aggregate_id, None)
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
        end = self.end  # first: another thread may append meanwhile
        offsets, following = self.offsets, ordinal + 1
        return offsets[ordinal], offsets[following] if following < len(offsets) else end

    def first_version(self, ordinal: int) -> int:
        """The version of the commit's first event."""
        end = self.next_sequence  # first, as above
        sequences, following = self.sequences, ordinal + 1
        count = (sequences[following] if following < len(sequences) else end) - sequences[ordinal]
        return self.versions[ordinal] - count + 1

    def commits_of(self, aggregate_id: str, visible: int, steps_max: int | None = None) -> tuple[array[int], int] | None:
        """Ordinals, ascending, of the aggregate's commits, and how many of them, from the first, are below `visible`.

        The array is shared: it may grow. None, when more than `steps_max` commits would have to be walked to find them. Long
        chains are kept, and grow by what came since: neither a page nor a reader in turn with others walks them again.
        """
        undone, kept = self._undone, self._chains.get(aggregate_id)
        stop = kept[-1] if kept else -1
        newer = array("I")
        ordinal, previous = self.heads.get(aggregate_id, NO_COMMIT), self.previous
        while ordinal != NO_COMMIT and ordinal > stop:
            newer.append(ordinal)
            ordinal = previous[ordinal]
            if steps_max is not None and len(newer) > steps_max:
                return None
        newer.reverse()
        del newer[bisect_left(newer, visible) :]  # what is not visible may be taken back
        chain = newer
        if kept is not None or len(newer) >= _KEPT_COMMITS_MIN:
            chain = self._kept(aggregate_id, kept, newer, undone)
        return chain, bisect_left(chain, visible)

    def _kept(self, aggregate_id: str, kept: array[int] | None, newer: array[int], undone: int) -> array[int]:
        """The kept chain of the aggregate, grown by what a walk has found."""
        with self._chains_lock:
            if undone != self._undone:  # the walk may have gone astray: it counts for its reader alone, who looks again
                return newer if kept is None else kept + newer
            chain = self._chains.setdefault(aggregate_id, array("I") if kept is None else kept)
            self._chains.move_to_end(aggregate_id)
            if newer:
                chain.extend(newer[bisect_right(newer, chain[-1]) :] if chain else newer)
            if len(self._chains) > _KEPT_CHAINS_MAX:
                self._chains.popitem(last=False)
            return chain

    def ordinal_at(self, sequence: int) -> int:
        """The commit that holds `sequence`."""
        return bisect_right(self.sequences, sequence) - 1

    def written_commits(self, visible_sequence: int) -> int:
        """How many commits, from the first, end at or before `visible_sequence`, which is the end of a commit."""
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

    def before(self, file: TailFile) -> list[TailFile]:
        """The files before this one, newest first."""
        return [other for other in reversed(self.files) if other.number < file.number]

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
