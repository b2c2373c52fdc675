"""What the registry holds about a shard: its state under one key, and the key of its leader, which is leased."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A replica: the node, and the incarnation of its data folder (R9)."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's key: leadership belongs to one run of one process (R3). `address`: HOST:PORT for the other replicas."""

    member: Member
    run: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard; changed only by transactions that compare its revision.

    `leader`: who was elected last, whether it still leads or not. `in_sync`: holds everything that was acknowledged.
    `replicas`: names of the nodes that are to keep a replica, in the order in which they should lead. `generation` grows when a
    person accepts loss (R12). `nonce`: of the transaction that wrote it. `successor`: the node that the leader is to hand
    over to, at the word of a person; None again with the next election.
    """

    epoch: int
    in_sync: frozenset[Member]
    replicas: tuple[str, ...]
    in_sync_min: int
    leader: Member | None = None
    generation: int = 1
    nonce: str = ""
    successor: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A linearizable read of both keys. `at`: the registry's revision then, which orders reads.

    `revision` wrote the state, `leader_revision` created the leader's key; 0 if there is none. `running`: the replicas whose
    processes have a lease; None: not known.
    """

    at: int
    state: ShardState
    revision: int
    leader: Leader | None = None
    leader_revision: int = 0
    running: frozenset[Member] | None = None


@dataclass(frozen=True, slots=True)
class Swap:
    """A transaction: if the state was written by `revision` and the leader's key created by `leader_revision` (None: not
    compared; 0: does not exist), writes `state`, and with `leads` the leader's key under the lease of this process.
    `yields`: deletes the leader's key.
    """

    number: int
    revision: int
    leader_revision: int | None
    state: ShardState
    leads: Leader | None = None
    yields: bool = False
