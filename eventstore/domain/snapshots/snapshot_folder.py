"""`SnapshotFolder`: a file for each aggregate that has a snapshot, in a folder of a bounded size.

Nothing here is synced, and nothing depends on it: a snapshot that is lost, torn or old costs a replay. A file is written under
another name and renamed, so that a process that is killed leaves whole files; after a power failure a file may be torn, which
its checksum shows.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import read_file
from eventstore.chunks.files import Files

SUFFIX: Final = ".snapshot"
_TEMPORARY: Final = ".tmp"
_WRITTEN: Final = f"writing{_TEMPORARY}"
"""One name for all: on a full disk one unfinished file remains, not one of each aggregate."""
_BLOCK_BYTES: Final = 4096
SHARE_MAX: Final = 16
"""One snapshot takes at most this part of the space."""


class SnapshotFolder:
    """The snapshots in the folder `path`. Its methods block, except `may_have`, and may be called on any thread.

    Attributes:
        bytes_max: of all files, in blocks of the disk. Beyond it the snapshot that was not used for longest is removed.
        bytes_used: of all files.
        dropped: snapshots that were removed for want of space.
    """

    def __init__(self, files: Files, path: Path, bytes_max: int) -> None:
        self.path = path
        self.bytes_max = bytes_max
        self.bytes_used = self.dropped = 0
        self._files = files
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the one that was used last at the end
        self._opened = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Looks at what is there; makes the folder if it is missing. Files that were not finished are removed.

        Raises:
            OSError
        """
        with self._lock:
            self._files.make_folder(self.path)
            for name in self._files.names(self.path):
                if name.endswith(_TEMPORARY):
                    self._files.remove(self.path / name)
                elif name.endswith(SUFFIX):
                    file = self._files.open(self.path / name)
                    try:
                        self._note(name, file.size())
                    finally:
                        file.close()
            self._opened = True
            self._make_room()

    @property
    def count(self) -> int:
        """How many snapshots there are."""
        return len(self._sizes)

    def may_have(self, aggregate_id: str) -> bool:
        """Returns whether there may be a snapshot of the aggregate. True as long as it is not known. Does not block."""
        return not self._opened or _name(aggregate_id) in self._sizes

    def read(self, aggregate_id: str) -> bytes | None:
        """Returns the snapshot of an aggregate; None if there is none that can be read."""
        name = _name(aggregate_id)
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
        try:
            return read_file(self._files, self.path / name)
        except OSError:
            return None

    def write(self, aggregate_id: str, raw: bytes) -> bool:
        """Replaces the snapshot of an aggregate. Returns whether it was written: not if it is too large.

        Raises:
            OSError: it cannot be written.
        """
        if _blocks(len(raw)) > self.bytes_max // SHARE_MAX:
            return False
        name = _name(aggregate_id)
        temporary = self.path / _WRITTEN
        with self._lock:
            if self._files.exists(temporary):
                self._files.remove(temporary)
            file = self._files.open(temporary, create=True)
            try:
                file.write_at(0, [raw])
            finally:
                file.close()
            self._files.rename(temporary, self.path / name)
            self._note(name, len(raw))
            self._make_room()
        return True

    def remove(self, aggregate_id: str) -> None:
        """Removes the snapshot of an aggregate, if there is one."""
        with self._lock:
            self._remove(_name(aggregate_id))

    def _note(self, name: str, size: int) -> None:
        self.bytes_used += _blocks(size) - self._sizes.pop(name, 0)
        self._sizes[name] = _blocks(size)

    def _make_room(self) -> None:
        while self.bytes_used > self.bytes_max:
            self._remove(next(iter(self._sizes)))
            self.dropped += 1

    def _remove(self, name: str) -> None:
        self.bytes_used -= self._sizes.pop(name, 0)
        with contextlib.suppress(FileNotFoundError):  # an operator may delete them
            self._files.remove(self.path / name)


def _name(aggregate_id: str) -> str:
    return blake2b(aggregate_id.encode(), digest_size=16).hexdigest() + SUFFIX


def _blocks(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
