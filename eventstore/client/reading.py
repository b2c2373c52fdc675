"""What a cursor's position is as a request; both clients walk the cursors of `store.cursors`."""

from __future__ import annotations

from typing import TypeAlias

from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.protocol.requests import Read, ReadAll
from eventstore.store.cursors import AggregateCursor, LogCursor

Cursor: TypeAlias = AggregateCursor | LogCursor


def request_of(cursor: Cursor) -> Read | ReadAll:
    """What to ask for next."""
    if isinstance(cursor, AggregateCursor):
        return Read(cursor.aggregate_id, cursor.low, cursor.high, cursor.backwards, cursor.left, PAGE_BYTES_DEFAULT)
    wanted = cursor.wanted
    return ReadAll(
        cursor.after,
        cursor.left,
        PAGE_BYTES_DEFAULT,
        wanted.aggregate_prefix,
        wanted.from_time,
        wanted.to_time,
        tuple(sorted(wanted.types or ())),
    )
