"""What `subscribe` returns over several shards: the events of each in order, a page of one, then of another.

All shards are read at the same time, each by a thread, within its own window and a queue with a bound: so a slow one holds up
its own events alone. One that was split ends its part, which continues with the shard and its children, as in `merged_events`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Final, Self, TypeAlias

from eventstore.client.backoff import Backoff
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.routing.merged_events import reach
from eventstore.client.blocking.routing.router import BlockingRouter
from eventstore.client.blocking.routing.shard_connection import BlockingShardConnection
from eventstore.client.blocking.streams import chained, subscription_pages
from eventstore.client.routing.merging import RETRY_S, Away, MergedReached, of_shard
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import ConnectionLost, Elsewhere, EventStoreError, copy_error
from eventstore.forks import of_parent, tell_of_forks
from eventstore.position import After, Position, is_later, starts_of
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.event_filter import EventFilter

_PAGES_MAX: Final = 2  # that wait for the consumer, of each shard
_log: Final = logging.getLogger(__name__)

ArrivedPage: TypeAlias = tuple["_Part", "list[SubscriptionItem] | EventStoreError", int]
"""A page of a shard or what keeps it away, and the sequence up to which everything was in a page."""


def follow_shards(router: BlockingRouter, after: After, wanted: EventFilter) -> BlockingMergedSubscription:
    """Returns the events of all shards as they are appended. Raises InvalidArgument."""
    slot = router.table.slot_of_only(wanted.aggregate_id)
    return BlockingMergedSubscription(router, after, wanted, lambda known: MergedReached(known, starts_of(after, known), slot))


class BlockingMergedSubscription:
    """The events of all shards as they are appended, and CaughtUp once, when all shards have delivered what they had stored.

    A shard that is away is waited for, and the log says so; it ends with the last error when no shard can be reached.
    """

    def __init__(
        self, router: BlockingRouter, after: After, wanted: EventFilter, begin: Callable[[ClusterMap], MergedReached]
    ) -> None:
        self._receiver = _Receiver(router)
        self._pages = _SubscriptionPages(self._receiver, router, after, wanted, begin)
        self._items = chained(self._pages.page)
        self._closed = False

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there."""
        return self._pages.position

    @property
    def shard(self) -> int:
        """The shard of the last event, whose sequence counts there."""
        return self._pages.shard

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SubscriptionItem:
        if self._closed:
            raise StopIteration
        return next(self._items)

    def close(self) -> None:
        """Ends the subscription, also for a thread that waits for its next item."""
        self._closed = True
        self._receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._receiver.close()


class _SubscriptionPages:
    """The pages of all shards, as they arrive. They do not know the subscription, so that it can be dropped."""

    def __init__(
        self,
        receiver: _Receiver,
        router: BlockingRouter,
        after: After,
        wanted: EventFilter,
        begin: Callable[[ClusterMap], MergedReached],
    ) -> None:
        self._receiver = receiver
        self._router = router
        self._after = after
        self._wanted = wanted
        self._begin = begin
        self._reached = None if is_later(after, router.table.known) else begin(router.table.known)
        self._away = Away(())
        self._moving: dict[int, Backoff] = {}  # of shards that refused the layout they were read by

    @property
    def position(self) -> Position:
        """As of the subscription."""
        if self._reached is None:
            assert isinstance(self._after, Position)
            return self._after
        return self._reached.position

    @property
    def shard(self) -> int:
        """As of the subscription."""
        assert self._reached is not None, "there was an event"
        return self._reached.shard

    def page(self) -> Iterator[SubscriptionItem] | None:
        """Waits for the next page, and returns its items; None: this was closed."""
        items: Iterator[SubscriptionItem] | None = None
        try:
            while items is None and not self._receiver.closed.is_set():
                items = self._arrived()
        except BaseException:  # of a signal's handler too, which may have taken a page with it: none may follow
            self._receiver.close()
            raise
        return items

    def _arrived(self) -> Iterator[SubscriptionItem] | None:
        """Waits for a page, and returns its items; None: it was none."""
        if self._reached is None:
            self._reached = self._begin(reach(self._router, self._after))
        self._receiver.check()
        if not self._receiver.parts:
            self._follow(self._reached, self._reached.followed)
        arrived = self._receiver.take()
        if arrived is None:
            return None
        part, items, end = arrived
        if isinstance(items, Elsewhere):
            self._move(self._reached, part, items)
        elif not isinstance(items, EventStoreError):
            self._away.found(part.shard)
            self._moving.pop(part.shard, None)
            return self._reached.merged(part.shard, items, end)
        elif items.retriable:
            self._away.lost(part.shard, items)
        else:
            raise of_shard(part.shard, items)
        return None

    def _follow(self, reached: MergedReached, changed: Iterable[int]) -> None:
        """Receives the events of these shards, from where the reader stands, and no longer of any that is not followed."""
        self._receiver.drop({*changed, *set(self._receiver.parts).difference(reached.followed)})
        self._away.follow(reached.followed)
        for shard in reached.followed:
            if shard not in self._receiver.parts:
                layout = partial(int, reached.layout(shard))
                self._receiver.begin(shard, SessionSubscription(reached.start(shard), self._wanted, layout=layout))

    def _move(self, reached: MergedReached, part: _Part, refused: Elsewhere) -> None:
        """Continues by a newer map: the shard was split, or knows less or more of a split than the map that is known."""
        shard = part.shard
        backoff = self._moving.setdefault(shard, Backoff(self._router.entry.options.reconnect_timeout))
        backoff.lost(time.monotonic())
        if backoff.expired(time.monotonic()):
            self._away.lost(shard, refused)
        try:
            self._router.ask()
        except ConnectionLost as error:
            self._away.lost(shard, error)
        splits = reached.move(self._router.table.known)
        changed = {each for split in splits for each in (split.parent, split.child)}
        if shard in changed or shard not in reached.followed:
            self._follow(reached, changed)
        else:
            part.again_after_s = backoff.delay_s()
            part.again.set()


