"""A folder is told from a copy and from another one; a first start that ends half way makes no stranger of it."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from eventstore.chunks.files import File, OsFiles
from eventstore.errors import FolderRefused
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs
from eventstore_cluster.replication.logs.incarnations import DOCUMENT, MARK, next_incarnation

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


def start(files: OsFiles, folder: Path) -> tuple[str, ...]:
    logs = FollowerLogs(files, ServerSettings(data=folder), SHARD, "n1")
    logs.close()
    return logs.incarnation.earlier


@pytest.mark.parametrize("name", ["broker.json", MARK, DOCUMENT])
def test_a_folder_whose_first_start_ended_half_way_is_still_a_new_one(tmp_path: Path, name: str) -> None:
    with pytest.raises((OSError, FolderRefused), match="Input/output error"):
        start(FailingFiles(name), tmp_path / "shard-0")
    assert (tmp_path / "shard-0" / "store.json").exists()
    assert start(OsFiles(), tmp_path / "shard-0") == ("new",)


def test_a_folder_remembers_its_starts_and_belongs_to_one_node(tmp_path: Path) -> None:
    folder, files = tmp_path / "shard-0", OsFiles()
    assert start(files, folder) == ("new",)
    first, token = start(files, folder)
    assert (first, len(token)) == ("new", 16)
    with pytest.raises(FolderRefused, match="a replica of node n1, this is n2"):
        next_incarnation(files, folder, "n2")
