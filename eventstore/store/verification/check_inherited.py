"""Checks that nothing was added to the event files that a shard began with when it was split off."""

from __future__ import annotations

from pathlib import Path

from eventstore.chunks.files import Files
from eventstore.store.data_folder import CLUSTER, read_store, shard_of
from eventstore.store.verification.file_contents import FileContents
from eventstore.store.verification.findings import Findings


def check_inherited(files: Files, path: Path, contents: FileContents, findings: Findings) -> None:
    """Reports a finding if the last file that the shard of folder `path` began with has later events. `contents`: of that file.

    Raises:
        FolderRefused, Corrupt: the folder holds no store or shard that can be read.
    """
    _, document = read_store(files, path)
    if contents.header is None or not contents.columns or CLUSTER not in document:
        return
    shard = shard_of(path, document)
    through = next((split.through for split in shard.splits if split.child == shard.shard), None)
    last = contents.header.first_sequence + int(contents.ints("commit_count").sum()) - 1
    if through is not None and last > through:
        findings.note(
            f"{contents.name} has events {through + 1:,} to {last:,}, though shard {shard.shard} began with this file and "
            f"event {through:,}: an earlier version added them. They are this shard's and are read; but another "
            "replica may have the file without them, and cannot follow then. If `eventstore cluster status` shows such a one "
            "out of sync, stop its node, remove its folder of this shard, and start it: it is copied again"
        )
