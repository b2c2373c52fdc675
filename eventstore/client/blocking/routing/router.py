# Generated from eventstore/client/aio/routing/router.py by `make generate`: do not edit.
"""Sends what is about an aggregate to the shard that owns it, over a connection to each shard.

A shard that does not own the slot answers Elsewhere, having stored nothing: the client asks for the map, and sends again what
was refused, until the reconnect timeout is over. Command ids make that safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from eventstore.client.backoff import Backoff
from eventstore.client.blocking.connection import Connection
from eventstore.client.blocking.routing.shard_connection import ShardConnection
from eventstore.client.blocking.routing.together import pause, together, watch_map
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


def is_entry(connection: Connection) -> bool:
    """Whether the connection is to a cluster: to a node, which has the map and no shard, or to one of several addresses."""
    welcome = connection.welcome
    if welcome is None or welcome.cluster is None:
        return False
    return welcome.shard is None or connection.addresses.are_several


def open_router(entry: Connection) -> Router:
    """Returns the router of the cluster that `entry` has the map of."""
    router = Router(entry, Table(entry.call(Map(), read_cluster), entry.address))
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
        self.stop_watching: Callable[[], object] | None = None

    def close(self) -> None:
        """Ends the connections to the shards."""
        if self.stop_watching is not None:
            self.stop_watching()
        for each in self._shards.values():
            each.close()

    def learn(self, known: ClusterMap) -> None:
        """Takes a newer map, and has the connections follow it. Raises ConnectionLost: it is that of another cluster."""
        if self.table.learn(known):
            for each in list(self.followers):
                each.map_changed()

    def of(self, aggregate_id: str) -> Connection:
        """Returns the connection to the shard of an aggregate."""
        return self.shard(self.table.shard_of(aggregate_id))

    def only(self, wanted: str) -> Connection:
        """Returns the connection to the only shard. `wanted`: what needs it. Raises InvalidArgument if there are several."""
        return self.shard(self.table.only_shard(wanted))

    def shard(self, number: int) -> Connection:
        """Returns the connection to a shard, which connects wherever the shard is."""
        self.entry.check()
        if number not in self._shards:
            self._shards[number] = ShardConnection(number, self, self.entry)
        return self._shards[number]

    @property
    def has_several(self) -> bool:
        """Whether there is more than one shard."""
        return len(self.table.known.shards) > 1

    def connections(self) -> dict[int, Connection]:
        """Returns the connections to all shards, by number."""
        return {each.shard: self.shard(each.shard) for each in self.table.known.shards}

    def call(self, aggregate_id: str, request: Request, read: Callable[[Call[Any]], T]) -> T:
        """As `Connection.call`, at the shard of the aggregate."""
        found: T = self._at_shard(aggregate_id, lambda shard: shard.call(request, read))
        return found

    def call_all(self, request: Request, read: Callable[[Call[Any]], T]) -> list[T]:
        """Makes the call at all shards at once. Returns the results in the order of the shards, or raises the first error."""
        asked = [partial(self._call_one, each.shard, request, read) for each in self.table.known.shards]
        answers: list[T] = []
        for answer in together(asked):
            if isinstance(answer, EventStoreError):
                raise answer
            answers.append(answer)
        return answers

    def _call_one(self, number: int, request: Request, read: Callable[[Call[Any]], T]) -> T | EventStoreError:
        try:
            return self.shard(number).call(request, read)
        except EventStoreError as error:
            return error

    def put(self, queue: Queue, aggregate_id: str, row: Any) -> Any:
        """As `Connection.put`, at the shard of the aggregate. `queue`: of a connection's session."""
        return self._at_shard(aggregate_id, lambda shard: shard.put(queue(shard), row))

    def _at_shard(self, aggregate_id: str, send: Callable[[Connection], Any]) -> Any:
        """Sends to the shard of the aggregate, again with a newer map as long as it answers Elsewhere."""
        backoff = Backoff(self.entry.options.reconnect_timeout)
        while True:
            try:
                return send(self.of(aggregate_id))
            except Elsewhere as error:
                self._look_again(backoff, error)

    def put_many(
        self,
        queue: Queue,
        given: Iterable[Any],
        encode: Callable[[Sequence[Any]], Sequence[Any]],
        id_of: Callable[[Any], str],
    ) -> list[Any]:
        """As `Connection.put_many`: each shard gets its rows, and a shard that stays away makes errors of its own alone."""
        self.entry.check()
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
        backoff, missing = Backoff(self.entry.options.reconnect_timeout), list(range(len(rows)))
        while missing:
            self._put_rows(queue, rows, self.table.split(slots, missing), outcomes)
            missing = [place for place in missing if isinstance(outcomes[place], Elsewhere)]
            if missing:
                try:
                    self._look_again(backoff, outcomes[missing[-1]])
                except EventStoreError:
                    break  # the outcomes say it
        return with_refused(encoded, iter(outcomes))

    def put_messages(
        self, queue: Queue, given: Iterable[Any], encode: Callable[[Sequence[Any]], Sequence[Any]], key_of: Callable[[Any], Any]
    ) -> list[Any]:
        """As `put_many`: a message goes to the shard that would own an aggregate of its key's name, or to the next one."""
        self.entry.check()
        encoded = encode(list(given))
        rows = valid_rows(encoded)
        by_shard: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            by_shard.setdefault(self.table.shard_of_key(key_of(row)), []).append(place)
        outcomes: list[Any] = [None] * len(rows)
        self._put_rows(queue, rows, by_shard, outcomes)
        return with_refused(encoded, iter(outcomes))

    def _put_rows(self, queue: Queue, rows: Sequence[Any], by_shard: Mapping[int, Sequence[int]], outcomes: list[Any]) -> None:
        put = [partial(self._put_to, queue, shard, [rows[place] for place in where]) for shard, where in by_shard.items()]
        for where, found in zip(by_shard.values(), together(put), strict=True):
            for place, outcome in zip(where, found, strict=True):
                outcomes[place] = outcome

    def _put_to(self, queue: Queue, number: int, rows: Sequence[Any]) -> list[Any]:
        try:
            shard = self.shard(number)
            return shard.put_many(queue(shard), rows, _as_they_are)
        except EventStoreError as error:
            return [copy_error(error) for _ in rows]

    def _look_again(self, backoff: Backoff, refused: Elsewhere) -> None:
        """Waits a little, and asks for the map. Raises the refusal once the reconnect timeout is over."""
        backoff.lost(time.monotonic())
        if backoff.expired(time.monotonic()):
            raise refused
        pause(backoff.delay_s())
        self.learn(self.entry.call(Map(), read_cluster))


def _as_they_are(rows: Sequence[Any]) -> Sequence[Any]:
    return rows
