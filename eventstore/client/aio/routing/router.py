"""Sends what is about an aggregate to the shard that owns it, over a connection to each shard.

A shard that does not own the slot answers Elsewhere, having stored nothing: the client asks for the map, and sends again what
was refused, and what was not answered before a connection was lost, until the reconnect timeout is over. Command ids make that
safe, and `SlotOrder` keeps the order.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, Self, TypeVar, cast

import anyio

from eventstore.client.address import Addresses
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import in_time
from eventstore.client.aio.routing.across import ask_across
from eventstore.client.aio.routing.shard_connection import ShardConnection
from eventstore.client.aio.routing.survey import MapSurvey
from eventstore.client.aio.routing.together import News, together, watch_map
from eventstore.client.aio.subject_keys import NetworkKeys
from eventstore.client.connection_errors import is_returned, outcome_unknown, timed_out_after
from eventstore.client.limit import taken_in_time
from eventstore.client.options import ClientOptions
from eventstore.client.routing.looking import Looking
from eventstore.client.routing.merging import later_layout
from eventstore.client.routing.slot_order import SlotOrder, Ticket
from eventstore.client.routing.table import RoutingTable
from eventstore.client.session.batches import BATCH_ROWS, BatchQueue, RowQueue, valid_rows, with_refused
from eventstore.client.session.message_rows import with_shards
from eventstore.errors import Elsewhere, EventStoreError, TimedOut, copy_error
from eventstore.position import After, is_later
from eventstore.protocol.request_declaration import Answered
from eventstore.protocol.requests import Map
from eventstore.protocol.subject_requests import LeasedKeys, LeaseKeys
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.slots import LOCAL, slot_of

A = TypeVar("A")
Queue = Callable[[NetworkConnection], BatchQueue[Any, Any, Any]]
Ways = Mapping[int, RowQueue[Any, Any, Any]]


async def open_router(entry: NetworkConnection) -> Router:
    """Returns the router of the cluster that `entry` has the map of."""
    return Router(entry, RoutingTable(await entry.call(Map()), entry.address)).watched()


@asynccontextmanager
async def opened_router(addresses: Addresses, options: ClientOptions, table: RoutingTable) -> AsyncIterator[Router]:
    """As a context: the router of a cluster whose map is known. Waits for no connection."""
    entry = NetworkConnection(addresses, options)
    async with anyio.create_task_group() as entry.user_tasks:
        entry.begin(entry.user_tasks)
        router = Router(entry, table).watched()
        try:
            yield router
        finally:
            router.close()
            entry.close()


class Router:
    """The connections to shards, each opened at its first use. `followers` are told of a newer map than the table's."""

    def __init__(self, entry: NetworkConnection, table: RoutingTable) -> None:
        self.entry = entry
        self.table = table
        self._news = News()
        self.followers: list[Any] = [self._news]
        self._shards: dict[int, ShardConnection] = {}
        self._orders: dict[Queue, SlotOrder[Any]] = {}
        self._survey = MapSurvey(entry, table, self.learn)
        self.stop_watching: Callable[[], object] | None = None
        self._closed = False

    def watched(self) -> Self:
        """Learns of each newer map from now on."""
        self.stop_watching = watch_map(self.entry, self.table, self.learn)
        return self

    def _check_open(self) -> None:
        """Raises Closed. That the entry is away does not matter while the shards are where they were."""
        if self._closed:
            self.entry.check()

    def close(self) -> None:
        """Ends the connections to the shards. Close the entry, too."""
        self._closed = True
        if self.stop_watching is not None:
            self.stop_watching()
        self._survey.close()
        for each in self._shards.values():
            each.close()
        for order in list(self._orders.values()):
            order.wake_all()

    def learn(self, known: ClusterMap) -> None:
        """Takes a newer map, and has the connections follow it. Raises ConnectionLost: it is that of another cluster."""
        if self.table.learn(known):
            for each in list(self.followers):
                each.map_changed()

    def survey(self) -> None:
        """Asks all addresses for a newer map, for some seconds from now on: a shard does not answer, or is not found."""
        if not self._closed:
            self._survey.go_on()

    def of(self, aggregate_id: str) -> NetworkConnection:
        """Returns the connection to the shard of an aggregate."""
        return self.shard(self.table.shard_of(aggregate_id))

    def only(self, wanted: str) -> NetworkConnection:
        """Returns the connection to the only shard. `wanted`: what needs it. Raises InvalidArgument if there are several."""
        return self.shard(self.table.only_shard(wanted))

    def shard(self, number: int) -> NetworkConnection:
        """Returns the connection to a shard, which connects wherever the shard is."""
        found = self._shards.get(number)
        if found is None:
            if self._closed:
                return self.entry  # which says so when it is used
            found = self._shards[number] = ShardConnection(number, self, self.entry)
        return found

    @property
    def connected(self) -> bool:
        """Whether there is a connection to each shard that something waits for."""
        return all(each.welcome is not None or each.session.idle for each in list(self._shards.values()))

    @property
    def has_several(self) -> bool:
        """Whether there is more than one shard."""
        return len(self.table.known.shards) > 1

    @cached_property
    def keys(self) -> NetworkKeys:
        """The keys of subjects that were leased from the shards."""
        return NetworkKeys(self.lease_keys)

    async def lease_keys(self, subjects: tuple[str, ...], create: bool) -> LeasedKeys:
        """Returns the keys of the first of the subjects, and of those others that are in the same shard."""

        def request(known: ClusterMap) -> LeaseKeys:
            shard = known.owners[slot_of(subjects[0])]
            return LeaseKeys(create, tuple(each for each in subjects if known.owners[slot_of(each)] == shard))

        return await self.call(subjects[0], request)

    def connections(self) -> dict[int, NetworkConnection]:
        """Returns the connections to all shards, by number."""
        return {each.shard: self.shard(each.shard) for each in self.table.known.shards}

    def _order(self, queue: Queue) -> SlotOrder[Any]:
        """Returns the order of what is sent through a queue: commits and commands have one each."""
        return self._orders.get(queue) or self._orders.setdefault(queue, SlotOrder(anyio.Event))

    async def call(self, aggregate_id: str, request: Answered[A] | Callable[[ClusterMap], Answered[A]]) -> A:
        """As `NetworkConnection.call`, at the shard of the aggregate; repeated with a newer map while it answers Elsewhere.
        `request`: makes it of the map that is known, if it depends on that.
        """
        backoff = Looking(self)
        while True:
            try:
                made = request if isinstance(request, Answered) else request(self.table.known)
                return await self.of(aggregate_id).call(made)
            except Elsewhere as error:
                await self.look_again(backoff, error)

    async def reach(self, after: After, field: str = "after") -> ClusterMap:
        """Returns a map that has the layout of the position: another node may know of a split before this one does. `field`:
        the argument that errors name.
        """
        backoff = Looking(self)
        while is_later(after, self.table.known):
            await self.look_again(backoff, later_layout(after, self.table.known, field))
        return self.table.known

    async def call_all(self, request_of: Callable[[int], Answered[A]]) -> list[A]:
        """Makes the call at all shards at once, each with its layout; again if one was split. Raises the first error."""
        backoff = Looking(self)
        while True:
            layouts = self.table.known.layouts().items()
            answers = await together([partial(self._call_one, shard, request_of(layout)) for shard, layout in layouts])
            error = next((each for each in answers if isinstance(each, EventStoreError)), None)
            if error is None:
                return cast("list[A]", answers)
            if not isinstance(error, Elsewhere):
                raise error
            await self.look_again(backoff, error)

    async def call_across(self, request: Answered[A], *, resend: bool | None = None) -> A:
        """As `NetworkConnection.call`, at all shards: their answers are merged as the request declares."""
        return await ask_across(self, request, resend)

    async def _call_one(self, number: int, request: Answered[A]) -> A | EventStoreError:
        try:
            return await self.shard(number).call(request)
        except EventStoreError as error:
            return error

    async def put(self, queue: Queue, aggregate_id: str, row: Any) -> Any:
        """As `NetworkConnection.put`, at the shard of the aggregate. `queue`: of a connection's session, for routers."""
        refused = self.table.refusal(aggregate_id)
        if refused is not None:
            raise refused
        self._check_open()
        slot, owners, order = slot_of(aggregate_id), self.table.known.owners, self._order(queue)
        shard, outcomes = owners[slot], [None]
        way = queue(self.shard(shard)).now
        ticket = order.enter((slot,))
        try:
            if order.take(ticket, owners, {shard: way}):  # as most calls
                outcomes = await self._put_to(shard, way, (row,))
                order.answered(ticket, (slot,), {slot} if is_returned(outcomes[0]) else ())
            if ticket.slots:
                await self._put_until_answered(queue, order, ticket, (row,), (slot,), outcomes)
        finally:
            order.leave(ticket)
        if isinstance(outcomes[0], EventStoreError):
            raise outcomes[0]
        return outcomes[0]

    async def put_many(
        self, queue: Queue, given: Iterable[Any], encode: Callable[[Sequence[Any]], Sequence[Any]], id_of: Callable[[Any], str]
    ) -> list[Any]:
        """As `NetworkConnection.put_many`: each shard gets its rows; a shard that stays away fails its own rows only."""
        self._check_open()
        encoded = encode(list(taken_in_time(given)))
        rows = valid_rows(encoded)
        slots = list(map(slot_of, map(id_of, rows)))
        if LOCAL in slots:
            encoded = [
                each if isinstance(each, EventStoreError) else self.table.refusal(id_of(each)) or each for each in encoded
            ]
            rows = valid_rows(encoded)
            slots = list(map(slot_of, map(id_of, rows)))
        outcomes: list[Any] = [None] * len(rows)
        order = self._order(queue)
        ticket = order.enter(slots)
        try:
            await self._put_until_answered(queue, order, ticket, rows, slots, outcomes)
        finally:
            order.leave(ticket)
        return outcomes if len(rows) == len(encoded) else with_refused(encoded, iter(outcomes))

    async def _put_until_answered(
        self,
        queue: Queue,
        order: SlotOrder[Any],
        ticket: Ticket[Any],
        rows: Sequence[Any],
        slots: Sequence[int],
        outcomes: list[Any],
    ) -> None:
        """Sends rows until each has its outcome: what a shard refused, or did not answer, again where the newest map says.
        `outcomes`: those of an earlier attempt, or None.
        """
        backoff, missing = Looking(self), list(range(len(rows)))
        returned = [place for place in missing if outcomes[place] is not None]
        unsure: set[int] = set()
        error: EventStoreError | None = None
        try:
            while missing:
                if returned:
                    unsure.update(place for place in returned if not isinstance(outcomes[place], Elsewhere))
                    error = await self._prepare_again(backoff, [outcomes[place] for place in returned])
                    if error is not None:
                        break
                returned = []
                known = self.table.known
                by_shard = self.table.split(slots, missing, known)
                ways = {each: queue(self.shard(each)).now for each in by_shard}
                free = order.take(ticket, known.owners, ways)
                if not free:
                    backoff.lost(time.monotonic())
                    assert ticket.signal is not None
                    await in_time(ticket.signal.wait)
                    self._check_open()
                    continue
                now = missing
                if len(free) < len(ticket.slots):
                    now = [each for each in missing if slots[each] in set(free)]
                    by_shard = self.table.split(slots, now, known)
                await self._put_rows(ways, rows, by_shard, outcomes)
                returned = [each for each in now if isinstance(outcomes[each], EventStoreError) and is_returned(outcomes[each])]
                order.answered(ticket, free, {slots[place] for place in returned})
                if len(now) == len(missing) and not returned:
                    return
                missing = [place for place in missing if outcomes[place] is None or is_returned(outcomes[place])]
        except EventStoreError as closed:
            error = closed
        for place in missing:
            if (outcomes[place] is None and error is not None) or isinstance(error, TimedOut):
                outcomes[place] = copy_error(error)
            elif place in unsure:  # an earlier process may have stored it
                outcomes[place] = outcome_unknown()
        for place in unsure:
            if isinstance(over := outcomes[place], TimedOut):
                outcomes[place] = timed_out_after(over, changed=True)

    async def _prepare_again(self, backoff: Looking, returned: Sequence[EventStoreError]) -> EventStoreError | None:
        """Waits a little and asks for the map if a shard refused something. Returns the error that ends further attempts."""
        backoff.lost(time.monotonic())
        refused = [each for each in returned if isinstance(each, Elsewhere)]
        try:
            if refused:
                await self.look_again(backoff, refused[-1])
            elif backoff.expired(time.monotonic()):
                return returned[-1]
        except EventStoreError as error:
            return error
        return None

    async def put_messages(
        self, queue: Queue, given: Iterable[Any], encode: Callable[[Sequence[Any]], Sequence[Any]], key_of: Callable[[Any], Any]
    ) -> list[Any]:
        """As `put_many`: a message goes to the shard that would own an aggregate of its key's name, or to the next one."""
        self._check_open()
        encoded = encode(list(taken_in_time(given)))
        rows = valid_rows(encoded)
        by_shard = self.table.split_keys(map(key_of, rows))
        outcomes: list[Any] = [None] * len(rows)
        await self._put_rows({each: queue(self.shard(each)) for each in by_shard}, rows, by_shard, outcomes)
        return with_refused(encoded, iter(with_shards(outcomes, by_shard)))

    async def _put_rows(
        self, ways: Ways, rows: Sequence[Any], by_shard: Mapping[int, Sequence[int]], outcomes: list[Any]
    ) -> None:
        if len(by_shard) == 1 and len(rows) == len(*by_shard.values()):  # as most calls
            ((shard, way),) = ways.items()
            outcomes[:] = await self._put_to(shard, way, rows)
            return
        put = [partial(self._put_to, each, ways[each], [rows[place] for place in where]) for each, where in by_shard.items()]
        for where, found in zip(by_shard.values(), await together(put), strict=True):
            for place, outcome in zip(where, found, strict=True):
                outcomes[place] = outcome

    async def _put_to(self, number: int, way: RowQueue[Any, Any, Any], rows: Sequence[Any]) -> list[Any]:
        try:
            shard = self.shard(number)
            if len(rows) == 1:
                return [await shard.put(way, rows[0])]
            return await shard.put_many(way, rows, list, BATCH_ROWS)  # nothing is left to encode meanwhile
        except EventStoreError as error:
            return [copy_error(error) for _ in rows]

    async def look_again(self, backoff: Looking, refused: EventStoreError) -> None:
        """Waits for a newer map, or a little, and asks for it. Raises the refusal once the reconnect timeout is over."""
        backoff.lost(time.monotonic())
        if backoff.expired(time.monotonic()):
            raise refused
        if backoff.lasts_long(time.monotonic()):
            self.survey()
        await self._news.wait(backoff.delay_s(), backoff.knows_more)
        if not backoff.knows_more():
            await self.ask()
        backoff.looked()

    async def ask(self) -> None:
        """Asks for the map."""
        self.learn(await self.entry.call(Map()))
