"""Which shard a request of a client goes to, by the map of the cluster; batches are split by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from errno import ECONNREFUSED
from typing import Final
from uuid import UUID

from eventstore.client.address import Address, Addresses, parse_address
from eventstore.errors import ConnectionLost, CrossShard, InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.protocol.handshake import Welcome
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.slots import LOCAL, slot_of

_ANYWHERE: Final = ("0.0.0.0", "::")


def is_entry(welcome: Welcome | None, addresses: Addresses) -> bool:
    """Whether a connection is to a cluster: to a node, which has the map and no shard, or to one of several addresses."""
    if welcome is None or welcome.cluster is None:
        return False
    return welcome.shard is None or addresses.are_several


class RoutingTable:
    """The newest map that a client knows. `asked`: where the map comes from."""

    def __init__(self, known: ClusterMap, asked: Address) -> None:
        self.known = known
        self._asked = asked
        self._next = 0

    def learn(self, newer: ClusterMap) -> bool:
        """Takes a map, unless it is older than the one that is known. Returns whether it is newer.

        Raises:
            ConnectionLost: it is the map of another cluster.
        """
        check_cluster(self.known.cluster, newer.cluster)
        is_newer = newer.version > self.known.version
        if is_newer:
            self.known = newer
        return is_newer

    def shard_of(self, aggregate_id: str) -> int:
        """Returns the number of the shard that owns the aggregate.

        Raises:
            InvalidArgument: not an id, or a reserved one that is about no aggregate: each shard has its own.
        """
        refused = self.refusal(check_text("aggregate_id", aggregate_id))
        if refused is not None:
            raise refused
        return self.known.owners[slot_of(aggregate_id)]

    def check_one_shard(self, aggregate_ids: Sequence[str]) -> None:
        """Raises CrossShard unless one shard owns all of these aggregates; and as `shard_of`."""
        shards = [self.shard_of(each) for each in aggregate_ids]
        for aggregate_id, shard in zip(aggregate_ids, shards, strict=True):
            if shard != shards[0]:
                raise CrossShard(aggregate_ids[0], aggregate_id, shards[0], shard)

    def slot_of_only(self, aggregate_id: str | None) -> int | None:
        """Returns the slot of the aggregate that alone is read; None: all are. Raises as `shard_of`."""
        if aggregate_id is None:
            return None
        self.shard_of(aggregate_id)
        return slot_of(aggregate_id)

    def refusal(self, aggregate_id: str) -> InvalidArgument | None:
        """Returns the error of `shard_of`; None if the aggregate has a shard."""
        if aggregate_id[:1] != "$" or slot_of(aggregate_id) != LOCAL:
            return None
        return InvalidArgument(
            f"each shard has its own {shown(aggregate_id)}: read that of one, with `eventstore read --shard N` or from "
            "`store.shards[N]`; `eventstore audit` shows `$audit` of all",
            field="aggregate_id",
            value=aggregate_id,
        )

    def shard_of_key(self, key: str | None) -> int:
        """Returns the number of the shard that gets a message of this key; without a key they take turns."""
        if key is None:
            shards = self.known.shards
            self._next = (self._next + 1) % len(shards)
            return shards[self._next].shard
        return self.known.owner_of(key)

    def split_keys(self, keys: Iterable[str | None]) -> dict[int, list[int]]:
        """Returns for each shard the places of the messages it gets. `keys`: of all messages."""
        by_shard: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            by_shard.setdefault(self.shard_of_key(key), []).append(place)
        return by_shard

    def split(self, slots: Sequence[int], places: Sequence[int], known: ClusterMap | None = None) -> dict[int, list[int]]:
        """Returns for each shard which of these places of a batch it gets, in order. `slots`: of all places of the batch;
        `known`: another map than the newest one.
        """
        known = known or self.known
        owners = known.owners
        if len(known.shards) == 1:
            return {owners[0]: list(places)}
        by_shard: dict[int, list[int]] = {}
        for place in places:
            by_shard.setdefault(owners[slots[place]], []).append(place)
        return by_shard

    def address_of(self, number: int) -> Address | None:
        """Returns where a shard listens; None if no process serves it."""
        leader = self.known.shard(number).leader
        return None if leader is None else leader_address(leader, self._asked)

    def served(self, number: int) -> Address:
        """As `address_of`. Raises ConnectionRefusedError: no process serves the shard."""
        address = self.address_of(number)
        if address is None:
            raise ConnectionRefusedError(ECONNREFUSED, f"no process serves shard {number} now")
        return address

    def check_server(self, number: int, address: Address, welcome: Welcome) -> None:
        """Raises ConnectionLost if what answered there is not the process that serves this shard now."""
        check_cluster(self.known.cluster, welcome.cluster)
        shard = self.known.shard(number)
        if welcome.store != shard.uuid or address != self.address_of(number):
            raise ConnectionLost(
                f"another store answers where shard {number} was: {UUID(bytes=welcome.store)}, the shard's is "
                f"{UUID(bytes=shard.uuid)} at {shard.leader}",
                expected=str(UUID(bytes=shard.uuid)),
                actual=str(UUID(bytes=welcome.store)),
            )

    def only_shard(self, wanted: str) -> int:
        """Returns the number of the only shard. `wanted`: what needs it, for the error.

        Raises:
            InvalidArgument: there are several.
        """
        if len(self.known.shards) > 1:
            raise InvalidArgument(
                f"{wanted} works on one shard only, and this cluster has {len(self.known.shards)}; connect to a shard "
                "(`eventstore cluster status` shows them)",
                field="address",
                value=str(self._asked),
            )
        return self.known.shards[0].shard


def leader_address(leader: str, asked: Address) -> Address:
    """Returns the address HOST:PORT of a map. A shard that listens on all addresses has the host that was asked.
    TLS is spoken at all shards or at none."""
    host, port, _ = parse_address(f"tcp://{leader}")
    return Address(asked.host if host in _ANYWHERE else host, port, asked.tls)


def check_cluster(expected: bytes | None, found: bytes | None) -> None:
    """Raises ConnectionLost if a connection belongs to another cluster; it names both."""
    if found != expected:
        known, now = _name(expected), _name(found)
        raise ConnectionLost(
            f"another cluster answers at this address: {now}, it was {known}; open another client", expected=known, actual=now
        )


def _name(cluster: bytes | None) -> str:
    return "none" if cluster is None else str(UUID(bytes=cluster))
