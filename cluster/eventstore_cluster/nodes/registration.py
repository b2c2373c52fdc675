"""The key of a node in the registry, under a lease: while a node has it, it counts as running, and no other node can take its
name.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import trio

from eventstore import __version__
from eventstore.chunks.documents import Tree
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.server.logs import get_logger
from eventstore_cluster.nodes.addresses import check_apart
from eventstore_cluster.nodes.first_read import START_S, first_read
from eventstore_cluster.nodes.options import ReplicatedOptions
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry, batches
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.failing import Failing
from eventstore_cluster.registry.kept_keys import Kept, offer_keys, own_offers
from eventstore_cluster.registry.node_clocks import clocks_apart
from eventstore_cluster.registry.node_keys import NODES, NodeKey, fixed_addresses, read_node
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import FORMAT, SHARDS

_RENEWALS: Final = 3
"""In the time of a lease."""
_LEASE_S_LEAST: Final = 2
"""etcd's shortest lease, as it is set up by default."""
_GRACE_S: Final = 2.5
"""By which etcd may end a lease late: a restarted etcd gives each lease a second more, and looks every half second."""
_RETRY_S: Final = 0.5
_REVOKE_S: Final = 2.0
_CLOCK_MOVED_S: Final = 1.0
"""What others are told of the own clock is renewed when it is wrong by more."""
_SHARE_TOLD: Final = 16
"""A change of the free space by this part of it is told."""
_log = get_logger("eventstore.cluster")


