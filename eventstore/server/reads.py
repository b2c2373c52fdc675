"""Pages for READ and READ_ALL, answers to VERSION and FIND_COMMAND. What lies in memory is answered on the event loop; what may
need the disk, on a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from eventstore.errors import EventStoreError, ReadFailed
from eventstore.protocol import encode_error, encode_ok, encode_page, encode_scan_page
from eventstore.protocol.limits import FRAME_BYTES_MAX, PAGE_BYTES_DEFAULT
from eventstore.protocol.requests import FindCommand, Read, ReadAll, Request, Version
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.store.engine import Engine
from eventstore.store.event_filter import EventFilter
from eventstore.store.reading import IN_PLACE_BYTES_MAX, NotCached

_WORKERS_PER_CONNECTION: Final = 4
_RECORDS_BYTES_MAX: Final = FRAME_BYTES_MAX - 64  # what a frame takes besides its records, and some to spare
_SMALL_BYTES: Final = 64
_log = logging.getLogger(__name__)


class Reads:
    """Answers reads. At most `threads` of them wait for the disk at once, and a few of one connection; the others queue."""

    def __init__(self, engine: Engine, nursery: trio.Nursery, threads: int = 16) -> None:
        self._engine = engine
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(threads)
        self._gate: Gate | None = None

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def read(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Read)

        def page(bytes_max: int, cached_only: bool = False) -> bytes:
            found = self._engine.replay(
                request.aggregate_id, request.from_version, request.to_version, request.backwards, bytes_max, cached_only
            )
            if len(found.records) > _RECORDS_BYTES_MAX:
                return page(PAGE_BYTES_DEFAULT, cached_only)
            return encode_page(request_id, found.next, found.records)

        assert self._gate is not None
        outgoing = self._gate.outgoing
        try:
            if outgoing.full:
                raise NotCached
            frame = page(min(request.bytes_max, IN_PLACE_BYTES_MAX), cached_only=True)
        except NotCached:
            self._later(connection, request_id, lambda: page(request.bytes_max), request.bytes_max)
        else:
            self._gate.send(connection, frame)
            outgoing.count(connection)

    def read_all(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, ReadAll)
        wanted = EventFilter(frozenset(request.types) or None, request.aggregate_prefix, request.from_time, request.to_time)

        def page(bytes_max: int = request.bytes_max) -> bytes:
            found = self._engine.scan(request.after, wanted, bytes_max, request.events_max)
            if len(found.records) > _RECORDS_BYTES_MAX:
                return page(PAGE_BYTES_DEFAULT)
            return encode_scan_page(request_id, found.next, found.at_end, found.records)

        self._later(connection, request_id, page, request.bytes_max)

    def version(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Version)

        def answer(cached_only: bool) -> bytes:
            return encode_ok(request_id, self._engine.look_up_version(request.aggregate_id, cached_only))

        self._now_or_later(connection, request_id, answer)

    def find_command(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, FindCommand)

        def answer(cached_only: bool) -> bytes:
            view = self._engine.look_up_command(request.aggregate_id, request.command_id, cached_only)
            return encode_ok(request_id, *(() if view is None else (view.last_version, view.last_sequence)))

        self._now_or_later(connection, request_id, answer)

    def _now_or_later(self, connection: Connection, request_id: int, answer: Callable[[bool], bytes]) -> None:
        """A small answer: at once out of memory, or on a thread."""
        try:
            frame = answer(True)
        except NotCached:
            self._later(connection, request_id, lambda: answer(False), _SMALL_BYTES)
        else:
            assert self._gate is not None
            self._gate.send(connection, frame)

    def _later(self, connection: Connection, request_id: int, page: Callable[[], bytes], size: int) -> None:
        connection.owed += 1
        connection.reads.append((request_id, page, size))
        if connection.workers < _WORKERS_PER_CONNECTION:
            connection.workers += 1
            self._nursery.start_soon(self._work, connection)

    async def _work(self, connection: Connection) -> None:
        """Answers what is queued, one after the other, as long as the client takes its answers."""
        assert self._gate is not None
        outgoing = self._gate.outgoing
        try:
            while connection.reads:
                request_id, page, size = connection.reads.popleft()
                if await outgoing.reserve(connection, size):
                    try:
                        frame = await self._made(request_id, page)
                    finally:
                        outgoing.release(connection, size)
                    if outgoing.fits(connection, len(frame), size):
                        connection.owed -= 1
                        self._gate.send(connection, frame)
                        self._gate.flush()
                    elif not connection.closed:
                        connection.reads.appendleft((request_id, page, len(frame)))
        finally:
            connection.workers -= 1

    async def _made(self, request_id: int, page: Callable[[], bytes]) -> bytes:
        """The answer's frame."""
        try:
            return await trio.to_thread.run_sync(page, limiter=self._limiter)
        except EventStoreError as error:
            return encode_error(request_id, error)
        except Exception as error:
            _log.exception("a read failed")
            return encode_error(request_id, ReadFailed(f"the read failed inside the server: {type(error).__name__}"))


def page_bytes(credit: int) -> int:
    """How large a page may be that is pushed against `credit`."""
    return max(1, min(credit, PAGE_BYTES_DEFAULT))
