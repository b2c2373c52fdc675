"""Shows a backup in a folder to programs that read data folders, Spark's workers among them: `current`, whose files have the
names that they have in a data folder.

Whole files are links to the objects, which nothing ever writes to. Files in pieces are put together. All of it is derived, and
made again by the next backup. It changes as the folder of a running store does: files are replaced, and `chunks.json` names
only files that are there. No store may be opened in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from eventstore.backup.checking import piece_records, read_object
from eventstore.backup.manifest import BackedFile, BackedShard, Manifest
from eventstore.backup.target import SHARD_FOLDER, VIEW, FolderTarget
from eventstore.chunks.documents import replace_document
from eventstore.chunks.files import Files
from eventstore.chunks.folder import DOCUMENT, TEMPORARY, ChunkFolder
from eventstore.chunks.header import HEADER_BYTES, RECORDS_FROM, decode_header
from eventstore.errors import EventStoreError
from eventstore.store.data_folder import BACKUP_VIEW, STORE, event_folder
from eventstore.store.sorted.file_names import INDEX

_PREVIOUS: Final = ".previous"


def show(target: FolderTarget, manifest: Manifest) -> None:
    """Makes `current` show this backup.

    Raises:
        InvalidArgument: the file system has no links.
        Corrupt, OSError
    """
    for number, shard in sorted(manifest.shards.items()):
        folder = target.path(VIEW) / ("" if len(manifest.shards) == 1 else f"{SHARD_FOLDER}{number}")
        _show_shard(target, folder, shard)


def _show_shard(target: FolderTarget, folder: Path, shard: BackedShard) -> None:
    files = target.files
    events = event_folder(files, folder, shard.events.store)
    files.make_folder(events.path)
    replace_document(files, folder / BACKUP_VIEW, b"{}\n")
    replace_document(files, folder / STORE, read_object(target, shard.documents[STORE].object))
    wanted = {DOCUMENT, DOCUMENT + _PREVIOUS}
    for file in shard.events.files:
        path = events.chunk_path(file.number)
        wanted.add(path.name)
        if file.object:
            _link(target, events, file)
            wanted |= {events.derived_path(file.number, INDEX).name} if file.index else set()
        else:
            _join(target, path, file, followed=file is not shard.events.files[-1])
    last = shard.events.files[-1] if shard.events.files else None
    events.write_document(0 if last is None else last.number, RECORDS_FROM if last is None else last.end)
    for name in set(files.names(events.path)) - wanted:
        files.remove(events.path / name)
    files.sync_folder(events.path)


def _link(target: FolderTarget, events: ChunkFolder, file: BackedFile) -> None:
    path = events.chunk_path(file.number)
    if _is_shown(events.files, path, file):
        return
    if file.index:
        target.link(str(events.derived_path(file.number, INDEX).relative_to(target.path(""))), target.path(file.index))
    target.link(str(path.relative_to(target.path(""))), target.path(file.object))


def _is_shown(files: Files, path: Path, file: BackedFile) -> bool:
    if not files.exists(path):
        return False
    opened = files.open(path)
    try:
        return decode_header(opened.read_at(0, HEADER_BYTES), str(path), file.header.kind) == file.header
    except EventStoreError:
        return False
    finally:
        opened.close()


def _join(target: FolderTarget, path: Path, file: BackedFile, *, followed: bool) -> None:
    """Puts the pieces of a file together, as the ongoing file of a store; as a completed one if another follows."""
    files, temporary = target.files, path.with_name(path.name + TEMPORARY[0])
    if files.exists(temporary):
        files.remove(temporary)
    opened = files.open(temporary, create=True)
    try:
        header = file.header
        if followed:
            records, checksum = (sum(each) for each in zip(*((p.records, p.checksum) for p in file.pieces), strict=True))
            header = header.complete(file.end, file.last_sequence + 1, records, checksum)
            opened.write_at(file.end, [header.footer()])
        opened.write_at(0, [header.encode().ljust(RECORDS_FROM, b"\0")])
        for data, base, _ in piece_records(target, file):
            opened.write_at(base, [data])
        opened.sync()
    finally:
        opened.close()
    files.rename(temporary, path)
