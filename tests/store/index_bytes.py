"""Where the bytes of an index lie that decide a value."""

from __future__ import annotations

from eventstore.store.sorted.index_format import NARROW_ROWS, ROWS_PER_CRC, IndexHeader


def byte_of(header: IndexHeader, column: str, row: int) -> int:
    """Returns the offset of a byte that belongs to this row of a column: in its frame, if the column takes no bytes."""
    place, frames = header.columns[column], header.columns["frames"]
    if place.size:
        return place.extents(row, row + 1)[0][0]
    return frames.offset + 16 * (len(NARROW_ROWS) * (row // ROWS_PER_CRC) + NARROW_ROWS.index(column))
