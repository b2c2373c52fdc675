"""What a snapshot holds while the store is being written, and what it says of an end that is not clean."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eventstore.errors import Corrupt
from eventstore.model import ANY, NewEvent
from pyspark_eventstore.source.data_folders import find_data_folders
from pyspark_eventstore.source.snapshot import FolderSnapshot, WalkProgress, take_snapshot
from tests.spark.made import MadeStore, commits, three_states
from tests.store.stepped import together


def snapshot(path: Path, progress: WalkProgress | None = None) -> FolderSnapshot:
    [data_folder] = find_data_folders([str(path)])
    return take_snapshot(data_folder, progress)


def test_it_ends_where_the_store_does(tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    taken = snapshot(store.path)
    assert taken.last_sequence == store.sequence
    assert [file.header.state for file in taken.files] == store.states()
    store.close()
    assert snapshot(store.path).last_sequence == store.sequence


def test_a_batch_that_is_torn_at_any_byte_is_there_up_to_its_last_whole_commit(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    store.append_all(commits(10))
    sequence = store.sequence
    ends = [(snapshot(store.path).files[-1].end, sequence)]
    for place in range(3):  # one batch of three, end by end
        single = MadeStore(copy(store, tmp_path / f"copy-{place}"))
        single.append_all(commits(place + 1, first=10))
        ends.append((snapshot(single.path).files[-1].end, single.sequence))
        single.close()
    store.append_all(commits(3, first=10))
    whole = store.file(1).read_bytes()
    for cut in range(ends[0][0], ends[-1][0], 7):
        torn = tmp_path / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        shutil.copytree(store.path, torn, ignore=shutil.ignore_patterns("directory"))
        (torn / "events" / "0000000001.events").write_bytes(whole[:cut] + bytes(4096))
        assert snapshot(torn).last_sequence == max(last for end, last in ends if end <= cut)
    store.close()


def test_a_joint_commit_that_is_torn_at_any_byte_is_left_out(tmp_path: Path) -> None:
    """It is being written, or a recovery will cut it off and give its sequences to others."""
    store = MadeStore(tmp_path / "shard")
    store.append_all(commits(10))
    sequence, begin = store.sequence, snapshot(store.path).files[-1].end
    store.append_all([together("c", *((name, ANY, [NewEvent("A", bytes(30))]) for name in "xyz"))])
    end = snapshot(store.path).files[-1].end
    whole = store.file(1).read_bytes()
    for cut in range(begin, end, 7):
        torn = tmp_path / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        shutil.copytree(store.path, torn, ignore=shutil.ignore_patterns("directory"))
        progress = WalkProgress()
        (torn / "events" / "0000000001.events").write_bytes(whole[:cut] + bytes(cut % 2 * 4096))
        assert snapshot(torn, progress).last_sequence == sequence
        (torn / "events" / "0000000001.events").write_bytes(whole)
        assert snapshot(torn, progress).last_sequence == sequence + 3
    store.close()


def copy(store: MadeStore, target: Path) -> Path:
    shutil.copytree(store.path, target, ignore=shutil.ignore_patterns("directory", "lock"))
    return target


def test_rot_behind_which_good_records_lie_is_never_taken_for_the_end(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard", file_size_bytes=1024 * 1024)
    for first in range(0, 100, 10):
        store.append_all(commits(10, first=first))
    path = store.file(1)
    raw = bytearray(path.read_bytes())
    raw[5_000:5_512] = bytes(512)  # a sector of zeros
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match=r"though the file was durable up to byte \d+"):
        snapshot(store.path)
    store.close()


def test_an_end_that_was_noted_when_the_store_was_closed_is_believed(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    store.append_all(commits(10))
    end = snapshot(store.path).files[-1].end
    store.close()
    raw = store.file(1).read_bytes()
    store.file(1).write_bytes(raw[: end - 20] + bytes(20) + raw[end:])
    with pytest.raises(Corrupt, match=f"though the file was durable up to byte {end}"):
        snapshot(store.path)


def test_progress_is_kept_from_one_snapshot_to_the_next_and_over_files(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    progress = WalkProgress()
    for first in range(0, 300, 10):
        store.append_all(commits(10, first=first))
        if first % 70 == 0:
            store.sort()
        assert snapshot(store.path, progress).last_sequence == store.sequence
    assert len(store.states()) > 3
    store.close()
