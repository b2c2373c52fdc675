"""Opens the place of a backup that a person has named: a folder, or a bucket of an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eventstore.backup.s3 import S3, S3Target
from eventstore.backup.target import BackupTarget, FolderTarget
from eventstore.chunks.files import OsFiles
from eventstore.errors import InvalidArgument
from eventstore.model import ID_BYTES_MAX


@contextmanager
def backup_place(place: str, *, create: bool = False) -> Iterator[BackupTarget]:
    """Yields the place. `create`: it may be new.

    Raises:
        FolderRefused: there is no backup, or another process uses it.
        InvalidArgument: it is of a kind that is not known.
    """
    if "://" in place and not place.startswith(S3):
        scheme = place.partition("://")[0]
        raise InvalidArgument(f"{scheme}:// is not a place for backups: give a folder, or s3://BUCKET/PREFIX", field="place")
    target = S3Target(place) if place.startswith(S3) else FolderTarget(OsFiles(), Path(place).absolute(), create=create)
    try:
        yield target
    finally:
        target.close()


def place_name(place: str) -> str:
    """Returns the name by which servers know the place."""
    name = place if place.startswith(S3) else str(Path(place).absolute())
    return name[-ID_BYTES_MAX:] if name.isascii() else name.encode()[-ID_BYTES_MAX:].decode(errors="ignore")
