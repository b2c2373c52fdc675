"""A folder is told from a copy and from another one; a first start that ends half way makes no stranger of it."""

from __future__ import annotations

import errno
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.chunks.files import File, OsFiles
from eventstore.errors import FolderRefused
from eventstore.records.splits import Split
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import STORE, ShardIdentity, read_store, shard_of
from eventstore.store.opening import note_shard
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs
from eventstore_cluster.replication.logs.incarnations import DOCUMENT, MARK, next_incarnation
from eventstore_cluster.replication.logs.leader_documents import LeaderDocuments

SHARD = ShardIdentity(uuid.UUID(int=1), 0, ((0, 4095),), uuid.UUID(int=2))


class FailingFiles(OsFiles):
    """A disk that cannot create this file."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        if create and path.name.startswith(self._name):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().open(path, create=create, write=write)


class FullDisk(OsFiles):
    """A disk that has room for so many more names."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        if create:
            self._take()
        return super().open(path, create=create, write=write)

    def make_folder(self, path: Path) -> None:
        self._take()
        super().make_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self._take()
        super().rename(source, target)

    def _take(self) -> None:
        self._room -= 1
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")


def start(files: OsFiles, folder: Path) -> tuple[str, ...]:
    logs = FollowerLogs(files, ServerSettings(data=folder), SHARD, "n1")
    logs.close()
    return logs.incarnation.earlier


@pytest.mark.parametrize("name", ["broker.json", MARK, DOCUMENT])
def test_a_folder_whose_first_start_ended_half_way_is_still_a_new_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(FolderRefused, match="Input/output error"):
        start(FailingFiles(name), tmp_path / "shard-0")
    assert (tmp_path / "shard-0" / "store.json").exists()
    assert start(OsFiles(), tmp_path / "shard-0") == ("new",)


def test_a_full_disk_is_a_reason_in_words_whatever_file_a_start_cannot_write(tmp_path: Path) -> None:
    start(OsFiles(), tmp_path / "old")
    for name, rooms in (("new-{}", 8), ("old", 3)):
        for room in range(rooms):
            folder = tmp_path / name.format(room)
            with pytest.raises(FolderRefused, match=f"^{folder}.*No space left on device; free some space$"):
                start(FullDisk(room), folder)
    assert start(FullDisk(100), tmp_path / "old")[0] == "new"


class FullLeader(LeaderDocuments):
    """The files of a leader on a disk that is full."""

    open = FullDisk.open
    _room, _take = 0, FullDisk._take


def test_a_full_disk_is_a_reason_in_words_also_where_leading_begins_and_where_a_split_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "shard-0"
    start(OsFiles(), folder)
    with pytest.raises(FolderRefused, match="No space left on device; free some space"):
        FullLeader(folder, 1, lambda: None).begin()
    with pytest.raises(FolderRefused, match="No space left on device; free some space"):
        note_shard(FullDisk(0), folder, SHARD)


def test_a_replica_that_was_away_during_a_split_notes_it_in_its_folder_at_its_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "shard-0"
    start(OsFiles(), folder)
    now = replace(SHARD, slots=((0, 2047),), splits=(Split(2, 0, 1, 50),))
    FollowerLogs(OsFiles(), ServerSettings(data=folder), now, "n1").close()
    assert shard_of(folder, read_store(OsFiles(), folder)[1]) == now
    before = (folder / STORE).stat().st_ino
    FollowerLogs(OsFiles(), ServerSettings(data=folder), now, "n1").close()
    assert (folder / STORE).stat().st_ino == before, "what it says already is not written again"


def test_a_folder_remembers_its_starts_and_belongs_to_one_node(tmp_path: Path) -> None:
    folder, files = tmp_path / "shard-0", OsFiles()
    assert start(files, folder) == ("new",)
    first, token = start(files, folder)
    assert (first, len(token)) == ("new", 16)
    with pytest.raises(FolderRefused, match="a replica of node n1, this is n2"):
        next_incarnation(files, folder, "n2")
