"""A registry that is linearizable, slow, and whose answers get lost: the state of one shard and its leader's leased key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.registry_state import Leader, Pause, Seat, Seen, ShardState, Swap

_FIRST: Final = 1 << 40  # is halved when everything is lost: what compares a revision of before is refused


class SimulatedRegistry:
    """`lost`: it does not know the shard. `named`: when each was named first that the leader is to hand over to. `clones`: what
    those of a shard in preparation say, by node.
    """

    def __init__(self, key: ShardKey) -> None:
        self.revision = self.state_revision = _FIRST
        self.key = key
        self.clones: dict[str, ReplicaKey] = {}
        self.lost = False
        self.named: dict[str, float] = {}
        self.leader: Leader | None = None
        self.leader_revision = 0
        self._leader_lease = self._ticket = ""
        self.others_copy = self.paused = False
        self._leases: dict[str, float] = {}
        self._holders: dict[str, Seat] = {}

    @property
    def state(self) -> ShardState:
        return self.key.state

    @state.setter
    def state(self, state: ShardState) -> None:
        self.key = replace(self.key, state=state)

    def keep_alive(self, lease: str, holder: Seat, until: float, now: float) -> bool:
        """Grants or renews the lease of a process. Returns False if it has run out before."""
        self._expire(now)
        if lease in self._leases or lease not in self._holders:
            self._holders[lease] = holder  # a clone may have become another member
            self._leases[lease] = until
            return True
        return False

    def revoke(self, lease: str, now: float) -> None:
        if lease in self._leases:
            self._leases[lease] = now
        self._expire(now)

    def is_leased(self, lease: str) -> bool:
        return lease in self._leases

    def lose(self) -> None:
        """Forgets the shard and all leases, and counts revisions from an earlier one on."""
        self.lost, self.leader, self.leader_revision = True, None, 0
        self._leases.clear()
        self.revision //= 2

    def restore(self, state: ShardState) -> None:
        """Writes the shard again."""
        self.revision += 1
        self.lost, self.state, self.state_revision = False, state, self.revision

    def read(self, now: float) -> Seen | None:
        """Returns both keys; None if the shard is not there."""
        self._expire(now)
        if self.lost:
            return None
        holds = 0 if self.leader is not None and self._ticket == self._leader_lease else None
        return Seen(
            self.revision, self.state, self.state_revision, self.leader, self.leader_revision, self._running(),
            ticket=None if self._ticket or self.others_copy else 0, holds=holds,
            pause_all=Pause(self.paused),
        )  # fmt: skip

    def apply(self, swap: Swap, own: ShardKey, lease: str, now: float, may: Callable[[], bool] = lambda: True) -> int:
        """Returns the revision that the transaction made, 0 if it was refused. `own`: what it writes of the shard; `may`:
        whether what it compares besides is so.
        """
        self._expire(now)
        if self.lost or swap.revision != self.state_revision or swap.leader_revision not in (None, self.leader_revision):
            return 0
        if swap.leads is not None and lease not in self._leases:
            return 0
        if swap.takes is not None and (self._ticket or self.others_copy or lease not in self._leases):
            return 0
        if not may():
            return 0
        self.revision += 1
        if swap.leads is not None:
            self.named.clear()
        elif swap.state.successor is not None:
            self.named.setdefault(swap.state.successor, now)
        self.key, self.state_revision = own, self.revision
        if swap.takes is not None:
            self._ticket = lease
        elif swap.frees is not None:
            self._ticket = ""
        if swap.leads is not None:
            self.leader, self.leader_revision, self._leader_lease = swap.leads, self.revision, lease
        elif swap.yields:
            self.leader, self.leader_revision = None, 0
        return self.revision

    def given(self, key: ShardKey, leader: Leader | None, lease: str) -> None:
        """Writes that a shard which was in preparation has slots, and who leads it."""
        self.revision += 1
        self.key, self.state_revision = key, self.revision
        if leader is not None:
            self.leader, self.leader_revision, self._leader_lease = leader, self.revision, lease

    def said(self, node: str, clone: ReplicaKey) -> None:
        """The clone on a node of a shard in preparation says how far it is."""
        self.clones[node] = clone

    def write(self, key: ShardKey, now: float) -> None:
        """Writes the key of the shard, as a person does."""
        self.revision += 1
        if key.state.successor is not None:
            self.named.setdefault(key.state.successor, now)
        self.key, self.state_revision = key, self.revision

    def ask_for(self, successor: str, now: float) -> None:
        """Writes who is to lead, as a person does."""
        self.revision += 1
        self.named.setdefault(successor, now)
        self.state, self.state_revision = replace(self.state, successor=successor), self.revision

    def depose(self) -> None:
        """Has nobody in sync and nobody lead, as a person does who is about to accept loss."""
        self.revision += 1
        self.leader, self.leader_revision = None, 0
        deposed = replace(self.state, in_sync=frozenset(), successor=None)
        self.state, self.state_revision = deposed.written_by("deposed"), self.revision

    def accept_loss(self, member: Seat, epoch: int) -> None:
        """Has this member alone in sync, in a new generation. `epoch`: the largest in any log."""
        self.revision += 1
        state, in_sync = self.state, frozenset({member})
        state = replace(state, epoch=max(state.epoch, epoch), generation=state.generation + 1, leader=None, in_sync=in_sync)
        self.state, self.state_revision = replace(state, nonce="accepted"), self.revision

    def _running(self) -> frozenset[Seat]:
        return frozenset(self._holders[lease] for lease in self._leases)

    def ask_to_keep(self, wanted: tuple[str, ...]) -> None:
        """Writes which nodes are to keep replicas, as a person does; nothing if something is wanted already."""
        if self.state.wanted is None and self.state.successor is None and not self.state.split:
            self.revision += 1
            self.state = replace(self.state, wanted=wanted, before=self.state.replicas)
            self.state_revision = self.revision

    def take_back(self) -> None:
        """Wants the replicas again that were there before, as a person does."""
        if self.state.wanted is not None:
            self.revision += 1
            self.state, self.state_revision = replace(self.state, wanted=self.state.before), self.revision

    def _expire(self, now: float) -> None:
        for lease, until in list(self._leases.items()):
            if now >= until:
                del self._leases[lease]
        if self._ticket not in self._leases:
            self._ticket = ""
        if self.leader is not None and self._leader_lease not in self._leases:
            self.revision += 1
            self.leader, self.leader_revision = None, 0
