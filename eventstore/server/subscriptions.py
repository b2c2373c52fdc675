"""Subscriptions: everything behind a sequence, then what is appended, pushed as long as the client has given credit."""

from __future__ import annotations

import logging
from functools import partial

import trio

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.protocol import encode_error, encode_ok, encode_scan_page
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.limits import CREDIT_BYTES_MAX
from eventstore.protocol.requests import Credit, Request, Subscribe, Unsubscribe
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.reads import page_bytes
from eventstore.store.committer import Committer
from eventstore.store.event_filter import EventFilter
from eventstore.store.scanning import ScanPage

_log = logging.getLogger(__name__)
_PER_CONNECTION_MAX = 64
_SCANS_MAX = 8  # that wait for the disk at once, of all subscriptions; the others queue


class Subscription:
    """One subscription of one connection, served by one task."""

    def __init__(self, connection: Connection, request_id: int, request: Subscribe) -> None:
        self.connection = connection
        self.request_id = request_id
        self.after = request.after
        self.wanted = EventFilter(frozenset(request.types) or None, request.aggregate_prefix)
        self.credit = request.credit
        self.more_credit = trio.Event()
        self.scope = trio.CancelScope()

    def cancel(self) -> None:
        self.scope.cancel()


class Subscriptions:
    """All subscriptions. Each costs a task, and nothing while there is nothing new.

    Their pages are read on threads of their own number: subscribers that are far behind on a slow disk hold up each other,
    and neither writes and syncs, which have threads of their own, nor reads, nor what runs on trio's own threads.
    """

    def __init__(self, committer: Committer, nursery: trio.Nursery) -> None:
        self._scans = trio.CapacityLimiter(_SCANS_MAX)
        self._committer = committer
        self._nursery = nursery
        self._gate: Gate | None = None
        self.count = 0

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def begin(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Subscribe)
        if request_id in connection.endings or len(connection.endings) >= _PER_CONNECTION_MAX:
            raise InvalidArgument(
                f"request id {request_id} is a subscription already, or there are {_PER_CONNECTION_MAX}, the limit",
                field="request id",
                limit=_PER_CONNECTION_MAX,
                value=request_id,
            )
        subscription = Subscription(connection, request_id, request)
        connection.endings[request_id] = subscription
        self._nursery.start_soon(self._serve, subscription)

    def credit(self, connection: Connection, _: int, request: Request) -> None:
        """Credit for a subscription that has ended in the meantime is nobody's fault."""
        assert isinstance(request, Credit)
        subscription = connection.endings.get(request.subscription)
        if isinstance(subscription, Subscription):
            subscription.credit = min(subscription.credit + request.credit, CREDIT_BYTES_MAX)
            subscription.more_credit.set()

    def end(self, connection: Connection, request_id: int, request: Request) -> None:
        assert isinstance(request, Unsubscribe)
        assert self._gate is not None
        subscription = connection.endings.pop(request.subscription, None)
        if subscription is not None:
            subscription.cancel()
        self._gate.send(connection, encode_ok(request_id))

    async def _serve(self, subscription: Subscription) -> None:
        self.count += 1
        try:
            with subscription.scope:
                await self._push(subscription)
        except EventStoreError as error:
            if not subscription.scope.cancel_called:
                self._send(subscription, encode_error(subscription.request_id, error))
        except Exception:
            _log.exception("a subscription failed; its connection is closed")
            if self._gate is not None:
                self._gate.drop(subscription.connection)
        finally:
            self.count -= 1
            if subscription.connection.endings.get(subscription.request_id) is subscription:
                del subscription.connection.endings[subscription.request_id]

    async def _push(self, subscription: Subscription) -> None:
        told = False
        engine = self._committer.engine
        while True:
            while subscription.credit <= 0:
                subscription.more_credit = trio.Event()
                await subscription.more_credit.wait()
            page = await self._page(subscription)
            if page.records or (page.at_end and not told):
                frame = encode_scan_page(subscription.request_id, page.next, page.at_end, page.records)
                subscription.credit -= len(frame) - LENGTH_BYTES
                self._send(subscription, frame)
                told = told or page.at_end
            subscription.after = max(subscription.after, page.next)
            while engine.visible_sequence <= subscription.after:
                await self._committer.advanced.park()

    async def _page(self, subscription: Subscription) -> ScanPage:
        """The next page, once there is room for it."""
        assert self._gate is not None
        outgoing, connection = self._gate.outgoing, subscription.connection
        size = reserved = page_bytes(subscription.credit)
        scan = partial(self._committer.engine.scan, subscription.after, subscription.wanted, size, None)
        while True:
            if not await outgoing.reserve(connection, reserved):
                await trio.sleep_forever()  # the connection is closed, and cancels this
            try:
                page = await trio.to_thread.run_sync(scan, limiter=self._scans)
            finally:
                outgoing.release(connection, reserved)
            await trio.lowlevel.checkpoint_if_cancelled()  # a thread is not cancelled, and nothing may follow the end
            if outgoing.fits(connection, len(page.records), reserved):
                return page
            reserved = len(page.records)

    def _send(self, subscription: Subscription, frame: bytes) -> None:
        assert self._gate is not None
        self._gate.send(subscription.connection, frame)
        self._gate.flush()
