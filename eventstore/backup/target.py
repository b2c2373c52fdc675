"""Where a backup lies: objects, each written once, and a manifest that is replaced as a whole. Here: in a folder."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

from eventstore.backup.manifest import MANIFEST
from eventstore.chunks.documents import read_file, replace_document
from eventstore.chunks.files import File, Files, OpensFiles
from eventstore.chunks.folder import TEMPORARY
from eventstore.chunks.opening import LOCK
from eventstore.errors import FolderRefused, InvalidArgument

SHARD_FOLDER: Final = "shard-"
VIEW: Final = "current"
"""A folder with names that readers of data folders know for the same bytes."""


class BackupTarget(Protocol):
    """A place for one backup. One process at a time changes it.

    Attributes:
        name: for people; without what is secret.
        files: opens objects by their paths, to be read.
    """

    name: str

    @property
    def files(self) -> OpensFiles: ...

    def path(self, name: str) -> Path:
        """Returns the path of an object, for `files` and for errors."""

    def manifest(self) -> bytes | None:
        """Returns the manifest; None: there is no backup here."""

    def replace_manifest(self, raw: bytes) -> None:
        """Durable on return. A crash leaves the old or the new one whole.

        Raises:
            FolderRefused: another process has replaced it since it was read.
        """

    def names(self) -> set[str]:
        """Returns the names of all objects that are whole."""

    def put(self, name: str, parts: Iterable[bytes], same_as: File | None = None) -> None:
        """Writes an object, durable on return; there is none of it if `parts` raises. `same_as`: a file with the same bytes,
        whose blocks may be shared.
        """

    def link(self, name: str, source: Path) -> None:
        """Makes an object of the bytes of a file, which are not copied. Raises InvalidArgument: not possible here."""

    def delete(self, name: str) -> None: ...

    def close(self) -> None: ...


class FolderTarget:
    """A backup in a folder, which one process at a time holds locked."""

    def __init__(self, files: Files, folder: Path, *, create: bool = False) -> None:
        """Raises FolderRefused: another process uses it, or it holds something else. `create`: it may be missing."""
        self.name, self.files, self._folder = str(folder), files, folder
        if not files.exists(folder) and not create:
            raise FolderRefused(str(folder), "does not exist; there is no backup here")
        files.make_folder(folder)
        names = files.names(folder)
        strange = [name for name in names if not self._is_ours(name)]
        if strange and MANIFEST not in names:
            raise FolderRefused(str(folder), f"holds {strange[0]} and no backup; name an empty folder, or one with a backup")
        self._lock = files.lock(folder / LOCK)

    @staticmethod
    def _is_ours(name: str) -> bool:
        return name.startswith((SHARD_FOLDER, MANIFEST)) or name in (LOCK, VIEW)

    def path(self, name: str) -> Path:
        return self._folder / name

    def manifest(self) -> bytes | None:
        try:
            return read_file(self.files, self._folder / MANIFEST)
        except FileNotFoundError:
            return None

    def replace_manifest(self, raw: bytes) -> None:
        replace_document(self.files, self._folder / MANIFEST, raw)

    def names(self) -> set[str]:
        """Also removes what an interrupted `put` has left."""
        found = set[str]()
        for shard in self._subfolders(self._folder, SHARD_FOLDER):
            for folder in self._subfolders(shard, ""):
                for name in self.files.names(folder):
                    if name.endswith(TEMPORARY):
                        self.files.remove(folder / name)
                    else:
                        found.add(f"{shard.name}/{folder.name}/{name}")
                self.files.sync_folder(folder)  # a name that a process left unsynced does not count as copied
        return found

    def _subfolders(self, folder: Path, prefix: str) -> list[Path]:
        return [folder / name for name in self.files.names(folder) if name.startswith(prefix)]

    def put(self, name: str, parts: Iterable[bytes], same_as: File | None = None) -> None:
        path = self._folder / name
        with self._new(path) as temporary:
            file = self.files.open(temporary, create=True)
            try:
                shared, at = same_as is not None and file.clone(same_as), 0
                for part in parts:
                    if not shared:
                        file.write_at(at, [part])
                    at += len(part)
                file.sync()
            finally:
                file.close()

    def link(self, name: str, source: Path) -> None:
        path = self._folder / name
        with self._new(path) as temporary:
            try:
                self.files.link(source, temporary)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                    raise
                why = (
                    f"{source} cannot be linked to {self.name} ({error.strerror}): links need one file system; leave out --link"
                )
                raise InvalidArgument(why, field="link") from None

    @contextlib.contextmanager
    def _new(self, path: Path) -> Iterator[Path]:
        """Yields a temporary name, which becomes `path`, durably."""
        temporary = path.with_name(path.name + TEMPORARY[0])
        self.files.make_folder(path.parent)
        if self.files.exists(temporary):
            self.files.remove(temporary)
        try:
            yield temporary
        except Exception:
            with contextlib.suppress(OSError):
                self.files.remove(temporary)
            raise
        self.files.rename(temporary, path)
        self.files.sync_folder(path.parent)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.remove(self._folder / name)

    def close(self) -> None:
        self._lock.release()
