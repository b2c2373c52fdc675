"""A follower's log: the bytes of its leader's, over chunks, cuts and crashes at every operation of its disk."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from pathlib import Path

import pytest

from eventstore.chunks.folder import Ancestor, ChunkFolder
from eventstore.errors import Corrupt, FolderRefused, Poisoned, StorageFull
from eventstore.records.commit import FRAMING
from eventstore.store.data_folder import event_folder
from eventstore_cluster.replica.epochs import Beginning, LastEpoch
from eventstore_cluster.replica.places import NOWHERE, LogEnd
from eventstore_cluster.replication.logs.cutting import cut
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.logs.log_reader import Differs, LogReader
from eventstore_cluster.replication.logs.pieces import Documents, Payload, Piece, end_of
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.stepped import DATA, EVENTS, Stepped, raw

_BYTES = 1500


@dataclass
class Leader:
    """A store that appends, and the reader of its log. `ends`: where each of its batches ends."""

    directory: Path
    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk(1))
    epoch: int = 1
    ends: list[LogEnd] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Stepped(self.disk, self.directory / f"epoch-{self.epoch}", epoch=self.epoch)
        self.reader = LogReader(self.folder, FRAMING)

    @property
    def folder(self) -> ChunkFolder:
        return event_folder(self.disk, DATA, self.store.opened.uuid)

    @property
    def key(self) -> bytes:
        return self.store.engine.writer.key

    def append(self, batches: int, first: int = 0) -> None:
        for number in range(first, first + batches):
            name = f"e{self.epoch}-{number}"
            self.store.append(*(raw(f"{name}-{each}", f"c-{each}-{'x' * 60}") for each in range(3)))
            self.ends.append((self.store.engine.front.chunk, self.store.engine.front.end))

    def reopen(self, epoch: int) -> None:
        self.store.opened.close()
        self.epoch = epoch
        self.__post_init__()


def opened(disk: SimulatedDisk, leader: Leader) -> FollowerLog:
    folder = event_folder(disk, DATA, leader.store.opened.uuid)
    if not disk.exists(EVENTS):
        disk.make_folder(DATA)
        folder.create()
    return FollowerLog(folder, FRAMING, size_bytes=8192, preallocate_bytes=4096)


def pull(log: FollowerLog, leader: Leader, until: LogEnd | None = None, bytes_max: int = _BYTES) -> None:
    """Stores what the leader has more, piece by piece."""
    while piece := leader.reader.after(log.tail.end, log.last_crc, until or leader.ends[-1], bytes_max):
        log.store(Payload(leader.key, (piece,)))


def chunks(disk: SimulatedDisk, end: LogEnd) -> dict[str, bytes]:
    """Returns the contents of the chunks, the last one up to the log's end."""
    names = [name for name in disk.names(EVENTS) if name.endswith(".events")]
    return {
        name: disk.content(EVENTS / name)[: end[1] if int(name.partition(".")[0]) == end[0] else None] for name in sorted(names)
    }


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_a_follower_holds_the_same_bytes(leader: Leader) -> None:
    leader.append(40)
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    pull(log, leader)
    assert log.tail.end == leader.ends[-1] > (3, 0)
    assert log.tail.beginnings == (Beginning(1, NOWHERE),)
    assert chunks(disk, log.tail.end) == chunks(leader.disk, log.tail.end)


def test_where_a_log_will_end_is_known_before_it_is_stored(leader: Leader) -> None:
    leader.append(40)
    log = opened(SimulatedDisk(2), leader)
    while piece := leader.reader.after(log.tail.end, log.last_crc, leader.ends[-1], _BYTES):
        payload, start, crcs = Payload(leader.key, (piece,)), (log.tail.end, (7, 8), (1, 2)), (log.last_crc, 9, 0)
        expected = end_of((payload, None, None), start, crcs)
        log.store(payload)
        assert expected == ((log.tail.end, (7, 8), (1, 2)), (log.last_crc, 9, 0))
    assert log.tail.end == leader.ends[-1]
    documents = Documents((1, 3), ())
    assert end_of((None, payload, documents), start, crcs) == ((start[0], log.tail.end, (1, 3)), (crcs[0], log.last_crc, 0))


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 5, b"\xff" * 40, bytes(40)])
def test_what_is_no_record_has_no_crc_and_is_refused_when_it_is_stored(leader: Leader, data: bytes) -> None:
    leader.append(1)
    log = opened(SimulatedDisk(2), leader)
    pull(log, leader)
    piece = Piece(*log.tail.end, data)
    assert piece.last_crc == 0
    with pytest.raises(Corrupt):
        log.store(Payload(leader.key, (piece,)))


