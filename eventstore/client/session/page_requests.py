"""The requests for the pages of a cursor. Both clients walk the cursors of `records.cursors`."""

from __future__ import annotations

from typing import TypeAlias

from eventstore.client.session.calls import Call, S, WantedByReader
from eventstore.client.session.session import ClientSession
from eventstore.event_identity import LogPosition
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.protocol.reader_start import ReaderStart
from eventstore.protocol.requests import AnyRead, AnyReadBackwards, ListAggregates, Read, ReadMany, read_request
from eventstore.records.cursors import AggregateCursor, LogCursor, ManyCursor
from eventstore.records.splits import NEVER_SPLIT

Cursor: TypeAlias = AggregateCursor | LogCursor


class PageCall(WantedByReader, Call[S]):
    """The request for a cursor's next page, as the cursor wants it for the connection that it leaves on.

    Once its `reader` is dropped, it is wanted no longer.
    """

    def __init__(self, cursor: Cursor, session: ClientSession[S], done: S, reader: object) -> None:
        super().__init__(request_of(cursor), done)
        self._cursor, self._session = cursor, session
        self.read_by(reader)

    def encode(self) -> bytes:
        if isinstance(self._cursor, LogCursor):
            self._cursor.use((self._session, self._session.connections))
            if self._cursor.layout is None:
                self._cursor.layout = self._session.layout
            self.request = request_of(self._cursor)
        return super().encode()


def request_of(cursor: Cursor) -> Read | AnyRead | AnyReadBackwards:
    """Returns the request for the next page."""
    if isinstance(cursor, AggregateCursor):
        return Read(cursor.aggregate_id, cursor.low, cursor.high, cursor.backwards, cursor.left, PAGE_BYTES_DEFAULT)
    start = ReaderStart(cursor.place, cursor.layout or NEVER_SPLIT)
    return read_request(start.wire, cursor.left, cursor.wanted, backwards=cursor.backwards)


def many_request(cursor: ManyCursor, at: LogPosition | None, layout: int) -> ReadMany:
    """Returns the request for the next page of several aggregates, up to `at`; None: the end of the log. `layout`: of the slots
    of their shard.
    """
    return ReadMany(ReaderStart(at, layout).wire, PAGE_BYTES_DEFAULT, cursor.rows)


def aggregates_request(prefix: str | None, after: str | None, limit: int, layout: int) -> ListAggregates:
    """Returns the request for a page of the list of aggregates, of a shard that got its slots by this layout."""
    return ListAggregates(prefix, after, limit, () if layout == NEVER_SPLIT else (layout,))
