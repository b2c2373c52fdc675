"""Turns a cursor's position into the request for its next page. Both clients walk the cursors of `records.cursors`."""

from __future__ import annotations

from typing import TypeAlias

from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.protocol.requests import Read, ReadAll, filter_values, wire_place
from eventstore.records.cursors import AggregateCursor, LogCursor

Cursor: TypeAlias = AggregateCursor | LogCursor


def request_of(cursor: Cursor) -> Read | ReadAll:
    """Returns the request for the next page."""
    if isinstance(cursor, AggregateCursor):
        return Read(cursor.aggregate_id, cursor.low, cursor.high, cursor.backwards, cursor.left, PAGE_BYTES_DEFAULT)
    return ReadAll(wire_place(cursor.place), cursor.left, PAGE_BYTES_DEFAULT, *filter_values(cursor.wanted))
