"""Snapshots for a reader that wants all events of its shards at once: a query, a rebuild, a comparison.

A stream, or an export, that does not find a new shard yet reads it later. A query would leave its events out, without an error:
the parent no longer hands them out, once the parent's folder says that it was split. So a query is refused until the events are
there.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.errors import FolderRefused
from pyspark_eventstore.source.data_folders import names_one_store
from pyspark_eventstore.source.lineage import SnapshotLineage, check_complete
from pyspark_eventstore.source.snapshot import FolderSnapshot, take_snapshots
from pyspark_eventstore.source.source_options import Offsets


def take_whole_snapshots(
    paths: Sequence[str], *, after: Offsets | None = None, upto: Offsets | None = None, permissive: bool = False
) -> list[FolderSnapshot]:
    """Takes a snapshot of every data folder at `paths`, of which the events after `after`, up to `upto`, are to be read. A
    single folder that is named is one shard, and is read without shards that were split off from it. `permissive`: a folder may
    end early, because its end may be damaged.

    Raises:
        FolderRefused: the folder of a shard that was split off is missing, or ends before the split; or a data folder is
            refused.
        Corrupt: a header, or the ongoing file, is damaged.
        InvalidArgument: a path names a file system that is not mounted.
    """
    snapshots = take_snapshots(paths, permissive=permissive)
    if not names_one_store(paths):
        _check_there(snapshots, after or {})
    if not permissive:
        check_complete(snapshots, after or {}, upto or {})
    return snapshots


def _check_there(snapshots: Sequence[FolderSnapshot], after: Offsets) -> None:
    folders = [each.data_folder for each in snapshots]
    lineage, here = SnapshotLineage(snapshots), {each.store for each in folders}
    for each in folders:
        try:
            lineage.read_by(each, after, here)
        except FolderRefused as error:
            raise FolderRefused(each.path, f"{error.fields['why']}; or read each folder alone, without these events") from None
