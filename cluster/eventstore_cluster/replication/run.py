"""One run of the process of a replica: what its parts share."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore_cluster.registry.etcd.clock import ClockDifference
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.replica_keys import EARLIER_MAX, ReplicaKey
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs
from eventstore_cluster.replication.shard_registry import ShardRegistry


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """What the parts of a run share.

    Attributes:
        logs: of the follower; closed once it leads.
        lease: of this run.
        clock: how far the clock of this machine is from etcd's.
    """

    replica: Replica
    logs: FollowerLogs
    registry: ShardRegistry
    lease: Lease
    clock: ClockDifference


def key_of(replica: Replica, logs: FollowerLogs) -> ReplicaKey:
    """Returns the key by which a run that begins tells the registry of itself."""
    me, earlier = replica.me, logs.incarnation.earlier[-EARLIER_MAX:]
    reach, led = logs.reach, logs.documents.led
    return ReplicaKey(me.member.incarnation, me.run, replica.last_epoch, replica.ends, reach, led, earlier, address=me.address)
