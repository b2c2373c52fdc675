"""What `subscribe` returns over several shards: the events of each in order, a page of one, then of another.

All shards are read at the same time, each within its own window, so a slow one holds up its own events alone. One that was
split ends its part, which continues with the shard and its children, as in `merged_events`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf

import anyio
import anyio.lowlevel

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import in_time
from eventstore.client.aio.routing.router import Router
from eventstore.client.aio.streams import PagedStream
from eventstore.client.backoff import Backoff
from eventstore.client.limit import within
from eventstore.client.routing.merging import RETRY_S, Away, MergedReached, of_shard
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import ConnectionLost, Elsewhere, EventStoreError
from eventstore.position import After, Position, is_later, starts_of
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.cursors import personal_in
from eventstore.records.event_filter import EventFilter


def follow_shards(router: Router, after: After, wanted: EventFilter, timeout: float | None = None) -> MergedSubscription:
    """Returns the events of all shards as they are appended. `timeout`: seconds for each page. Raises InvalidArgument."""
    slot = router.table.slot_of_only(wanted.aggregate_id)
    return MergedSubscription(router, after, wanted, lambda known: MergedReached(known, starts_of(after, known), slot), timeout)


class MergedSubscription(PagedStream[SubscriptionItem]):
    """The events of all shards as they are appended, and CaughtUp once, when all shards have delivered what they had stored.

    A shard that is away is waited for, and the log says so; it ends with the last error when no shard can be reached.
    """

    on_passed: Callable[[int], object] | None = None
    """As of `NetworkSubscriptionStream`, with the sum of the sequences of all shards."""

    def __init__(
        self,
        router: Router,
        after: After,
        wanted: EventFilter,
        begin: Callable[[ClusterMap], MergedReached],
        timeout: float | None,
    ) -> None:
        """`timeout`: seconds to wait for each page."""
        self._timeout = timeout
        self._router = router
        self._after = after
        self._wanted = wanted
        self._begin = begin
        self._subscriptions: dict[int, SessionSubscription] = {}
        self._turns: deque[int] = deque()
        self._connections: dict[int, NetworkConnection] = {}
        self._away = Away(())
        self._to_request: dict[int, float] = {}  # the shards that are away, and when each is tried again
        self._moving: dict[int, Backoff] = {}  # those that refused the layout they were read by
        self._resumptions = 0  # of subscriptions that a split has ended
        self._arrived = anyio.Event()  # something of any shard, or the end
        self._closed = False
        self._unopened: tuple[int, list[SubscriptionItem]] | None = None  # of this shard, taken: their keys have not arrived
        self._reached = None if is_later(after, router.table.known) else begin(router.table.known)

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there."""
        if self._reached is None:
            assert isinstance(self._after, Position)
            return self._after
        return self._reached.position

    @property
    def shard(self) -> int:
        """The shard of the last event, whose sequence counts there."""
        assert self._reached is not None, "there was an event"
        return self._reached.shard

    @property
    def resumptions(self) -> int:
        """How often a shard's part continued after a lost connection, perhaps on a store that was restored from a copy."""
        return self._resumptions + sum(each.resumptions for each in self._subscriptions.values())

    async def turn(self) -> Iterator[SubscriptionItem] | None:
        with within(self._timeout):
            return await self._turn()

    async def _turn(self) -> Iterator[SubscriptionItem] | None:
        items: Iterator[SubscriptionItem] | None = None
        while items is None and not self._closed:
            if self._reached is None:
                self._reached = self._begin(await self._router.reach(self._after))
            if not self._subscriptions:
                self._follow(self._reached, self._reached.followed)
            shard = self._unopened[0] if self._unopened is not None else await self._ready(self._reached)
            if shard is not None:
                items = await self._take(self._reached, shard)
        return items

    def _follow(self, reached: MergedReached, changed: Iterable[int]) -> None:
        """Requests the events of these shards, from where the reader stands. Drops those of shards that are not followed."""
        for shard in {*changed, *set(self._subscriptions).difference(reached.followed)}:
            self._drop(shard)
        self._away.follow(reached.followed)
        for shard in reached.followed:
            if shard not in self._subscriptions:
                layout = reached.layout(shard)
                self._subscriptions[shard] = SessionSubscription(
                    reached.start(shard), self._wanted, layout=partial(int, layout)
                )
                self._request(shard)
        self._turns = deque(self._subscriptions)

    async def _ready(self, reached: MergedReached) -> int | None:
        """Waits for a shard that has something to take; they take turns. None: this was closed."""
        while not self._closed:
            now = anyio.current_time()
            for shard in [each for each, due in self._to_request.items() if now >= due]:
                self._request(shard)
            for _ in range(len(self._turns)):
                shard = self._turns[0]
                self._turns.rotate(-1)
                if self._subscriptions[shard].ready and reached.continues in (None, shard):
                    return shard
            self._router.entry.check_loop()
            self._arrived = anyio.Event()
            for each in self._subscriptions.values():
                each.arrived = self._arrived
            with anyio.CancelScope(deadline=min(self._to_request.values(), default=inf)):
                await in_time(self._arrived.wait)
        return None

    async def _take(self, reached: MergedReached, shard: int) -> Iterator[SubscriptionItem] | None:
        """Returns the items of the next page of a shard; None: it had none, but what keeps it away."""
        subscription = self._subscriptions[shard]
        if self._unopened is not None:
            return await self._opened(reached, subscription, *self._unopened)
        try:
            items = subscription.take()
        except Elsewhere as refused:
            await self._move(reached, shard, refused)
            return None
        except EventStoreError as error:
            if not error.retriable:
                raise of_shard(shard, error) from None
            self._lost(shard, error, RETRY_S)
            return None
        self._away.found(shard)
        self._moving.pop(shard, None)
        due = subscription.credit_due()
        if due:
            self._connections[shard].session.grant(subscription, due)
            self._connections[shard].flush()
        if subscription.personal:
            return await self._opened(reached, subscription, shard, items)
        return self._handed_out(reached, subscription, shard, items)

    async def _opened(
        self, reached: MergedReached, subscription: SessionSubscription, shard: int, items: list[SubscriptionItem]
    ) -> Iterator[SubscriptionItem] | None:
        """Returns the items, decrypted. If that fails, they are what the next call takes."""
        self._unopened = shard, items
        await self._router.keys.open(personal_in(items))
        self._unopened = None
        return self._handed_out(reached, subscription, shard, items)

    def _handed_out(
        self, reached: MergedReached, subscription: SessionSubscription, shard: int, items: list[SubscriptionItem]
    ) -> Iterator[SubscriptionItem]:
        handed_out = reached.merged(shard, items, subscription.reached, subscription.end)
        if not items and self.on_passed is not None:
            self.on_passed(reached.through)
        return handed_out

    async def _move(self, reached: MergedReached, shard: int, refused: Elsewhere) -> None:
        """Continues by a newer map: the shard was split, or knows less or more of a split than the map that is known."""
        backoff = self._moving.setdefault(shard, Backoff(self._router.entry.options.reconnect_timeout))
        backoff.lost(time.monotonic())
        if backoff.expired(time.monotonic()):
            self._lost(shard, refused, RETRY_S)
            return
        try:
            await self._router.ask()
        except ConnectionLost as error:
            self._lost(shard, error, RETRY_S)
            return
        splits = reached.move(self._router.table.known)
        changed = {each for split in splits for each in (split.parent, split.child)}
        if shard in changed or shard not in reached.followed:
            self._follow(reached, changed)
        else:
            self._pause(shard, backoff.delay_s())

    def _request(self, shard: int) -> None:
        """Requests the events of a shard, from where they stand."""
        try:
            connection = self._connections[shard] = self._router.shard(shard)
            self._subscriptions[shard].read_by(self, connection.session.dropped.append)
            connection.add(self._subscriptions[shard])
        except ConnectionLost as error:
            self._lost(shard, error, RETRY_S)
        else:
            self._to_request.pop(shard, None)

    def _lost(self, shard: int, error: EventStoreError, pause_s: float) -> None:
        """Waits for a shard. Raises the error if all are away."""
        self._pause(shard, pause_s)
        self._away.lost(shard, error)

    def _pause(self, shard: int, pause_s: float) -> None:
        if self._reached is not None and self._reached.continues == shard:
            self._reached.continues = None  # the others do not wait for it
        self._to_request[shard] = anyio.current_time() + pause_s
        self._subscriptions[shard].renew()

    def _drop(self, shard: int) -> None:
        """Ends the request of a shard's events, and forgets what arrived and was not taken."""
        subscription = self._subscriptions.pop(shard, None)
        if subscription is None:
            return
        self._resumptions += subscription.resumptions
        self._to_request.pop(shard, None)
        connection = self._connections.pop(shard, None)
        if connection is not None:
            connection.session.unsubscribe(subscription)
            connection.flush()

    async def aclose(self) -> None:
        """Ends the subscription, also for a task that waits for its next item."""
        if not self._closed:
            for shard in list(self._subscriptions):
                self._drop(shard)
        self._closed = True
        self._arrived.set()
        self._items = iter(())
        await anyio.lowlevel.checkpoint()