def test_a_piece_may_hold_many_batches_and_a_store_opens_what_was_written(leader: Leader) -> None:
    leader.append(40)
    disk = SimulatedDisk(2)
    disk.make_folder(DATA)
    disk.replace(DATA / "store.json", leader.disk.content(DATA / "store.json"))
    log = opened(disk, leader)
    pull(log, leader, bytes_max=1 << 20)
    log.close()
    store = Stepped(disk, leader.directory / "follower")
    assert store.state() == leader.store.state()


def test_sorted_chunks_are_sent_as_they_were_appended(leader: Leader) -> None:
    leader.append(40)
    disks = SimulatedDisk(2), SimulatedDisk(3)
    pull(opened(disks[0], leader), leader)
    assert leader.store.sort() > 2
    pull(log := opened(disks[1], leader), leader)
    assert chunks(disks[0], log.tail.end) == chunks(disks[1], log.tail.end)


def test_epochs_are_read_from_the_log_also_from_sorted_chunks(leader: Leader) -> None:
    leader.append(10)
    first = leader.ends[-1]
    leader.reopen(4)
    leader.append(30)
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    expected = (Beginning(1, NOWHERE), Beginning(4, first))
    assert log.tail.beginnings == expected
    assert log.tail.at_most(3) == LastEpoch(1, first)
    log.close()
    assert opened(disk, leader).tail.beginnings == expected
    leader.store.sort()
    assert opened(leader.disk, leader).tail.beginnings == expected


def test_a_log_says_which_of_its_chunks_were_sorted_when_it_was_opened(leader: Leader) -> None:
    leader.append(40)
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    assert log.sorted_through == 0
    log.close()
    assert opened(disk, leader).sorted_through == 0
    count = leader.store.sort()
    assert opened(leader.disk, leader).sorted_through == count == leader.ends[-1][0] - 1


@pytest.mark.parametrize("batch", [0, 3, 20, 38])
def test_a_log_is_cut_at_any_batch_and_goes_on(leader: Leader, batch: int) -> None:
    leader.append(40)
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    pull(log, leader)
    log.cut(leader.ends[batch])
    assert log.tail.end == leader.ends[batch]
    assert opened(disk, leader).tail.end == leader.ends[batch]
    assert any(name.startswith(f"{leader.ends[batch][0]:010d}-{leader.ends[batch][1]}-") for name in disk.names(DATA / "cut"))
    pull(log, leader)
    assert chunks(disk, log.tail.end) == chunks(leader.disk, log.tail.end)


def test_the_key_of_the_leader_is_kept_before_its_records_are(leader: Leader) -> None:
    leader.append(2)
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    keys = [leader.key]
    leader.reopen(2)
    leader.append(1)
    keys.append(leader.key)
    kept: list[bytes] = []

    def look(seen: SimulatedDisk) -> None:
        left = seen.survivors("kept")
        folder = event_folder(left, DATA, leader.store.opened.uuid)
        size = len(left.content(EVENTS / "0000000001.events").rstrip(b"\0"))
        kept.append(folder.read_key() if size > leader.ends[1][1] else b"")

    disk.at_each_operation(look)
    pull(log, leader)
    assert keys[0] != keys[1]
    assert set(kept) == {b"", keys[1]}


