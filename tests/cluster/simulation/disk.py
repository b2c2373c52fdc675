"""The log of a replica on a simulated disk: two kinds of records, of which those after the last sync may be lost, and
documents, each of which is replaced durably.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field

from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.places import NOWHERE, LogEnd, LogEnds

KINDS = 2
IN_A_CHUNK = 7
RECORD_BYTES = 700  # more than a sector
Record = tuple[int, int]
"""The epoch, and a number that stands for the content."""
Document = tuple[LogEnd, bytes]
"""The version that wrote it, and its content."""


def place(count: int) -> LogEnd:
    """Returns where a log of so many records ends."""
    if not count:
        return NOWHERE
    chunk, before = divmod(count - 1, IN_A_CHUNK)
    return (chunk + 1, 4096 + RECORD_BYTES * (before + 1))


def count(end: LogEnd) -> int:
    """Returns how many records end at or before this place."""
    return 0 if end == NOWHERE else (end[0] - 1) * IN_A_CHUNK + (end[1] - 4096) // RECORD_BYTES


@dataclass
class Disk:
    """`incarnations`: tokens of which the registry may hold one, the latest last. `documents`: by name; `version`:
    which one they have at least. `arriving`: documents that are being replaced. `sorted`: how many files are, and so final.
    `linked`: how many were taken over from another shard. `finished`: it is the folder of a store, no clone in the making.
    """

    records: tuple[list[Record], ...] = field(default_factory=lambda: tuple([] for _ in range(KINDS)))
    synced: list[int] = field(default_factory=lambda: [0] * KINDS)
    incarnations: list[str] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)
    version: LogEnd = NOWHERE
    led: bool = False
    arriving: dict[str, Document] = field(default_factory=dict)
    sorted: int = 0
    linked: int = 0
    finished: bool = True

    @property
    def ends(self) -> LogEnds:
        return tuple(place(len(records)) for records in self.records)

    @property
    def synced_ends(self) -> LogEnds:
        return tuple(place(synced) for synced in self.synced)

    @property
    def last_crcs(self) -> tuple[int, ...]:
        return tuple(records[-1][1] if records else 0 for records in self.records)

    def tails(self) -> tuple[LogTail, ...]:
        """Returns what the synced part of each log ends with, read from its records."""
        return tuple(_tail(records[:synced]) for records, synced in zip(self.records, self.synced, strict=True))

    def holds(self, start: LogEnds, last_crcs: tuple[int, ...]) -> bool:
        """Whether the log has records up to `start`, and those before it are the ones with these numbers."""
        for records, end, crc in zip(self.records, start, last_crcs, strict=False):
            at = count(end)
            if at > len(records) or (at and records[at - 1][1] != crc):
                return False
        return True

    def has_durable(self, other: Disk, ends: LogEnds) -> bool:
        """Whether its synced records up to `ends` are those of the other one."""
        for records, synced, others, end in zip(self.records, self.synced, other.records, ends, strict=False):
            at = count(end)
            if at > synced or records[:at] != others[:at]:
                return False
        return True

    def after(self, start: LogEnds, most: int) -> list[list[Record]]:
        return [records[count(end) : count(end) + most] for records, end in zip(self.records, start, strict=False)]

    def documents_after(self, version: LogEnd) -> dict[str, Document]:
        """Returns all documents, if the version is of an earlier epoch than theirs."""
        if version[0] < self.version[0]:
            return dict(self.documents)
        return {name: document for name, document in self.documents.items() if document[0] > version}

    def replaced(self, version: LogEnd) -> None:
        """The documents that arrived are on the disk, all of them."""
        self.documents |= self.arriving
        self.arriving, self.version, self.led = {}, version, False

    def begin(self, incarnation: str) -> None:
        """A process starts in the folder, by a new incarnation."""
        self.incarnations.append(incarnation)

    def finish(self) -> None:
        """The folder of a clone becomes that of a store, durably."""
        self.finished = True

    def lead(self, epoch: int) -> None:
        """The process leads: what is appended from now on is its own."""

    def begin_cut(self, ends: LogEnds) -> None:
        """`cut` follows, unless the machine crashes before."""

    def sort(self, committed: LogEnds) -> None:
        """Sorts what may be sorted, now that this is committed."""
        self.sorted = max(self.sorted, min(committed[0][0] - 1, self.synced[0] // IN_A_CHUNK))

    def link(self, other: Disk, through: int) -> None:
        """Takes over the first records of another shard, durably."""
        self.records[0][:] = other.records[0][:through]
        self.synced[0] = len(self.records[0])

    def append(self, payload: list[list[Record]]) -> None:
        for records, more in zip(self.records, payload, strict=True):
            records.extend(more)

    def sync(self, counts: list[int]) -> None:
        self.synced = [max(synced, count) for synced, count in zip(self.synced, counts, strict=True)]

    def cut(self, ends: LogEnds) -> None:
        for kind, end in enumerate(ends[:KINDS]):
            del self.records[kind][count(end) :]
            self.synced[kind] = min(self.synced[kind], count(end))
        self.sorted = min(self.sorted, self.synced[0] // IN_A_CHUNK)

    def wipe(self) -> None:
        """Loses the folder and everything in it."""
        self.records = tuple([] for _ in range(KINDS))
        self.synced = [0] * KINDS
        self.incarnations = []
        self.documents, self.version, self.arriving, self.led = {}, NOWHERE, {}, False
        self.sorted = self.linked = 0

    def lose_power(self, choice: random.Random) -> None:
        """Keeps what was synced, and of the rest a beginning; of the documents that arrived some, without their version."""
        self.documents |= {name: document for name, document in self.arriving.items() if choice.random() < 0.5}
        self.arriving = {}
        for kind, records in enumerate(self.records):
            del records[choice.randint(self.synced[kind], len(records)) :]
            self.synced[kind] = len(records)


def _tail(records: list[Record]) -> LogTail:
    """Epochs follow each other in a log, so that each of them is one range of it."""
    tail, end = LogTail(), 0
    while end < len(records):
        epoch = records[end][0]
        end = bisect_right(records, epoch, lo=end, key=_epoch)
        tail = tail.grow(epoch, place(end))
    return tail


def _epoch(record: Record) -> int:
    return record[0]
