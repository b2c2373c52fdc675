"""Answers READ, READ_MANY, READ_ALL and READ_MATCHING (also backwards), VERSION, FIND_COMMAND, FIND_COMMANDS and
LIST_AGGREGATES: on the event loop if in memory, else on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from eventstore.aggregate_info import id_range
from eventstore.chunks.files import NotCached
from eventstore.metrics import Metric, MetricSource, counter
from eventstore.model import ID_BYTES_MAX
from eventstore.protocol import encode_answer, encode_page, encode_scan_page
from eventstore.protocol.limits import FRAME_BYTES_MAX, PAGE_BYTES_DEFAULT
from eventstore.protocol.reader_start import ReaderStart
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import (
    FindCommand,
    FindCommands,
    FoundCommand,
    FoundCommit,
    FoundDurable,
    ListAggregates,
    Read,
    ReadAll,
    ReadAllBackwards,
    ReadMany,
    ReadMatching,
    ReadMatchingBackwards,
    Version,
    filter_of,
)
from eventstore.records.splits import NEVER_SPLIT
from eventstore.server.feature import Feature, Route
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.deferred_replies import DeferredReplies, explain_failed_read
from eventstore.server.net.gate import Gate
from eventstore.server.net.scheduler import Timed
from eventstore.server.shard_layout import ServedLayout
from eventstore.store.engine import StoreEngine
from eventstore.store.read.checked_reads import IN_PLACE_BYTES_MAX
from eventstore.store.read.reader_place import check_place, placed
from eventstore.store.read.scan import ScanPage

_READS_PER_CONNECTION: Final = 4
_RECORDS_BYTES_MAX: Final = FRAME_BYTES_MAX - 64  # what a frame takes besides its records, and some to spare
_SMALL_BYTES: Final = 64
_ROW_BYTES: Final = ID_BYTES_MAX + 12  # of a list of aggregates, at most


class ReadRequests:
    """Answers reads. At most `threads` of them wait for the disk at once, and a few of one connection; the others queue.

    `reads`: how many pages of events were asked for.
    """

    def __init__(self, gate: Gate, engine: StoreEngine, nursery: trio.Nursery, layout: ServedLayout, threads: int = 16) -> None:
        self._gate = gate
        self._engine = engine
        self._layout = layout
        self._limiter = trio.CapacityLimiter(threads)
        self.reads = 0
        explain = partial(explain_failed_read, "read")
        self._replies = DeferredReplies(gate, nursery, at_once=_READS_PER_CONNECTION, explain=explain)
        routes: dict[type[Request], Route] = {
            Read: self.read,
            ReadMany: self.read_many,
            ReadAll: self.read_all,
            ReadAllBackwards: self.read_all_backwards,
            ReadMatching: self.read_all,
            ReadMatchingBackwards: self.read_all_backwards,
            Version: self.version,
            FindCommand: self.find_command,
            FindCommands: self.find_commands,
            ListAggregates: self.list_aggregates,
        }
        self.feature = Feature(routes=routes, metrics=[MetricSource(READ_METRICS, lambda: self)])

    def read(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, Read)
        self.reads += 1

        def page(bytes_max: int, cached_only: bool = False) -> bytes:
            found = self._engine.replay(
                request.aggregate_id, request.from_version, request.to_version, request.backwards, bytes_max, cached_only
            )
            if len(found.records) > _RECORDS_BYTES_MAX:
                return page(PAGE_BYTES_DEFAULT, cached_only)
            return encode_page(request_id, found.next, found.records)

        try:
            allowed = self._gate.outbound.allowance(connection)
            if allowed == 0:
                raise NotCached
            bytes_max = min(request.bytes_max, IN_PLACE_BYTES_MAX)
            frame = page(bytes_max if allowed is None else min(bytes_max, allowed), cached_only=True)
        except NotCached:
            self._on_thread(connection, request_id, page, request.bytes_max)
        else:
            self._gate.send_page(connection, frame)

    def read_many(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, ReadMany)
        self.reads += 1
        start = ReaderStart.parse("at", request.at)
        self._layout.filter_of(start.layout)

        def page(bytes_max: int) -> bytes:
            found = self._engine.replay_many(request.aggregates, start.place, bytes_max)
            if len(found.records) > _RECORDS_BYTES_MAX:
                return page(PAGE_BYTES_DEFAULT)
            return encode_scan_page(request_id, found.next, found.at_end, found.records, found.identity)

        self._on_thread(connection, request_id, page, request.bytes_max)

    def read_all(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, ReadAll | ReadMatching)
        self.reads += 1
        wanted, start = filter_of(request), ReaderStart.parse("after", request.after)
        place, own = start.stored, self._layout.filter_of(start.layout)

        def page(bytes_max: int) -> bytes:
            check_place(self._engine.scan, place)
            found = self._engine.scan(place.sequence, wanted, bytes_max, request.events_max, own=own)
            if len(found.records) > _RECORDS_BYTES_MAX:
                return page(PAGE_BYTES_DEFAULT)
            return self._scan_page(connection, request_id, found, filtered=own is not None or not wanted.everything)

        self._scanned(connection, request_id, page, request.bytes_max)

    def read_all_backwards(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, ReadAllBackwards | ReadMatchingBackwards)
        self.reads += 1
        wanted, start = filter_of(request), ReaderStart.parse("before", request.before)
        place, own = start.stored, self._layout.filter_of(start.layout)

        def page(bytes_max: int) -> bytes:
            check_place(self._engine.scan, place)
            found = self._engine.scan_back(place.sequence, wanted, bytes_max, request.events_max, own)
            if len(found.records) > _RECORDS_BYTES_MAX:
                return page(PAGE_BYTES_DEFAULT)
            return self._scan_page(connection, request_id, found, filtered=own is not None or not wanted.everything)

        self._scanned(connection, request_id, page, request.bytes_max)

    def _scan_page(self, connection: ServerConnection, request_id: int, found: ScanPage, *, filtered: bool) -> bytes:
        if filtered and connection.places:
            found = placed(self._engine.scan, found)
        return encode_scan_page(request_id, found.next, found.at_end, found.records, found.identity)

    def version(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, Version)

        def answer(cached_only: bool) -> bytes:
            return encode_answer(request_id, Version, self._engine.look_up_version(request.aggregate_id, cached_only))

        self._look_up(connection, request_id, answer)

    def find_command(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, FindCommand)

        def answer(cached_only: bool) -> bytes:
            view = self._engine.look_up_command(request.aggregate_id, request.command_id, cached_only)
            found: FoundCommand | FoundDurable | None = None
            if view is not None and connection.durability is None:
                found = FoundCommand(view.last_version, view.last_sequence)
            elif view is not None and connection.durability is not None:
                found = FoundDurable(view.last_version, view.last_sequence, connection.durability())
            return encode_answer(request_id, FindCommand, found)

        self._look_up(connection, request_id, answer)

    def find_commands(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, FindCommands)

        def answer(cached_only: bool) -> bytes:
            found: list[FoundCommit] = []
            for place, command_id in enumerate(request.command_ids):
                view = self._engine.look_up_command(request.aggregate_id, command_id, cached_only)
                if view is not None:
                    found.append(FoundCommit(place, view.last_version, view.last_sequence, view.fingerprint))
            return encode_answer(request_id, FindCommands, found)

        self._look_up(connection, request_id, answer, len(request.command_ids) * _SMALL_BYTES)

    def list_aggregates(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, ListAggregates)
        wanted = id_range(request.prefix, request.after, request.limit)
        own = self._layout.filter_of(*request.layouts or (NEVER_SPLIT,))

        def page(_: int) -> bytes:
            return encode_answer(request_id, ListAggregates, self._engine.list_aggregates(wanted, request.limit, own))

        self._scanned(connection, request_id, page, request.limit * _ROW_BYTES)

    def _look_up(
        self, connection: ServerConnection, request_id: int, answer: Callable[[bool], bytes], size: int = _SMALL_BYTES
    ) -> None:
        """Sends a small answer: at once if it is in memory, else from a thread."""
        try:
            frame = answer(True)
        except NotCached:
            self._on_thread(connection, request_id, lambda _: answer(False), size)
        else:
            self._gate.send(connection, frame)

    def _on_thread(self, connection: ServerConnection, request_id: int, page: Callable[[int], bytes], size: int) -> None:
        async def make(bytes_max: int) -> Sequence[bytes]:
            timed = Timed(partial(page, bytes_max))
            try:
                return (await trio.to_thread.run_sync(timed, limiter=self._limiter),)
            finally:
                self._gate.scheduler.charge(connection, timed.seconds)

        self._replies.page_later(connection, request_id, make, size)

    def _scanned(self, connection: ServerConnection, request_id: int, page: Callable[[int], bytes], size: int) -> None:
        async def make(bytes_max: int) -> Sequence[bytes]:
            return (await self._gate.scheduler.page(connection, partial(page, bytes_max)),)

        self._replies.page_later(connection, request_id, make, size)


READ_METRICS: Final[tuple[Metric[ReadRequests], ...]] = (
    counter(
        "reads", "pages of events read, of one aggregate, some or all; not of subscriptions", lambda requests: requests.reads
    ),
)
