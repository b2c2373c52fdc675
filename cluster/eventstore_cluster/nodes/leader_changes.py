"""Why the leaders of shards have changed: what the registry says of it, and how often it was seen on this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from eventstore.errors import EventStoreError
from eventstore.metrics import LabelledMetric
from eventstore.server.logs import get_logger
from eventstore_cluster.registry.registry import Registry, RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import LEADERS, LEFT, LeftKey, read_leader, read_left, read_since

LEADER_CHANGES: Final = LabelledMetric(
    "shard_leader_changes",
    "counter",
    "elections that a replica of this node has won, by why the leader before it left",
    ("shard", "reason"),
)
_NEW: Final = "the shard is new"
_SILENT: Final = "the last leader could not say why: its node was killed, hung, or was cut off from etcd"
_log = get_logger("eventstore.cluster")


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The last change of a shard's leader.

    Attributes:
        leader: the node that leads now; None if none does.
        since: when it was elected, in seconds of Unix time; None if none leads.
        left: the node that led before, if it said why it no longer does.
        reason: why the leader changed; None if unknown.
    """

    epoch: int
    leader: str | None
    since: int | None
    left: str | None
    reason: str | None

    @property
    def text(self) -> str | None:
        return self.reason if self.left is None else f"{self.left}: {self.reason}"


def leader_change(shard: int, epoch: int, snapshot: RegistrySnapshot) -> LeaderChange:
    """Returns the last change of the shard's leader. `epoch`: the shard's epoch in the snapshot."""
    entry = snapshot.entries.get(f"{LEADERS}{shard}")
    leader, left = read_leader(entry), read_left(snapshot.value(f"{LEFT}{shard}"))
    if left is not None and left.epoch != (epoch if leader is None else epoch - 1):
        left = None
    node = None if leader is None else leader.member.node
    if left is not None:
        return LeaderChange(epoch, node, read_since(entry), left.node or None, left.reason)
    return LeaderChange(epoch, node, read_since(entry), None, None if leader is None else _NEW if epoch == 1 else _SILENT)


async def say_left(registry: Registry, shard: int, left: LeftKey) -> None:
    """Tells the registry why a leader leads no more, on behalf of a process that cannot say it itself."""
    try:
        await registry.transact({}, {f"{LEFT}{shard}": left.value()})
    except EventStoreError as error:
        _log.info("the registry was not told why a leader left", shard=shard, error=error.message)


class LeaderChanges:
    """Counts the elections that replicas of the node `name` have won since it runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._epochs: dict[int, int] = {}
        self._counts: Counter[tuple[int, str]] = Counter()
        self._begun = False

    def saw(self, changes: Mapping[int, LeaderChange]) -> None:
        """Takes what the registry says. What it says first was won by an earlier process of the node."""
        for shard, change in changes.items():
            known = self._epochs.get(shard, 0 if self._begun else change.epoch)
            self._epochs[shard] = max(known, change.epoch)
            if change.epoch > known and change.leader == self._name and change.reason is not None:
                self._counts[shard, change.reason.partition(":")[0]] += 1  # after the colon is what is different each time
        self._begun = True

    def lines(self) -> Iterator[str]:
        """Returns them as Prometheus reads them."""
        name = f"eventstore_{LEADER_CHANGES.name}"
        yield f"# HELP {name}_total {LEADER_CHANGES.help}"
        yield f"# TYPE {name}_total {LEADER_CHANGES.kind}"
        for (shard, reason), count in sorted(self._counts.items()):
            escaped = reason.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            yield f'{name}_total{{shard="{shard}",reason="{escaped}"}} {count}'
