"""Loss is accepted: the leader that is deposed is waited for until its process, or its lease, has ended."""

from __future__ import annotations

import uuid

import trio

from eventstore_cluster.nodes.accepting_loss import accept_loss, candidate
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey, leader_value, read_shard
from eventstore_cluster.replica.registry_state import Leader, Seat, ShardState
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.nodes.named_node import registry_of

LONGEST_S = 1e6
LEADER, OTHER = Seat("n1", "i1"), Seat("n2", "i2")


async def runs(gateway: Gateway, registry: EtcdRegistry, member: Seat, *, leads: bool = False) -> Lease:
    lease = await Lease.grant(gateway, 60)
    leader = {"leader/0": leader_value(Leader(member, "run", "127.0.0.1:1"))} if leads else {}
    replica = ReplicaKey(member.incarnation, "run", 1, ((0, 0),)).value()
    assert await registry.transact({}, {f"replica/0/{member.node}": replica, **leader}, lease=lease)
    return lease


async def shard(registry: EtcdRegistry) -> ShardState:
    value = (await registry.read()).value("shard/0")
    assert value is not None
    return read_shard(0, value).state


async def test_a_leader_is_waited_for_until_its_process_has_ended_and_no_longer(etcd: Etcd, cluster: str) -> None:
    options = EtcdOptions((etcd.url,), by="ann")
    async with registry_of(etcd, cluster) as (gateway, registry):
        state = ShardState(1, frozenset({LEADER}), ("n1", "n2"), 1, LEADER, by="ben", leader_by="cara")
        cluster_key = ClusterKey(uuid.UUID(int=2), 1, 2, 1).value()
        keys = {"cluster": cluster_key, "shard/0": ShardKey(uuid.UUID(int=1), (), state).value()}
        assert await registry.transact({}, keys)
        lease = await runs(gateway, registry, LEADER, leads=True)
        await runs(gateway, registry, OTHER)
        chosen = await trio.to_thread.run_sync(candidate, options, cluster, 0, "n2")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                async def accept() -> None:
                    await trio.to_thread.run_sync(accept_loss, options, cluster, chosen, LONGEST_S, abandon_on_cancel=True)

                nursery.start_soon(accept)
                while "leader/0" in (seen := await registry.read()).entries:
                    await registry.hint(seen.revision)
                assert (await shard(registry)).in_sync == frozenset()
                await lease.revoke(gateway)
        state = await shard(registry)
        assert (state.in_sync, state.generation, state.leader) == ({OTHER}, 2, None)
        assert (state.by, state.leader_by) == ("ben", "ann"), "who accepted that, and who asked for other things"
