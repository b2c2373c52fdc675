"""Subscriptions: all events after a sequence, then new ones as they are durable, pushed while the client grants credit.

A split of the shard ends them: what they would get from then on is another thing.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import ClassVar, Final

import trio

from eventstore.errors import Elsewhere, EventStoreError
from eventstore.event_identity import LogPosition, check_start
from eventstore.metrics import Metric, MetricSource, gauge
from eventstore.protocol import encode_answer, encode_error, encode_scan_page
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.limits import CREDIT_BYTES_MAX, PAGE_BYTES_DEFAULT
from eventstore.protocol.reader_start import ReaderStart
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import AnySubscribe, Credit, Subscribe, SubscribeMatching, Unsubscribe, filter_of
from eventstore.records.splits import SlotFilter
from eventstore.server.feature import Feature, Route
from eventstore.server.net.budgets import Reservation
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.net.request_task import RequestTask
from eventstore.server.requests.new_events import NewEvents
from eventstore.server.shard_layout import ServedLayout
from eventstore.store.committer import EventCommitter
from eventstore.store.read.reader_place import check_place, placed
from eventstore.store.read.scan import EXAMINED_EVENTS_MAX, ScanPage

_log = logging.getLogger(__name__)


class ServedSubscription:
    """One subscription of one connection, served by one task. `end`: the last sequence when it was asked for."""

    light: ClassVar[bool] = False

    def __init__(
        self,
        task: RequestTask,
        connection: ServerConnection,
        request_id: int,
        request: AnySubscribe,
        end: int,
        start: ReaderStart,
        own: SlotFilter | None,
    ) -> None:
        self.task, self.connection, self.request_id = task, connection, request_id
        self.from_end = start.place is None
        self.place = start.place or LogPosition(end)
        self.after = self.place.sequence
        self.own = own
        self.moved: Elsewhere | None = None
        self.wanted = filter_of(request)
        self.credit = request.credit
        self.told = self.after  # the last page that was sent ended here
        self.more_credit = trio.Event()

    @property
    def use(self) -> str:
        """What it reads, for people, and where it is."""
        wanted = self.wanted
        of = wanted.aggregate_id or (f"{wanted.aggregate_prefix}…" if wanted.aggregate_prefix else "all")
        return f"subscribes to events of {of}, at {self.after}"

    def cancel(self) -> None:
        self.task.cancel()

    def move(self, error: Elsewhere) -> None:
        """Ends it, unless it is ended already."""
        if not self.task.scope.cancel_called:
            self.moved = error
            self.task.cancel()


class ServedSubscriptions:
    """All subscriptions. Each costs a task, which sleeps while there is nothing new.

    Subscribers that lag on a slow disk delay only each other and those who read everything.
    """

    def __init__(self, gate: Gate, committer: EventCommitter, nursery: trio.Nursery, layout: ServedLayout) -> None:
        self._gate = gate
        self._layout = layout
        layout.moved.append(self._move)
        self._committer = committer
        self._nursery = nursery
        self._news = NewEvents(committer)
        nursery.start_soon(self._news.run)
        self._served: set[ServedSubscription] = set()
        routes: dict[type[Request], Route] = {
            Subscribe: self.begin,
            SubscribeMatching: self.begin,
            Credit: self.credit,
            Unsubscribe: self.end,
        }
        self.feature = Feature(routes=routes, metrics=[MetricSource(SUBSCRIPTION_METRICS, lambda: self)])

    def begin(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, Subscribe | SubscribeMatching)
        end, start = self._committer.engine.visible_sequence, ReaderStart.parse("after", request.after)
        own, task = self._layout.filter_of(start.layout), RequestTask(self._gate, connection)
        subscription = ServedSubscription(task, connection, request_id, request, end, start, own)
        check_start(subscription.after, end)
        connection.bind(request_id, subscription)
        self._nursery.start_soon(self._serve, subscription)

    def credit(self, connection: ServerConnection, _: int, request: Request) -> None:
        """Adds credit. A subscription that has ended in the meantime is not an error."""
        assert isinstance(request, Credit)
        subscription = connection.bound.get(request.subscription)
        if isinstance(subscription, ServedSubscription):
            subscription.credit = min(subscription.credit + request.credit, CREDIT_BYTES_MAX)
            subscription.more_credit.set()

    def end(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        assert isinstance(request, Unsubscribe)
        subscription = connection.release(request.subscription)
        if subscription is not None:
            subscription.cancel()
        self._gate.send(connection, encode_answer(request_id, Unsubscribe, None))

    @property
    def count(self) -> int:
        """How many are active."""
        return len(self._served)

    def _move(self, error: Elsewhere) -> None:
        for each in list(self._served):
            each.move(error)

    async def _serve(self, subscription: ServedSubscription) -> None:
        self._served.add(subscription)
        try:
            with subscription.task.begin():
                if subscription.place.identity:
                    check = partial(check_place, self._committer.engine.scan, subscription.place)
                    await self._gate.scheduler.page(subscription.connection, check)
                    await trio.lowlevel.checkpoint_if_cancelled()  # as in `_page`
                await self._push(subscription)
            if subscription.moved is not None:
                raise subscription.moved
        except EventStoreError as error:
            if subscription.moved is not None or not subscription.task.scope.cancel_called:
                self._send(subscription, encode_error(subscription.request_id, error))
        except Exception:
            _log.exception("a subscription failed; its connection is closed")
            self._gate.drop(subscription.connection)
        finally:
            self._served.discard(subscription)
            subscription.connection.unbind(subscription.request_id, subscription)

    async def _push(self, subscription: ServedSubscription) -> None:
        engine = self._committer.engine
        caught_up, stored = False, subscription.after if subscription.from_end else engine.visible_sequence
        if subscription.from_end:
            await self._wait_until_durable(stored)
        while True:
            while subscription.credit <= 0:
                subscription.more_credit = trio.Event()
                await subscription.more_credit.wait()
            at_once = subscription.from_end and not caught_up  # with a page of no records, which says where it begins
            page = await (self._begin(subscription) if at_once else self._page(subscription))
            if page is None:
                return
            caught_up = self._send_page(subscription, page, caught_up, stored)
            del page  # thousands of subscriptions wait below
            if caught_up:
                seen = await self._news.wait(subscription.wanted, subscription.after)
                subscription.after = seen.sequence
                if seen.identity:
                    self._send_page(subscription, ScanPage(b"", seen.sequence, True, seen.identity), caught_up, stored)
            else:  # whatever was there when it began: it need not pass the filter
                await self._wait_until_durable(subscription.after + 1)

    def _send_page(self, subscription: ServedSubscription, page: ScanPage, caught_up: bool, stored: int) -> bool:
        """Sends a page if it says anything new; returns whether the subscriber has caught up with `stored`."""
        at_end = page.at_end and page.next >= stored
        passed = subscription.connection.places and page.next - subscription.told >= EXAMINED_EVENTS_MAX
        if page.records or (at_end and not caught_up) or passed:
            identity = page.identity if subscription.connection.places else ""
            frame = encode_scan_page(subscription.request_id, page.next, at_end, page.records, identity)
            subscription.credit -= len(frame) - LENGTH_BYTES
            subscription.told = page.next
            self._send(subscription, frame)
            caught_up = caught_up or at_end
        subscription.after = max(subscription.after, page.next)
        return caught_up

    async def _wait_until_durable(self, sequence: int) -> None:
        while self._committer.engine.durable_sequence < sequence:
            await self._committer.advanced.park()

    async def _begin(self, subscription: ServedSubscription) -> ScanPage:
        """Returns a page of no records, which says where the end is that it begins at."""
        page = ScanPage(b"", subscription.after, True)
        if subscription.connection.places:
            page = await self._gate.scheduler.page(subscription.connection, partial(placed, self._committer.engine.scan, page))
            await trio.lowlevel.checkpoint_if_cancelled()  # as in `_page`
        return page

    async def _page(self, subscription: ServedSubscription) -> ScanPage | None:
        """Returns the next page once there is room for it; None if the connection is closed."""
        size = max(1, min(subscription.credit, PAGE_BYTES_DEFAULT))
        after, wanted, engine = subscription.after, subscription.wanted, self._committer.engine
        whole = not subscription.connection.places or (wanted.everything and subscription.own is None)

        async def make(reservation: Reservation) -> ScanPage:
            async with reservation as bytes_max:
                scan = partial(engine.scan, after, wanted, bytes_max, None, durable=True, own=subscription.own)
                page = await self._gate.scheduler.page(
                    subscription.connection, scan if whole else lambda: placed(engine.scan, scan())
                )
            await trio.lowlevel.checkpoint_if_cancelled()  # a thread is not cancelled, and nothing may follow the end
            return page

        return await self._gate.outbound.make_page(subscription.connection, size, make, lambda page: len(page.records))

    def _send(self, subscription: ServedSubscription, frame: bytes) -> None:
        self._gate.send(subscription.connection, frame)
        self._gate.flush()


SUBSCRIPTION_METRICS: Final[tuple[Metric[ServedSubscriptions], ...]] = (
    gauge("subscriptions", "open subscriptions", lambda subscriptions: subscriptions.count),
)
