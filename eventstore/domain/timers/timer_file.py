"""`TimerFile`: the pending timers on disk, so that a start reads the log only after the place where the file was written.

Nothing here is synced, and nothing depends on it: without the file, or with one that is torn, old, or of another history, the
book is made again from the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.documents import read_file
from eventstore.chunks.files import Files, OsFiles
from eventstore.chunks.layout import FieldLayout
from eventstore.domain.timers.timer_book import TimerBook
from eventstore.following.checkpoint import Checkpoint

MAGIC: Final = b"ESTIMER1"
PREFIX: Final = FieldLayout(("magic", "8s"), ("crc", "I"), ("head_bytes", "I"))
_CRC_FROM: Final = PREFIX["crc"].end


class TimerFile:
    """The file `path`, of the log of one store. Its methods block, and may be called on any thread, one after the other."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or OsFiles()

    def load(self, store: str) -> tuple[TimerBook, Checkpoint]:
        """Returns the book, and its place in the log of this store; an empty one if the file tells nothing of that."""
        try:
            raw = read_file(self._files, self._path)
            magic, crc, head_bytes = PREFIX.struct.unpack_from(raw)
            if magic != MAGIC or crc32c(memoryview(raw)[_CRC_FROM:]) != crc:
                raise ValueError("it is torn, or no file of timers")
            rows_at = PREFIX.size + head_bytes
            head = json.loads(raw[PREFIX.size : rows_at])
            if head["store"] != store:
                raise ValueError("it is of another store")
            place = Checkpoint(head["sequence"], head["event"])
            parked = {int(key): sequence for key, sequence in head["parked"].items()}
            return TimerBook.of_rows(raw[rows_at:], place.sequence, parked), place
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
            return TimerBook(), Checkpoint(0)

    def save(self, store: str, place: Checkpoint, rows: Callable[[], bytes], parked: dict[int, int]) -> None:
        """Replaces the file. `rows`: makes those of a book. Raises OSError."""
        head = json.dumps(
            {"store": store, "sequence": place.sequence, "event": place.identity, "parked": parked}, separators=(",", ":")
        ).encode()
        rest = b"".join((len(head).to_bytes(4, "little"), head, rows()))
        temporary = self._path.with_name(self._path.name + ".tmp")
        if self._files.exists(temporary):
            self._files.remove(temporary)
        file = self._files.open(temporary, create=True)
        try:
            file.write_at(0, [MAGIC + crc32c(rest).to_bytes(4, "little"), rest])
        finally:
            file.close()
        self._files.rename(temporary, self._path)
