"""Asks all addresses of a cluster at once for a newer map, while a shard does not answer.

The one that the map is watched at may be as silent as the shard, or cut off from the others: whoever knows a newer map first is
believed. For the async client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from eventstore.client.address import Address, Addresses
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.routing.table import RoutingTable
from eventstore.errors import EventStoreError
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap

KEPT_S: Final = 3.0
"""How long the addresses are watched after the last request to do so. A call that looks for its shard repeats it within two."""
_AGAIN_S: Final = 0.5
"""The pause after an address has failed."""


class MapSurvey:
    """`learn`: takes each map. Its task belongs to `entry`, whose addresses are asked."""

    def __init__(self, entry: NetworkConnection, table: RoutingTable, learn: Callable[[ClusterMap], object]) -> None:
        self._entry, self._table, self._learn = entry, table, learn
        self._scope: anyio.CancelScope | None = None

    def go_on(self) -> None:
        """Asks, for some seconds from now on; of a single address there is nobody else to ask."""
        tasks = self._entry.user_tasks
        if tasks is None or not self._entry.addresses.are_several:
            return
        if self._scope is None:
            self._scope = anyio.CancelScope()
            tasks.start_soon(self._run, self._scope)
        self._scope.deadline = anyio.current_time() + KEPT_S

    def close(self) -> None:
        """Ends it."""
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                async with anyio.create_task_group() as tasks:
                    for address in self._entry.addresses.in_turn():
                        tasks.start_soon(self._watch, address)
        finally:
            self._scope = None

    async def _watch(self, address: Address) -> None:
        while True:
            try:
                async with NetworkConnection(Addresses([address]), self._entry.options) as node:
                    while True:
                        self._learn(await node.call(Map(self._table.known.version)))
            except EventStoreError:
                await anyio.sleep(_AGAIN_S)
