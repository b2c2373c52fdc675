"""Which files a replica fetches before it opens its folder; a crash on the way leaves them missing, or there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from eventstore.chunks.documents import write_file
from eventstore.errors import FolderRefused
from eventstore.records.commit import FRAMING
from eventstore.store.data_folder import read_event_folder, read_store
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.lost_files import LostFiles
from eventstore_cluster.replication.mending import put_in_place
from tests.cluster.replication.test_follower_sorting import SHARD
from tests.simulated_disk import SimulatedDisk
from tests.simulated_disk.disk import CrashMode
from tests.store.stepped import Stepped, raw

DATA: Final = Path("/data")


def path_of(number: int) -> Path:
    return DATA / f"events/{number:010d}.events"


@pytest.fixture
def disk(tmp_path: Path) -> SimulatedDisk:
    """A folder with two sorted files and more that are not."""
    disk = SimulatedDisk(3)
    store = Stepped(disk, tmp_path / "lmdb")
    number = 0
    while store.engine.front.chunk < 5:
        store.append(raw(f"a-{number}", f"c-{number}"))
        number += 1
    store.sort(files=2)
    store.close()
    return disk


def lost_files(disk: SimulatedDisk) -> LostFiles:
    return LostFiles(disk, DATA, replace(SHARD, store=read_store(disk, DATA)[0]))


def lost(disk: SimulatedDisk) -> list[int]:
    return [number for _, number in lost_files(disk).found()]


def opened(disk: SimulatedDisk) -> FollowerLog:
    return FollowerLog(read_event_folder(disk, DATA), FRAMING, size_bytes=8192, preallocate_bytes=4096)


def test_sorted_files_that_are_missing_may_be_fetched_and_later_ones_only_if_all_before_are_sorted(disk: SimulatedDisk) -> None:
    folder = read_event_folder(disk, DATA)
    assert [folder.read_header(number).sorted for number in (1, 2, 3, 4)] == [True, True, False, False]
    assert lost(disk) == []
    disk.remove(path_of(2))
    assert lost(disk) == [2]
    disk.remove(path_of(1))
    assert lost(disk) == [1, 2]
    disk.remove(path_of(4))
    assert lost(disk) == [1, 2], "the third one is not sorted"


def test_a_folder_that_is_new_lacks_nothing() -> None:
    assert LostFiles(SimulatedDisk(3), DATA, SHARD).found() == []


@pytest.mark.parametrize("mode", ["kept", "lost", "sectors"])
def test_a_crash_at_any_step_leaves_the_file_missing_or_there_and_the_folder_opens_once_it_is(
    disk: SimulatedDisk, mode: CrashMode
) -> None:
    good = disk.content(path_of(1))
    disk.remove(path_of(1))
    disk.sync_folder(path_of(1).parent)
    ((of, _),) = lost_files(disk).found()
    seen = set()

    def look(stopped: SimulatedDisk) -> None:
        left = stopped.survivors(mode)
        there = left.exists(path_of(1))
        seen.add(there)
        assert lost(left) == ([] if there else [1])
        if there:
            assert left.content(path_of(1)) == good
            opened(left).close()
        else:
            with pytest.raises(FolderRefused, match="is missing; restore it"):
                opened(left)

    disk.at_each_operation(look)
    fetched = path_of(1).with_name(f"{path_of(1).name}.tmp")
    write_file(disk, fetched, good)
    put_in_place(of, 1, fetched)
    crashed = disk.crash(mode)
    assert crashed.content(path_of(1)) == good
    opened(crashed).close()
    assert seen == ({False, True} if mode == "kept" else {False})
