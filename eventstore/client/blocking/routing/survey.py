"""Asks all addresses of a cluster at once for a newer map, while a shard does not answer.

The one that the map is watched at may be as silent as the shard, or cut off from the others: whoever knows a newer map first is
believed. For the blocking client: a thread for each address, with a connection of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from eventstore.client.address import Address, Addresses
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.options import ClientOptions
from eventstore.client.routing.table import RoutingTable
from eventstore.client.session.results import read_cluster
from eventstore.errors import EventStoreError
from eventstore.forks import tell_of_forks
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap

KEPT_S: Final = 3.0
"""How long the addresses are watched after the last request to do so. A call that looks for its shard repeats it within two."""
_AGAIN_S: Final = 0.5
"""The pause after an address has failed."""


class BlockingMapSurvey:
    """`learn`: takes each map. The addresses of `entry` are asked."""

    def __init__(self, entry: BlockingConnection, table: RoutingTable, learn: Callable[[ClusterMap], object]) -> None:
        self._entry, self._table, self._learn = entry, table, learn
        self._until = 0.0
        self._asked: set[Address] = set()
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, where none of the threads is: it can begin again."""
        self._until, self._asked = 0.0, set()

    def go_on(self) -> None:
        """Asks, for some seconds from now on; of a single address there is nobody else to ask. For any thread."""
        if not self._entry.addresses.are_several:
            return
        self._until = time.monotonic() + KEPT_S
        for address in self._entry.addresses.in_turn():
            if address not in self._asked:
                self._asked.add(address)
                threading.Thread(target=self._watch, args=(address,), name=f"map of {address}", daemon=True).start()

    def close(self) -> None:
        """Ends it, which may take the threads a moment."""
        self._until = 0.0

    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _watch(self, address: Address) -> None:
        try:
            while not self._is_over():
                try:
                    with _Asked(address, self._entry.options, self._is_over) as node:
                        while not self._is_over():
                            self._learn(node.call(Map(self._table.known.version), read_cluster))
                except EventStoreError:
                    time.sleep(0.0 if self._is_over() else _AGAIN_S)
        finally:
            self._asked.discard(address)


class _Asked(BlockingConnection):
    """A connection that closes itself once nobody wants its answer any more."""

    _waits_long = True

    def __init__(self, address: Address, options: ClientOptions, is_over: Callable[[], bool]) -> None:
        super().__init__(Addresses([address]), options)
        self._is_over = is_over

    def _look(self) -> None:
        if self._is_over():
            self.close()
