"""What the router of the blocking client does for several shards, how it waits, and how it learns of a newer map."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Final, TypeVar

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.limit import check_time, shortened
from eventstore.client.routing.slot_order import SlotOrder
from eventstore.client.routing.table import RoutingTable
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.results import read_cluster
from eventstore.errors import EventStoreError
from eventstore.forks import tell_of_forks
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap

T = TypeVar("T")
_AFTER_AN_ERROR_S: Final = 0.1
_GLANCE_S: Final = 0.005  # rare: only while a slot changes its shard, or a shard its leader


def make_order() -> SlotOrder[PolledSignal]:
    """Returns an order of calls in threads."""
    order = SlotOrder(PolledSignal, threading.get_ident)
    tell_of_forks(order)
    return order


class BlockingNews:
    """Follows a router, for those who wait for a newer map."""

    def map_changed(self) -> None:
        """The router knows a newer map. Those who wait find out: see `wait_for`."""

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Returns when a newer map is known that makes it `over`, at the latest after `seconds`."""
        until = time.monotonic() + shortened(seconds)
        while not over() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _GLANCE_S))


def wait_for(signal: PolledSignal) -> None:
    """Waits until it is set. Polls: a lock of Python may stay locked by a signal's handler. Raises TimedOut."""
    while not signal.is_set():
        check_time()
        time.sleep(_GLANCE_S)


def watch_map(entry: BlockingConnection, table: RoutingTable, learn: Callable[[ClusterMap], object]) -> Callable[[], object]:
    """Passes each map that is newer than that of the table to `learn`, on a thread with a connection of its own. Returns what
    ends that.
    """
    watch = _Watch(entry, table, learn)
    threading.Thread(target=watch.run, name="cluster map", daemon=True).start()
    return watch.close


class _WaitsLong(BlockingConnection):
    """Its silence is noticed while others rely on it; that of a call has all addresses asked."""

    _waits_long = True

    def __init__(self, entry: BlockingConnection) -> None:
        super().__init__(entry.addresses, entry.options)
        self._entry = entry

    @property
    def _is_relied_on(self) -> bool:
        return time.monotonic() < self._entry.relied_on_until


class _Watch:
    def __init__(self, entry: BlockingConnection, table: RoutingTable, learn: Callable[[ClusterMap], object]) -> None:
        self._entry, self._table, self._learn = entry, table, learn
        self._connection: BlockingConnection | None = None
        self._closed = False

    def run(self) -> None:
        while not self._closed:
            connection = self._connection = _WaitsLong(self._entry)
            try:
                with connection:
                    while not self._closed:
                        self._learn(connection.call(Map(self._table.known.version), read_cluster))
            except EventStoreError:  # the next call says it
                time.sleep(0 if self._closed else _AFTER_AN_ERROR_S)

    def close(self) -> None:
        """Ends the thread, which may take it a moment."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Makes the calls at the same time, all but the first on threads, and returns their results in order.

    An exception in this thread, as of a signal handler, leaves the others to end by themselves.
    """
    if not calls:
        return []
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def keep(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            errors.append(error)

    contexts = [copy_context() for _ in calls]  # with the limit of this call
    threads = [threading.Thread(target=contexts[place].run, args=(keep, place), daemon=True) for place in range(1, len(calls))]
    for thread in threads:
        thread.start()
    results[0] = calls[0]()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    return [results[place] for place in range(len(calls))]
