"""The disk of a replica whose events are the real log on the simulated disk: written, cut, sorted and recovered as ever.

Its records are as long as the model's, and a chunk holds as many, so that places are the same. A crash may come in the middle
of what the disk was asked to do.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable
from typing import Final

from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.opening import OpenedChunks
from eventstore.chunks.record import PREFIX
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.records.commit import FRAMING, joint_place_of
from eventstore.store.data_folder import event_folder
from eventstore.store.sorted.sorting import sort_file, switch
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replication import follower_sorting
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.logs.log_reader import LogReader
from eventstore_cluster.replication.logs.pieces import Payload, Piece
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.disk import IN_A_CHUNK, RECORD_BYTES, Disk, Record, count, place
from tests.cluster.simulation.event_bytes import framed
from tests.simulated_disk import CRASH_MODES, SimulatedCrash, SimulatedDisk
from tests.store.stepped import DATA

_STORE: Final = uuid.UUID(int=7)
_SIZE_BYTES: Final = 16 * 1024
_OPERATIONS: Final = ((1, 3), (20, 24), (1, 30))
"""Where a crash comes, by the number of operations: a small write, one after the key of a new leader was kept, anywhere."""
_MODES: Final = (*CRASH_MODES, "sectors", "sectors")
_CRC: Final = PREFIX.part("crc", stop=PREFIX["crc"].end).unpack_from


def _joint(events: list[Record], first: int, at: int) -> tuple[int, int] | None:
    """Returns of how many records of a joint commit the one at `at` is which; None: it stands alone. Half of what is appended
    at once, into one chunk, is a joint commit. `first`: where these events begin.
    """
    begin = max(first, at - at % IN_A_CHUNK)
    end = min(first + len(events), at - at % IN_A_CHUNK + IN_A_CHUNK)
    return (end - begin, at - begin) if end - begin > 1 and events[begin - first][1] % 2 else None


class Shipment(list[Record]):
    """What a leader sends of its events, with the bytes."""

    def __init__(self, records: list[Record], payload: Payload) -> None:
        super().__init__(records)
        self.payload = payload


class ByteDisk(Disk):
    """`raw`: the bytes of the records of events, of which those up to `synced` are in the files."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._raw: list[bytes] = []
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._raw.clear()
        self._files = SimulatedDisk(self._seed)
        self._files.make_folder(DATA)
        self._folder().create()
        self.sorted = 0
        self._open()

    def _folder(self) -> ChunkFolder:
        return event_folder(self._files, DATA, _STORE)

    def _open(self) -> None:
        self._front: FrontBuffer | None = None
        self._writer: ChunkWriter | None = None
        self._doing: Callable[[], None] | None = None
        self._cut_to: int | None = None
        self._log = FollowerLog(self._folder(), FRAMING, size_bytes=_SIZE_BYTES, preallocate_bytes=4096)
        self.sorted = self._log.sorted_through
        self._reader = LogReader(self._folder(), FRAMING)

    # a leader

    def lead(self, epoch: int) -> None:
        """Opens the log for writing."""
        self._log.close()
        opened = OpenedChunks(
            self._folder(), FRAMING, size_bytes=_SIZE_BYTES, preallocate_bytes=4096, sync=True, clock=lambda: 1.0,
            epoch=epoch,
        )  # fmt: skip
        for header in opened.headers[-1:]:
            file = self._files.open(self._folder().chunk_path(header.number))
            if not header.sorted:
                opened.load(header, file, lambda *_: None)
            file.close()
        opened.finish()
        self._front, self._writer = opened.front, opened.writer

    def append(self, payload: list[list[Record]]) -> None:
        events, first = payload[0], len(self.records[0])
        super().append(payload)
        if self._front is None:
            if isinstance(events, Shipment):
                data = b"".join(piece.data for piece in events.payload.pieces)
                self._raw += [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
                self._check_end(len(self._raw))
                shipped = events.payload
                self._doing = lambda: self._log.store(shipped)
            return
        for at, record in enumerate(events, first):
            if at % IN_A_CHUNK == 0:
                self._front.begin_chunk()
            joint = _joint(events, first, at)
            self._raw.append(raw := framed(record, at + 1, self._front.witness(), self._front.durable, joint))
            self._front.extend([raw], _CRC(raw)[0], len(raw), 1)

    def _write(self) -> None:
        assert self._front is not None
        assert self._writer is not None
        while (segment := self._front.take()) is not None:
            self._writer.write(segment)

    def sync(self, counts: list[int]) -> None:
        super().sync(counts)
        if self._front is None:
            doing, self._doing = self._doing, None
            if doing is not None:
                doing()
        else:
            self._write()
            self.synced[0] = len(self.records[0])

    @property
    def last_crcs(self) -> tuple[int, ...]:
        return (self._crc(len(self._raw)), *super().last_crcs[1:])

    def _crc(self, at: int) -> int:
        return int(_CRC(self._raw[at - 1])[0]) if at else 0

    def holds(self, start: LogEnds, last_crcs: tuple[int, ...]) -> bool:
        at = count(start[0])
        if at > len(self._raw) or self._crc(at) != last_crcs[0]:
            return False
        numbers = (self.records[0][at - 1][1] if at else 0, *last_crcs[1:])
        return super().holds(start, numbers)

    def after(self, start: LogEnds, most: int) -> list[list[Record]]:
        """As a leader: from the files, or from memory what is not in them; a chunk that begins is read from its file."""
        _, *others = super().after(start, most)
        at = count(start[0])
        assert self._writer is not None
        if at < self.synced[0]:
            piece = self._reader.after(start[0], self._crc(at), place(self.synced[0]), most * RECORD_BYTES)
            assert piece is not None
        elif at % IN_A_CHUNK == 0 or at == len(self._raw):
            return [[], *others]
        else:
            end = min(at + most, at - at % IN_A_CHUNK + IN_A_CHUNK, len(self._raw))
            while self._is_within(end):  # a leader sends whole batches from memory
                end += 1
            piece = Piece(*start[0], b"".join(self._raw[at:end]))
        records = self.records[0][at : at + len(piece.data) // RECORD_BYTES]
        return [Shipment(records, Payload(self._writer.key, (piece,))), *others]

    def _is_within(self, at: int) -> bool:
        """Whether a log of so many records would end within a joint commit."""
        joint = joint_place_of(self._raw[at - 1]) if at else None
        return joint is not None and joint.place + 1 < joint.records

    def _check_end(self, at: int) -> None:
        if self._is_within(at):
            raise Broken(f"the log ends within a joint commit, after {at} records")

    # a follower

    def begin_cut(self, ends: LogEnds) -> None:
        self._doing, self._cut_to = lambda: self._cut_log(ends), count(ends[0])

    def _cut_log(self, ends: LogEnds) -> None:
        if self._log.tail.end != ends[0]:
            self._log.cut(ends[0])

    def cut(self, ends: LogEnds) -> None:
        self._doing = self._cut_to = None
        self._cut_log(ends)
        super().cut(ends)
        del self._raw[count(ends[0]) :]
        self._check_end(len(self._raw))

    def sort(self, committed: LogEnds) -> None:
        """Sorts the next file, if that may be."""
        number = self.sorted + 1
        if number * IN_A_CHUNK < self.synced[0] and follower_sorting.may_sort(committed, number):
            sort_file(self._folder(), number)
            switch(self._folder(), number)
            self.sorted = number

    # crashes

    def wipe(self) -> None:
        super().wipe()
        self._begin_empty()

    def lose_power(self, choice: random.Random) -> None:
        synced, cut_to = self.synced[0], self._cut_to
        self._interrupt(choice)
        self._crash(choice)
        if choice.random() < 0.2:
            self._files.crash_at(choice.randint(*choice.choice(_OPERATIONS)))
        try:
            self._open()
        except SimulatedCrash:
            self._crash(choice)
            self._open()
        self._files.crash_at(1 << 40)
        self._found(synced, cut_to)
        super().lose_power(choice)

    def _interrupt(self, choice: random.Random) -> None:
        """Has the power fail in the middle of what the disk does, if it does anything."""
        doing = self._write if self._front is not None else self._doing
        if doing is None or choice.random() < 0.1:
            return
        self._files.crash_at(choice.randint(*choice.choice(_OPERATIONS)))
        with contextlib.suppress(SimulatedCrash):
            doing()

    def _crash(self, choice: random.Random) -> None:
        self._files = self._files.crash(choice.choice(_MODES))

    def _found(self, synced: int, cut_to: int | None) -> None:
        """Takes for what it has what the log has after a start: all that was synced, or as many records as it was cut to."""
        end = self._log.tail.end
        left = count(end)
        if left < synced and left != cut_to:
            raise Broken(f"the log ends after {left} records, of which {synced} were synced, when it was cut to {cut_to}")
        self._check_end(left)
        if place(left) != end or self._log.last_crc != self._crc(left):
            raise Broken(f"the log ends at {end} with another record than it had")
        del self.records[0][left:], self._raw[left:]
        self.synced[0] = left
