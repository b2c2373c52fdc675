"""Sends what is about an aggregate to the shard that owns it, over a connection to each shard.

A shard that does not own the slot answers Elsewhere, having stored nothing: the client asks for the map, and sends again what
was refused, and what was not answered before a connection was lost, until the reconnect timeout is over. Command ids make that
safe, and `SlotOrder` keeps the order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from eventstore.client.aio.connection import Connection
from eventstore.client.aio.routing.shard_connection import ShardConnection
from eventstore.client.aio.routing.together import make_order, pause, together, wait_for, watch_map
from eventstore.client.backoff import Backoff
from eventstore.client.connection_errors import is_returned, outcome_unknown
from eventstore.client.routing.slot_order import SlotOrder, Way
from eventstore.client.routing.table import Table
from eventstore.client.session.batches import BatchQueue, valid_rows, with_refused
from eventstore.client.session.calls import Call
from eventstore.client.session.results import read_cluster
from eventstore.errors import Elsewhere, EventStoreError, copy_error
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.slots import LOCAL, slot_of

T = TypeVar("T")
Queue = Callable[[Connection], BatchQueue[Any, Any, Any]]
_ANY_WAY: Final[Mapping[int, Way]] = {}


def is_entry(connection: Connection) -> bool:
    """Whether the connection is to a cluster: to a node, which has the map and no shard, or to one of several addresses."""
    welcome = connection.welcome
    if welcome is None or welcome.cluster is None:
        return False
    return welcome.shard is None or connection.addresses.are_several


async def open_router(entry: Connection) -> Router:
    """Returns the router of the cluster that `entry` has the map of."""
    router = Router(entry, Table(await entry.call(Map(), read_cluster), entry.address))
    router.stop_watching = watch_map(entry, router.table, router.learn)
    return router


class Router:
    """The connections to shards, each opened at its first use. `table`: the newest map that `entry` gave; `followers` are told
    of a newer one.
    """

    def __init__(self, entry: Connection, table: Table) -> None:
        self.entry = entry
        self.table = table
        self.followers: list[ShardConnection] = []
        self._shards: dict[int, ShardConnection] = {}
        self._orders: dict[Queue, SlotOrder[Any]] = {}
        self.stop_watching: Callable[[], object] | None = None
        self._closed = False

    def _check_open(self) -> None:
        """Raises Closed. That the entry is away does not matter while the shards are where they were."""
        if self._closed:
            self.entry.check()

    def close(self) -> None:
        """Ends the connections to the shards. Close the entry, too."""
        self._closed = True
        if self.stop_watching is not None:
            self.stop_watching()
        for each in self._shards.values():
            each.close()
        for order in list(self._orders.values()):
            order.wake_all()

    def learn(self, known: ClusterMap) -> None:
        """Takes a newer map, and has the connections follow it. Raises ConnectionLost: it is that of another cluster."""
        if self.table.learn(known):
            for each in list(self.followers):
                each.map_changed()

    def of(self, aggregate_id: str) -> Connection:
        """Returns the connection to the shard of an aggregate."""
        return self.shard(self.table.shard_of(aggregate_id))

    def only_owner(self, aggregate_id: str | None) -> int | None:
        """Returns the shard that has all events of a filter; None: each may have some. Raises InvalidArgument."""
        return None if aggregate_id is None else self.table.shard_of(aggregate_id)

    def only(self, wanted: str) -> Connection:
        """Returns the connection to the only shard. `wanted`: what needs it. Raises InvalidArgument if there are several."""
        return self.shard(self.table.only_shard(wanted))

    def shard(self, number: int) -> Connection:
        """Returns the connection to a shard, which connects wherever the shard is."""
        found = self._shards.get(number)
        if found is not None:
            return found
        if self._closed:
            return self.entry  # which says so when it is used
        return self._shards.setdefault(number, ShardConnection(number, self, self.entry))  # another thread may make one, too

    @property
    def connected(self) -> bool:
        """Whether there is a connection to each shard that something waits for."""
        return all(each.welcome is not None or each.session.idle for each in list(self._shards.values()))

    @property
    def has_several(self) -> bool:
        """Whether there is more than one shard."""
        return len(self.table.known.shards) > 1

    def connections(self) -> dict[int, Connection]:
        """Returns the connections to all shards, by number."""
        return {each.shard: self.shard(each.shard) for each in self.table.known.shards}

    def _order(self, queue: Queue) -> SlotOrder[Any]:
        """Returns the order of what is sent through a queue: commits and commands have one each."""
        order = self._orders.get(queue)
        return order or self._orders.setdefault(queue, make_order())

    async def call(self, aggregate_id: str, request: Request, read: Callable[[Call[Any]], T]) -> T:
        """As `Connection.call`, at the shard of the aggregate: again with a newer map as long as it answers Elsewhere."""
        backoff = Backoff(self.entry.options.reconnect_timeout)
        while True:
            try:
                return await self.of(aggregate_id).call(request, read)
            except Elsewhere as error:
                await self._look_again(backoff, error)

    async def call_all(self, request: Request, read: Callable[[Call[Any]], T]) -> list[T]:
        """Makes the call at all shards at once. Returns the results in the order of the shards, or raises the first error."""
        asked = [partial(self._call_one, each.shard, request, read) for each in self.table.known.shards]
        answers: list[T] = []
        for answer in await together(asked):
            if isinstance(answer, EventStoreError):
                raise answer
            answers.append(answer)
        return answers

    async def _call_one(self, number: int, request: Request, read: Callable[[Call[Any]], T]) -> T | EventStoreError:
        try:
            return await self.shard(number).call(request, read)
        except EventStoreError as error:
            return error

    async def put(self, queue: Queue, aggregate_id: str, row: Any) -> Any:
        """As `Connection.put`, at the shard of the aggregate. `queue`: of a connection's session, for routers."""
        refused = self.table.refusal(aggregate_id)
        if refused is not None:
            raise refused
        self._check_open()
        outcomes: list[Any] = [None]
        await self._put_in_order(queue, (row,), (slot_of(aggregate_id),), outcomes)
        (outcome,) = outcomes
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def put_many(
        self,
        queue: Queue,
        given: Iterable[Any],
        encode: Callable[[Sequence[Any]], Sequence[Any]],
        id_of: Callable[[Any], str],
    ) -> list[Any]:
        """As `Connection.put_many`: each shard gets its rows, and a shard that stays away makes errors of its own alone."""
        self._check_open()
        encoded = encode(list(given))
        rows = valid_rows(encoded)
        slots = list(map(slot_of, map(id_of, rows)))
        if LOCAL in slots:
            encoded = [
                each if isinstance(each, EventStoreError) else self.table.refusal(id_of(each)) or each for each in encoded
            ]
            rows = valid_rows(encoded)
            slots = list(map(slot_of, map(id_of, rows)))
        outcomes: list[Any] = [None] * len(rows)
        await self._put_in_order(queue, rows, slots, outcomes)
        return with_refused(encoded, iter(outcomes))

    async def _put_in_order(self, queue: Queue, rows: Sequence[Any], slots: Sequence[int], outcomes: list[Any]) -> None:
        """Sends rows until each has its outcome: what a shard refused, or did not answer, again where the newest map says."""
        order = self._order(queue)
        ticket = order.enter(slots)
        backoff, missing = Backoff(self.entry.options.reconnect_timeout), list(range(len(rows)))
        unsure: set[int] = set()
        error: EventStoreError | None = None
        try:
            while missing and error is None:
                known = self.table.known
                ways = {each: self._way(queue, each) for each in {known.owners[slot] for slot in ticket.slots}}
                free = order.take(ticket, known.owners, ways)
                if not free:
                    backoff.lost(time.monotonic())
                    assert ticket.signal is not None
                    await wait_for(ticket.signal)
                    self._check_open()
                    continue
                now = missing if len(free) == len(ticket.slots) else [each for each in missing if slots[each] in set(free)]
                if len(rows) == 1:  # as most calls
                    ((number, way),) = ways.items()
                    outcomes[:] = await self._put_to(queue, number, rows, way)
                else:
                    await self._put_rows(queue, rows, self.table.split(slots, now, known), outcomes, ways)
                returned = [place for place in now if is_returned(outcomes[place])]
                order.answered(ticket, free, {slots[place] for place in returned})
                if len(now) == len(missing) and not returned:
                    return
                missing = [place for place in missing if outcomes[place] is None or is_returned(outcomes[place])]
                unsure.update(place for place in returned if not isinstance(outcomes[place], Elsewhere))
                error = await self._prepare_again(backoff, [outcomes[place] for place in returned])
        except EventStoreError as closed:
            error = closed
        finally:
            order.leave(ticket)
        for place in missing:
            if outcomes[place] is None and error is not None:
                outcomes[place] = copy_error(error)
            elif place in unsure:  # an earlier process may have stored it
                outcomes[place] = outcome_unknown()

    def _way(self, queue: Queue, shard: int) -> Way:
        return shard, queue(self.shard(shard)).generation

    async def _prepare_again(self, backoff: Backoff, returned: Sequence[EventStoreError]) -> EventStoreError | None:
        """Waits a little and asks for the map if a shard refused something. Returns the error that ends further attempts."""
        if not returned:
            return None
        backoff.lost(time.monotonic())
        refused = [each for each in returned if isinstance(each, Elsewhere)]
        try:
            if refused:
                await self._look_again(backoff, refused[-1])
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
        encoded = encode(list(given))
        rows = valid_rows(encoded)
        by_shard: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            by_shard.setdefault(self.table.shard_of_key(key_of(row)), []).append(place)
        outcomes: list[Any] = [None] * len(rows)
        await self._put_rows(queue, rows, by_shard, outcomes)
        return with_refused(encoded, iter(outcomes))

    async def _put_rows(
        self, queue: Queue, rows: Sequence[Any], by_shard: Mapping[int, Sequence[int]], outcomes: list[Any],
        ways: Mapping[int, Way] = _ANY_WAY,
    ) -> None:  # fmt: skip
        put = [
            partial(self._put_to, queue, shard, [rows[place] for place in where], ways.get(shard))
            for shard, where in by_shard.items()
        ]
        for where, found in zip(by_shard.values(), await together(put), strict=True):
            for place, outcome in zip(where, found, strict=True):
                outcomes[place] = outcome

    async def _put_to(self, queue: Queue, number: int, rows: Sequence[Any], way: Way | None) -> list[Any]:
        try:
            shard = self.shard(number)
            rows_of = queue(shard) if way is None else queue(shard).since(way[1])
            if len(rows) == 1:
                return [await shard.put(rows_of, rows[0])]
            return await shard.put_many(rows_of, rows, _as_they_are)
        except EventStoreError as error:
            return [copy_error(error) for _ in rows]

    async def _look_again(self, backoff: Backoff, refused: Elsewhere) -> None:
        """Waits a little, and asks for the map. Raises the refusal once the reconnect timeout is over."""
        backoff.lost(time.monotonic())
        if backoff.expired(time.monotonic()):
            raise refused
        await pause(backoff.delay_s())
        self.learn(await self.entry.call(Map(), read_cluster))


def _as_they_are(rows: Sequence[Any]) -> Sequence[Any]:
    return rows