class _Part:
    """The events of one shard, received by a thread until it is `ended`. `again`: set when what it refused may be tried again,
    after a pause.
    """

    def __init__(self, shard: int, subscription: SessionSubscription) -> None:
        self.shard, self.subscription = shard, subscription
        self.connection: BlockingConnection | None = None
        self.ended = threading.Event()
        self.again = threading.Event()
        self.again_after_s = 0.0

    def end(self) -> None:
        self.ended.set()
        self.again.set()
        if self.connection is not None:
            self.connection.close()


class _Receiver:
    """The threads that receive; they do not know the subscription, so that it can be dropped."""

    def __init__(self, router: BlockingRouter) -> None:
        self._arrived: SimpleQueue[ArrivedPage | None] = (
            SimpleQueue()
        )  # of C: one of Python may stay locked by a signal's handler
        self._room: SimpleQueue[None] = SimpleQueue()
        self.closed = threading.Event()
        self._router = router
        self.parts: dict[int, _Part] = {}
        self._refused: EventStoreError | None = None
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, where nothing receives: what was begun is refused."""
        if self.parts:
            self._refused = of_parent("the subscription", "begin another one here, after its position")
        self.closed, self.parts, self._room = threading.Event(), {}, SimpleQueue()
        arrived, self._arrived = self._arrived, SimpleQueue()
        arrived.put(None)  # for this thread, if a signal's handler forks while it waits

    def check(self) -> None:
        """Raises Closed: the parent of this process has begun it."""
        if self._refused is not None:
            raise copy_error(self._refused)

    def begin(self, shard: int, subscription: SessionSubscription) -> None:
        """Receives the events of a shard on a thread."""
        part = self.parts[shard] = _Part(shard, subscription)
        self._make_room(_PAGES_MAX)
        threading.Thread(target=self._receive, args=(part,), name=f"shard {shard}", daemon=True).start()

    def drop(self, shards: Iterable[int]) -> None:
        """Ends the threads of these shards. What they have received and was not taken is not handed out."""
        for shard in shards:
            part = self.parts.pop(shard, None)
            if part is not None:
                part.end()

    def _receive(self, part: _Part) -> None:
        """Puts the pages of a shard into the queue, until its part has ended, or the subscription is closed."""
        subscription = part.subscription
        while not part.ended.is_set():
            try:
                part.connection = BlockingShardConnection(part.shard, self._router, self._router.entry)
                if part.ended.is_set():  # `end` may not have seen this connection
                    part.connection.close()
                    return
                for items in subscription_pages(part.connection, subscription):
                    self._put((part, items, subscription.reached))
            except EventStoreError as error:
                self._put((part, error, subscription.reached))
                subscription.renew()
                if isinstance(error, Elsewhere):
                    part.again.wait()
                    part.again.clear()
                part.ended.wait(part.again_after_s if isinstance(error, Elsewhere) else RETRY_S)
            except Exception as error:  # a bug: else the consumer would wait for this shard without a word
                _log.exception("a bug ended the events of shard %d", part.shard)
                failed = EventStoreError(f"reading shard {part.shard} failed: {type(error).__name__}: {error}")
                self._put((part, failed, subscription.reached))
                return

    def take(self) -> ArrivedPage | None:
        """Waits for a page or an error, and returns it; None: there is none now, or this was closed."""
        arrived = self._arrived.get()
        self._make_room(1)
        return None if arrived is None or arrived[0].ended.is_set() else arrived

    def _put(self, arrived: ArrivedPage) -> None:
        self._room.get()
        if arrived[0].ended.is_set():
            self._make_room(1)
        else:
            self._arrived.put(arrived)

    def _make_room(self, pages: int) -> None:
        for _ in range(pages):
            self._room.put(None)

    def close(self) -> None:
        """Ends the threads, and what they wait for."""
        self.closed.set()
        parts = list(self.parts.values())
        for part in parts:
            part.end()
        self._make_room(2 * len(parts))  # each thread puts a page and an error at most
        self._arrived.put(None)  # wakes a thread that waits for a page