def test_a_log_is_cut_to_nothing(leader: Leader) -> None:
    leader.append(20)
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    pull(log, leader)
    log.cut(NOWHERE)
    assert log.tail.end == NOWHERE
    assert not chunks(disk, NOWHERE)
    pull(log, leader)
    assert chunks(disk, log.tail.end) == chunks(leader.disk, log.tail.end)


def test_the_end_of_a_chunk_is_not_the_beginning_of_the_next(leader: Leader) -> None:
    leader.append(20)
    last_of_first = leader.folder.read_header(1).end
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    pull(log, leader, (1, last_of_first))
    assert log.tail.end == (1, last_of_first)
    assert not leader.folder.read_header(1).reopened().completed
    assert sorted(chunks(disk, log.tail.end)) == ["0000000001.events"]


def crashes_of(disk: SimulatedDisk, work: Callable[[SimulatedDisk], object]) -> int:
    """Returns how many operations `work` takes, on a copy of the disk."""
    copy, count = disk.survivors("kept"), [0]
    copy.at_each_operation(lambda _: count.__setitem__(0, count[0] + 1))
    work(copy)
    return count[0]


@pytest.mark.parametrize("mode", CRASH_MODES)
@pytest.mark.parametrize("batch", [2, 17])
def test_a_cut_that_is_interrupted_anywhere_is_finished_or_did_not_begin(leader: Leader, mode: CrashMode, batch: int) -> None:
    leader.append(24)
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    log.close()
    end = leader.ends[batch]

    def work(disk: SimulatedDisk) -> None:
        opened(disk, leader).cut(end)

    for nth in range(1, crashes_of(disk, work) + 1):
        broken = disk.survivors("kept")
        broken.crash_at(nth)
        with contextlib.suppress(SimulatedCrash):
            work(broken)
        again = broken.crash(mode)
        log = opened(again, leader)
        assert log.tail.end in (end, leader.ends[-1]), nth
        pull(log, leader)
        assert chunks(again, log.tail.end) == chunks(leader.disk, log.tail.end), nth


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_whatever_is_interrupted_a_log_ends_with_a_batch_and_goes_on(leader: Leader, mode: CrashMode) -> None:
    leader.append(12)
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    log.close()
    before = leader.ends[-1]
    leader.append(14, 12)

    def work(disk: SimulatedDisk) -> None:
        pull(opened(disk, leader), leader)

    for nth in range(1, crashes_of(disk, work) + 1):
        broken = disk.survivors("kept")
        broken.crash_at(nth)
        with contextlib.suppress(SimulatedCrash):
            work(broken)
        again = broken.crash(mode)
        log = opened(again, leader)
        assert log.tail.end >= before, nth
        pull(log, leader)
        assert chunks(again, log.tail.end) == chunks(leader.disk, log.tail.end), nth


@pytest.mark.parametrize("operation", ["create", "preallocate", "write_at"])
def test_a_follower_whose_disk_is_full_keeps_what_it_has_and_goes_on_when_there_is_space(
    leader: Leader, operation: str
) -> None:
    leader.append(12)
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    log.close()
    before, filled = leader.ends[-1], 0
    leader.append(14, 12)
    for nth in itertools.count(1):
        full = disk.survivors("kept")
        log = opened(full, leader)
        full.fail(operation, nth, ENOSPC)
        with contextlib.suppress(StorageFull, Poisoned, OSError):
            pull(log, leader)
            break
        filled += 1
        again = full.crash("kept")
        log = opened(again, leader)
        assert log.tail.end >= before, nth
        pull(log, leader)
        assert chunks(again, log.tail.end) == chunks(leader.disk, log.tail.end), nth
    assert filled > 1


def test_a_leader_tells_a_record_that_is_not_its_own(leader: Leader) -> None:
    leader.append(5)
    end = leader.ends[2]
    pull(log := opened(SimulatedDisk(2), leader), leader, end)
    assert leader.reader.after(end, log.last_crc, leader.ends[-1], _BYTES) is not None
    for place, crc in ((end, log.last_crc ^ 1), ((1, end[1] - 1), log.last_crc), ((1, 7), 0)):
        with pytest.raises(Differs):
            leader.reader.after(place, crc, leader.ends[-1], _BYTES)