class Registration:
    """Writes and renews the key.

    Attributes:
        lost: why the node has no key any more; None while it has.
    """

    def __init__(
        self,
        gateway: Gateway,
        registry: EtcdRegistry,
        options: ReplicatedOptions,
        address: str,
        failing: Callable[[], tuple[Failing, ...]] = tuple,
    ) -> None:
        """`address`: where clients ask the node for the map. `failing` returns which replicas cannot run now."""
        self._gateway, self._registry = gateway, registry
        self._name, self._key, self._lease_s = options.name, f"{NODES}{options.name}", options.lease_s
        self._data = options.settings.data
        ports = not options.settings.listen.endswith(":0")
        run = uuid.uuid4().hex
        self._value = NodeKey(address, run, __version__, options.zone, self._free_bytes(), ports=ports, format=FORMAT)
        self._lease: Lease | None = None
        self._failing = failing
        self._told = True  # the registry has what `_value` says
        self.lost: str | None = None

    async def take(self, seen: RegistrySnapshot) -> None:
        """Writes the key. A node that was killed has its name until its lease has run out, so it is waited for that long; and
        so is an etcd that answers reads, and hangs in what it is to write.

        Raises:
            InvalidArgument: another node that runs has the name, or ports that this one needs.
            RegistryUnavailable, RegistryRefused
        """
        numbers = [key.removeprefix(SHARDS) for key in seen.entries if key.startswith(SHARDS)]
        if self._value.ports and (shards := [int(each) for each in numbers if each.isdecimal()]):
            check_apart(self._name, {**fixed_addresses(seen), self._name: self._value.address}, max(shards) + 1)
        seen, said = await self._freed(seen), False
        deadline = trio.current_time() + START_S
        while True:
            why = "its lease has run out before it was written"  # or another node was faster, which is seen
            try:
                if await self._write(seen):
                    return
            except (OutcomeUnknown, RegistryUnavailable) as error:
                why = error.message
            if trio.current_time() >= deadline:
                raise RegistryUnavailable(f"etcd does not write the key of the node: {why}. Check its quorum, and its disk")
            if not said:
                _log.warning("waiting for etcd", error=why)
                said = True
            await trio.sleep(_RETRY_S)
            seen = await self._freed(await first_read(self._registry))

    async def _freed(self, seen: RegistrySnapshot) -> RegistrySnapshot:
        """Returns the keys when no other process has the name.

        Raises:
            InvalidArgument: another node that runs has the name.
            RegistryUnavailable, RegistryRefused
        """
        if (holder := self._holder(seen)) is None:
            return seen
        _log.warning("waiting for the name of the node", name=self._name, holder=holder.address)
        with trio.move_on_after(max(self._lease_s, _LEASE_S_LEAST) + _GRACE_S):
            while self._holder(seen) is not None:
                await self._registry.hint(seen.revision)
                seen = await first_read(self._registry)
            return seen
        seen = await self._registry.read()  # an etcd that went away meanwhile is named, and not a node that may be gone
        if (holder := self._holder(seen)) is None:
            return seen
        raise InvalidArgument(
            f"the name {self._name} is taken by the node at {holder.address}; choose another --name, or stop that node",
            field="name",
            value=self._name,
        )

    async def keep(self) -> None:
        """Renews the lease, and registers again if it has run out; until cancelled."""
        asked = trio.current_time()
        while True:
            await trio.sleep_until(asked + self._lease_s / _RENEWALS)  # a slow answer does not put off the next request
            asked = trio.current_time()
            try:
                if self._lease is None or not await self._lease.keep_alive(self._gateway):
                    await self._register_again()
                else:
                    await self._tell(self._lease)
            except EventStoreError as error:  # tried again; what watches the registry says that etcd is away
                _log.debug("the lease of the node is not renewed", name=self._name, error=error.message)

    @property
    def _clock_s(self) -> float:
        return round(-self._gateway.clock.seconds, 1)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._data).free

    def clock_apart(self) -> dict[str, float]:
        """Returns what `clocks_apart` says of this node, also if etcd does not know it yet."""
        return clocks_apart({self._name: replace(self._value, clock_s=self._clock_s)})

    async def _tell(self, lease: Lease) -> None:
        """Writes the clock and the free space if they have changed by much, and what does not run, for the same reason: every
        change wakes all who watch the registry.
        """
        known, free, failing = self._value.free_bytes or 0, self._free_bytes(), self._failing()
        space_moved = abs(free - known) * _SHARE_TOLD > known
        clock_moved = abs(self._clock_s - self._value.clock_s) > _CLOCK_MOVED_S
        if self._told and not space_moved and not clock_moved and failing == self._value.failing:
            return
        seen = await self._registry.read_some(self._key, under=())
        if self._holder(seen) is None and (revision := seen.revision_of(self._key)):
            self._value = replace(self._value, clock_s=self._clock_s, free_bytes=free, failing=failing)
            self._told = False
            written = await self._registry.transact({self._key: revision}, {self._key: self._value.value()}, lease=lease)
            self._told = written is not None

    async def offer(self, seen: RegistrySnapshot, kept: Kept | None) -> None:
        """Shows in the registry what the node kept of a cluster that is not there; removes the offer if `kept` is None.

        Raises:
            OutcomeUnknown, RegistryUnavailable, RegistryRefused
        """
        wanted = {} if kept is None else offer_keys(self._name, kept)
        there = own_offers(self._name, seen)
        changes: dict[str, Tree | None] = {key: value for key, value in wanted.items() if there.get(key) != value}
        changes |= dict.fromkeys(there.keys() - wanted.keys())
        for some in batches(changes):
            if self._lease is not None:  # otherwise the node registers again, which is seen
                await self._registry.transact({}, some, lease=self._lease)

    async def give_up(self) -> None:
        """Deletes the key, by the end of its lease, unless etcd does not answer."""
        if self._lease is not None:
            await revoke(self._gateway, self._lease)

    async def _register_again(self) -> None:
        if self.lost is None:
            _log.warning("the lease of the node has run out, and it registers again", name=self._name)
            self.lost = "the node is not in the registry: its lease has run out"
        self._lease = None
        seen = await self._registry.read()
        holder = self._holder(seen)
        if holder is not None:
            self.lost = f"the name {self._name} was taken by the node at {holder.address} meanwhile; stop one of the two"
        elif await self._write(seen):
            _log.info("the node is registered again", name=self._name)
            self.lost = None

    def _holder(self, seen: RegistrySnapshot) -> NodeKey | None:
        """Returns the other process that has the name."""
        value = seen.value(self._key)
        found = None if value is None else read_node(self._name, value)
        return None if found is None or found.run == self._value.run else found

    async def _write(self, seen: RegistrySnapshot) -> bool:
        """Writes the key if it is as it was seen; False: it was not, look again.

        Raises:
            OutcomeUnknown: it may be written, and is gone with its lease if it is not written again.
            RegistryUnavailable, RegistryRefused
        """
        lease = await Lease.grant(self._gateway, self._lease_s)
        changes = {self._key: self._value.value()}
        written = await self._registry.transact({self._key: seen.revision_of(self._key)}, changes, lease=lease)
        if written is None:
            await revoke(self._gateway, lease)
            return False
        self._lease, self._told = lease, True
        return True


async def revoke(gateway: Gateway, lease: Lease) -> None:
    """Ends a lease whose holder is gone. If etcd does not answer soon, it runs out by itself."""
    with trio.move_on_after(_REVOKE_S):
        try:
            await lease.revoke(gateway)
        except EventStoreError as error:
            _log.info("a lease is left to run out", error=error.message)
