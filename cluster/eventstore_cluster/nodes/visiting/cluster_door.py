"""What the console of a node shows of its cluster, and does to it: by the same code as `eventstore cluster`.

It reads the registry as the node has last seen it; only actions ask etcd. All methods are called on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from eventstore.server.logs import get_logger
from eventstore_cluster.nodes.cluster_view import cluster_view
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import MOVING, read_moving
from eventstore_cluster.registry.registry import RegistrySnapshot

_WAIT_S: Final = 8.0
_log = get_logger("eventstore.cluster")


class NodeClusterDoor:
    """The cluster for the console.

    `seen` returns the registry as the node saw it last; None before that.
    """

    def __init__(self, etcd: EtcdOptions, cluster: str, seen: Callable[[], RegistrySnapshot | None]) -> None:
        self._etcd, self._cluster, self._seen = etcd, cluster, seen

    def look(self) -> dict[str, Any] | None:
        """Returns the nodes, the shards by number, what is under way, whether all moves are paused, and who last paused or
        resumed them; None if there is no cluster.

        Raises:
            Corrupt
        """
        from eventstore_cluster.nodes.moving.progress import under_way

        seen = self._seen()
        view = None if seen is None else cluster_view(seen)
        if seen is None or view is None:
            return None
        troubles = view.troubles()
        shards = {}
        for number, key in view.shards.items():
            state, change = key.state, view.changes[number]
            shards[number] = {
                "node": view.leaders.get(number),
                "replicas": state.replicas,
                "successor": state.successor,
                "in_sync": sorted(member.node for member in state.in_sync),
                "reason": change.reason,
                "since": None if change.since is None else change.since * 1_000_000,
                "trouble": troubles.get(number),
            }
        nodes = [
            {"name": name, "address": each.address, "zone": each.zone, "version": each.version, "free_bytes": each.free_bytes}
            for name, each in view.nodes.items()
        ]
        pause = read_moving(seen.value(MOVING)).pause
        return {"nodes": nodes, "shards": shards, "under_way": under_way(seen, {}), "paused": pause.on, "paused_by": pause.by}

    def hand_over(self, shard: int, node: str, who: str) -> str:
        """Has the replica on this node lead; returns a sentence that says so.

        Raises:
            InvalidArgument: there is no such shard, the node keeps no replica of it, or the replica does not run or is not in
                sync.
            EventStoreError: it was not done in time, and stays asked for.
            RegistryUnavailable, RegistryRefused, Corrupt
        """
        from eventstore_cluster.nodes.handing_over import hand_over

        _log.warning("leadership is asked for in the console", shard=shard, to=node, by=who)
        found = hand_over(self._for(who), self._cluster, shard, node, _WAIT_S)
        return f"shard {shard} is led by {found.node}, in epoch {found.epoch}"

    def take_back(self, shard: int, who: str) -> str:
        """Cancels the pending move or hand-over of a shard; returns a sentence that says so.

        Raises:
            InvalidArgument: there is no such shard, or nothing is pending for it, or nothing but a split.
            EventStoreError: the shard has changed meanwhile.
        """
        from eventstore_cluster.nodes.moving.plans import take_back

        _log.warning("what is wanted of a shard is taken back in the console", shard=shard, by=who)
        take_back(self._for(who), self._cluster, shard)
        return f"what was wanted of shard {shard} is taken back"

    def pause(self, paused: bool, shard: int | None, who: str) -> str:
        """Pauses or resumes the move of a shard, or all moves; returns a sentence that says so.

        Raises:
            InvalidArgument: there is no such shard, or nothing that takes time is wanted of it.
            EventStoreError: it has changed meanwhile.
        """
        from eventstore_cluster.nodes.moving.plans import pause

        _log.warning("moves are paused or resumed in the console", paused=paused, shard=shard, by=who)
        return pause(self._for(who), self._cluster, paused, shard).text(shard)

    def _for(self, who: str) -> EtcdOptions:
        """Returns how etcd is asked for a visitor: shards have the name in their audit trail."""
        return replace(self._etcd, by=who)
