"""What an import knows of each aggregate: of `AGGREGATES_IN_MEMORY` in memory, of all others in a temporary file."""

from __future__ import annotations

import errno
import itertools
import sqlite3
from dataclasses import dataclass
from typing import Final

AGGREGATES_IN_MEMORY: Final = 100_000
"""They take some 25 MB."""
_WRITTEN_AT_ONCE: Final = 10_000  # blocks for some 50 ms


@dataclass(slots=True)
class KnownAggregate:
    """What is known of one aggregate.

    `version_read`: the highest version that a line named. `version_stored`: the highest version in the store of what was sent.
    `is_created`: this import has created it. `is_unread`: a line was refused; what was read before it is still sent.
    `is_refused`: the store refused a commit.
    """

    version_read: int = 0
    version_stored: int = 0
    is_created: bool = False
    is_unread: bool = False
    is_refused: bool = False


class KnownAggregates:
    """Returns what is known of an aggregate. It may be changed until another aggregate is looked up.

    Raises:
        OSError: the temporary file cannot be read or written.
    """

    def __init__(self) -> None:
        self._kept: dict[str, KnownAggregate] = {}
        self._file: sqlite3.Connection | None = None

    def __getitem__(self, aggregate_id: str) -> KnownAggregate:
        known = self._kept.get(aggregate_id)
        if known is None:
            try:
                if len(self._kept) >= AGGREGATES_IN_MEMORY:
                    self._write()
                known = self._kept[aggregate_id] = (
                    KnownAggregate() if self._file is None else self._read(self._file, aggregate_id)
                )
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error), "the temporary file of aggregates") from None
        return known

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, file: sqlite3.Connection, aggregate_id: str) -> KnownAggregate:
        row = file.execute("SELECT * FROM known WHERE aggregate_id = ?", (aggregate_id.encode(),)).fetchone()
        return KnownAggregate() if row is None else KnownAggregate(row[1], row[2], bool(row[3]), bool(row[4]), bool(row[5]))

    def _write(self) -> None:
        """Writes those that were looked up first."""
        if self._file is None:
            self._file = sqlite3.connect("")  # with this name, SQLite removes the file when it is closed
            self._file.execute("PRAGMA journal_mode = OFF")
            self._file.execute(
                "CREATE TABLE known (aggregate_id BLOB PRIMARY KEY, version_read, version_stored, is_created, is_unread, "
                "is_refused) WITHOUT ROWID"
            )
        rows = []
        for aggregate_id in list(itertools.islice(self._kept, _WRITTEN_AT_ONCE)):
            known = self._kept.pop(aggregate_id)
            flags = (known.is_created, known.is_unread, known.is_refused)
            rows.append((aggregate_id.encode(), known.version_read, known.version_stored, *flags))
        self._file.executemany("REPLACE INTO known VALUES (?, ?, ?, ?, ?, ?)", rows)
