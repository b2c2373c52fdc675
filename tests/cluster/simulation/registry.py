"""A registry that is linearizable, slow, and whose answers get lost: the state of one shard and its leader's leased key."""

from __future__ import annotations

from dataclasses import replace

from eventstore_cluster.replica.registry_state import Leader, Seen, ShardState, Swap


class SimulatedRegistry:
    def __init__(self, state: ShardState) -> None:
        self.revision = 1
        self.state = state
        self.state_revision = 1
        self.leader: Leader | None = None
        self.leader_revision = 0
        self._leader_lease = ""
        self._leases: dict[str, float] = {}
        self._granted: set[str] = set()

    def keep_alive(self, lease: str, until: float, now: float) -> bool:
        """Grants or renews a lease. Returns False if it has run out before."""
        self._expire(now)
        if lease in self._leases or lease not in self._granted:
            self._granted.add(lease)
            self._leases[lease] = until
            return True
        return False

    def revoke(self, lease: str, now: float) -> None:
        if lease in self._leases:
            self._leases[lease] = now
        self._expire(now)

    def read(self, now: float) -> Seen:
        self._expire(now)
        return Seen(self.revision, self.state, self.state_revision, self.leader, self.leader_revision)

    def apply(self, swap: Swap, lease: str, now: float) -> int:
        """Returns the revision that the transaction made, 0 if it was refused."""
        self._expire(now)
        if swap.revision != self.state_revision or swap.leader_revision not in (None, self.leader_revision):
            return 0
        if swap.leads is not None and lease not in self._leases:
            return 0
        self.revision += 1
        self.state, self.state_revision = swap.state, self.revision
        if swap.leads is not None:
            self.leader, self.leader_revision, self._leader_lease = swap.leads, self.revision, lease
        elif swap.yields:
            self.leader, self.leader_revision = None, 0
        return self.revision

    def ask_for(self, successor: str) -> None:
        """Writes who is to lead, as a person does."""
        self.revision += 1
        self.state, self.state_revision = replace(self.state, successor=successor), self.revision

    def _expire(self, now: float) -> None:
        for lease, until in list(self._leases.items()):
            if now >= until:
                del self._leases[lease]
        if self.leader is not None and self._leader_lease not in self._leases:
            self.revision += 1
            self.leader, self.leader_revision = None, 0
