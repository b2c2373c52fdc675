"""Pages for READ and READ_ALL. What lies in the page cache is answered on the event loop; what needs the disk, on a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from eventstore.errors import EventStoreError, ReadFailed
from eventstore.protocol import encode_error, encode_page, encode_scan_page
from eventstore.protocol.limits import FRAME_BYTES_MAX
from eventstore.protocol.requests import Read, ReadAll, Request
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.store.engine import Engine
from eventstore.store.event_filter import EventFilter
from eventstore.store.reading import IN_PLACE_BYTES_MAX, NotCached

_log = logging.getLogger(__name__)


class Reads:
    """Answers reads. At most `threads` of them wait for the disk at once; the others queue."""

    def __init__(self, engine: Engine, nursery: trio.Nursery, threads: int = 16) -> None:
        self._engine = engine
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(threads)
        self._gate: Gate | None = None

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def read(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Read)

        def page(bytes_max: int = request.bytes_max, cached_only: bool = False) -> bytes:
            found = self._engine.replay(
                request.aggregate_id, request.from_version, request.to_version, request.backwards, bytes_max, cached_only
            )
            return encode_page(request_id, found.next, found.records)

        try:
            frame = page(min(request.bytes_max, IN_PLACE_BYTES_MAX), cached_only=True)
        except NotCached:
            self._later(connection, request_id, page)
        else:
            assert self._gate is not None
            self._gate.send(connection, frame)

    def read_all(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, ReadAll)
        wanted = EventFilter(frozenset(request.types) or None, request.aggregate_prefix, request.from_time, request.to_time)

        def page() -> bytes:
            found = self._engine.scan(request.after, wanted, request.bytes_max, request.events_max)
            return encode_scan_page(request_id, found.next, found.at_end, found.records)

        self._later(connection, request_id, page)

    def _later(self, connection: Connection, request_id: int, page: Callable[[], bytes]) -> None:
        connection.owed += 1
        self._nursery.start_soon(self._on_thread, connection, request_id, page)

    async def _on_thread(self, connection: Connection, request_id: int, page: Callable[[], bytes]) -> None:
        assert self._gate is not None
        try:
            frame = await trio.to_thread.run_sync(page, limiter=self._limiter)
        except EventStoreError as error:
            frame = encode_error(request_id, error)
        except Exception as error:
            _log.exception("a read failed")
            frame = encode_error(request_id, ReadFailed(f"the read failed inside the server: {type(error).__name__}"))
        connection.owed -= 1
        self._gate.send(connection, frame)
        self._gate.flush()


def page_bytes(credit: int, default: int) -> int:
    """How large a page may be that is pushed against `credit`."""
    return max(1, min(credit, default, FRAME_BYTES_MAX // 2))
