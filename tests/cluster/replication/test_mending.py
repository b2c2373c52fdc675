"""A rotten file is replaced by another replica's, whatever is interrupted, and by nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest

from eventstore.broker.broker import open_broker
from eventstore.chunks.documents import write_file
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import EVENTS, MESSAGES
from eventstore.chunks.header import HEADER_BYTES as HEADER_LENGTH
from eventstore.chunks.scrubbing import ChunkCheck
from eventstore.errors import Corrupt
from eventstore.records.commit import FRAMING
from eventstore.server.verification.verified_files import Verified, events_of
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import read_event_folder
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs, broker_identity
from eventstore_cluster.replication.mending import FinalFiles, put_in_place
from eventstore_cluster.replication.peer_frames import FileWanted
from tests.cluster.replication.test_follower_sorting import SHARD
from tests.cluster.replication.test_message_log import SETTINGS
from tests.simulated_disk import SimulatedDisk
from tests.simulated_disk.disk import CrashMode
from tests.store.stepped import Stepped, raw

DATA: Final = Path("/data")
FIRST: Final = DATA / "events/0000000001.events"
FETCHED: Final = DATA / "events/0000000001.events.tmp"


@pytest.fixture
def disk(tmp_path: Path) -> SimulatedDisk:
    """A store with a sorted file."""
    disk = SimulatedDisk(3)
    store = Stepped(disk, tmp_path / "lmdb")
    for number in range(400):
        store.append(raw(f"a-{number}", f"c-{number}"))
    store.sort()
    store.close()
    return disk


def of(disk: SimulatedDisk) -> Verified:
    return events_of(read_event_folder(disk, DATA))


def fault(disk: SimulatedDisk, path: Path = FIRST) -> str | None:
    try:
        with ChunkCheck(disk, path, EVENTS, FRAMING) as check:
            check.read_all()
    except Corrupt as error:
        return error.message
    return None


def test_a_bit_that_changes_anywhere_in_a_sorted_file_is_found(disk: SimulatedDisk) -> None:
    size = len(disk.content(FIRST))
    assert fault(disk) is None
    for offset in (*range(0, 128, 9), *range(4096, size, 61), size - 1):
        disk.flip(FIRST, offset, 3)
        assert fault(disk) is not None, offset
        disk.flip(FIRST, offset, 3)
    assert fault(disk) is None


@pytest.mark.parametrize("mode", ["kept", "lost", "sectors"])
def test_a_crash_at_any_step_leaves_the_rotten_file_or_the_good_one(disk: SimulatedDisk, mode: CrashMode) -> None:
    good = disk.content(FIRST)
    disk.flip(FIRST, 5000, 1)
    rotten = disk.content(FIRST)
    write_file(disk, FETCHED, good)
    seen = set()

    def look(stopped: SimulatedDisk) -> None:
        left = stopped.survivors(mode)
        found = left.content(FIRST)
        assert found in (good, rotten)
        seen.add(found == good)
        if found == good:
            assert left.content(DATA / "cut/0000000001-rot-0") == rotten

    disk.at_each_operation(look)
    put_in_place(of(disk), 1, FETCHED)
    assert disk.crash(mode).content(FIRST) == good
    assert True in seen or mode != "kept"


def test_what_is_damaged_or_another_file_takes_no_place(disk: SimulatedDisk) -> None:
    good, second = disk.content(FIRST), disk.content(FIRST.with_name("0000000002.events"))
    disk.flip(FIRST, 5000, 1)
    rotten = disk.content(FIRST)
    for other in (rotten, second, good[:-1]):
        write_file(disk, FETCHED, other)
        with pytest.raises(Corrupt):
            put_in_place(of(disk), 1, FETCHED)
        assert disk.content(FIRST) == rotten
        assert not disk.exists(FETCHED)


async def test_a_file_of_messages_that_may_still_be_cut_back_is_neither_compared_nor_given_to_others(tmp_path: Path) -> None:
    FollowerLogs(OsFiles(), ServerSettings(data=tmp_path), SHARD, "n1").close()
    async with open_broker(tmp_path / "broker", SETTINGS, identity=broker_identity(SHARD), epoch=1) as broker:
        for _ in range(2):  # each epoch begins with a file
            broker.committer.begin_chunk()
            await broker.committer.drain()
        last = broker.engine.front.chunk
    logs = FollowerLogs(OsFiles(), ServerSettings(data=tmp_path), SHARD, "n1")
    ends: list[LogEnds | None] = [None]
    finals = FinalFiles(logs, lambda: ends[0], lambda: False)
    wanted = FileWanted(0, MESSAGES, last - 1, 0, HEADER_LENGTH)
    header = finals.folders[1].folder.read_header(last - 1)
    assert header.completed
    for committed, is_final in (None, False), (((0, 0), (last - 1, header.end)), False), (((0, 0), (last, 128)), True):
        ends[0] = committed
        assert finals.folders[1].is_final(header) == is_final
        assert (finals.read(wanted) is not None) == is_final
    logs.close()


def test_each_rotten_copy_keeps_a_name(disk: SimulatedDisk) -> None:
    good = disk.content(FIRST)
    for place in itertools.islice(itertools.count(), 2):
        disk.flip(FIRST, 5000 + place, 1)
        rotten = disk.content(FIRST)
        write_file(disk, FETCHED, good)
        put_in_place(of(disk), 1, FETCHED)
        assert disk.content(DATA / f"cut/0000000001-rot-{place}") == rotten


def test_a_file_that_is_gone_is_one_that_has_to_be_there_and_another_replicas_takes_its_place(disk: SimulatedDisk) -> None:
    good, numbers = disk.content(FIRST), of(disk).numbers()
    disk.remove(FIRST)
    assert of(disk).numbers() == numbers
    assert 1 in numbers
    write_file(disk, FETCHED, good)
    put_in_place(of(disk), 1, FETCHED)
    assert disk.content(FIRST) == good