def test_what_does_not_follow_is_refused_and_changes_nothing(leader: Leader) -> None:
    leader.append(30)
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    pull(log, leader, leader.ends[1])
    held = chunks(disk, log.tail.end)
    piece = leader.reader.after(log.tail.end, log.last_crc, leader.ends[-1], _BYTES)
    assert piece is not None
    first = leader.reader.after(NOWHERE, 0, leader.ends[-1], _BYTES)
    assert first is not None
    assert first.begun is not None
    damaged = piece.data[:200] + bytes([piece.data[200] ^ 4]) + piece.data[201:]
    wrong: list[Piece] = [
        replace(piece, data=damaged),
        replace(piece, data=piece.data[:-3]),
        replace(piece, data=b""),
        replace(piece, offset=piece.offset + 8),
        replace(piece, chunk=2),
        first,
        replace(first, chunk=2, begun=replace(first.begun, number=2, first_sequence=7)),
    ]
    for each in wrong:
        with pytest.raises(Corrupt):
            log.store(Payload(leader.key, (each,)))
    with pytest.raises(FolderRefused, match="records of store"):
        log.store(Payload(leader.key, (replace(first, begun=replace(first.begun, store=type(first.begun.store)(int=5))),)))
    assert chunks(disk, log.tail.end) == held
    pull(log, leader)
    assert chunks(disk, log.tail.end) == chunks(leader.disk, log.tail.end)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_cut_at_the_end_of_what_a_shard_began_with_leaves_that_as_it_is(leader: Leader, is_sorted: bool) -> None:
    """Another replica led, and had of the shard nothing but this, when it wrote a record that this one lacks."""
    leader.append(20)
    last = leader.ends[-1][0] - 1
    pull(log := opened(disk := SimulatedDisk(2), leader), leader)
    log.close()
    if is_sorted:
        disk = leader.disk
        leader.store.sort()
    folder = replace(event_folder(disk, DATA, leader.store.opened.uuid), ancestors=(Ancestor(leader.store.opened.uuid, last),))
    header, before = folder.read_header(last), disk.content(folder.chunk_path(last))
    assert (header.sorted, header.completed) == (is_sorted, True)
    end = last, header.end

    def begun(disk: SimulatedDisk) -> FollowerLog:
        return FollowerLog(replace(folder, files=disk), FRAMING, size_bytes=8192, preallocate_bytes=4096)

    leader.store.opened.close()
    for nth in range(1, crashes_of(disk, lambda each: begun(each).cut(end)) + 1):
        broken = disk.survivors("kept")
        broken.crash_at(nth)
        with contextlib.suppress(SimulatedCrash):
            begun(broken).cut(end)
        again = broken.crash("lost")
        log = begun(again)
        assert log.tail.end in (end, leader.ends[-1]), nth
        assert again.content(folder.chunk_path(last)) == before, nth
    log.cut(end)
    assert (log.tail.end, log.folder.headers()[-1].number) == (end, last)
    assert again.content(folder.chunk_path(last)) == before


def test_what_a_shard_began_with_is_cut_neither_inside_nor_before_a_committed_record(leader: Leader) -> None:
    leader.append(30)
    leader.store.sort()
    folder = replace(leader.folder, ancestors=(Ancestor(leader.store.opened.uuid, 1),))
    end = folder.read_header(1).end
    assert folder.read_header(2).sorted, "so a record after it is committed"
    with pytest.raises(FolderRefused, match=r"2\.events: is sorted, and would have to be cut at byte 4096"):
        cut(folder, (1, end))
    with pytest.raises(FolderRefused, match=r"1\.events: is sorted, and would have to be cut"):
        cut(folder, (1, leader.ends[0][1]))


def test_a_sorted_chunk_is_never_cut(leader: Leader) -> None:
    leader.append(30)
    leader.store.sort()
    with pytest.raises(FolderRefused, match="is sorted"):
        opened(leader.disk, leader).cut(leader.ends[0])
