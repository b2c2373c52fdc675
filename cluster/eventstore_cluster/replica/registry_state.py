"""What the registry holds about a shard: its state under one key, and the key of its leader, which is leased."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

ASKED_BY_MAX: Final = 128
"""Characters of who asked for something."""
HISTORY_MAX: Final = 64
"""Of the earlier nonces in a state: a node that has not heard of the shard for so many changes cannot tell any more."""


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """A replica: the node, and the incarnation of its data folder (R9)."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's key: leadership belongs to one run of one process (R3). `address`: HOST:PORT for the other replicas."""

    member: Seat
    run: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Whether what is wanted is paused, and who has said so last; empty: not known."""

    on: bool = False
    by: str = ""


NOT_PAUSED: Final = Pause()


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """What was asked of the whole cluster, or of a node. `number`: one more than that of the request before it; `id`: of no
    other request; `by`: who asked; `at`: when, in seconds of Unix time by the clock of that machine; `details`: for what.
    """

    number: int
    id: str
    by: str
    at: int
    details: Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard; changed only by transactions that compare its revision.

    `leader`: who was elected last, whether it still leads or not. `in_sync`: holds everything that was acknowledged.
    `replicas`: names of the nodes that are to keep a replica, in the order in which they should lead. `generation` grows when a
    person accepts loss (R12). `nonce`: of the transaction that wrote it. `successor`: the node that the leader is to hand
    over to, at the word of a person; None again with the next election. `wanted`: the nodes that are to keep replicas, in the
    order in which they should lead, and `before`: those that did when that was asked for; both None when it is done.
    `split`: the numbers of the shards in preparation that are to get slots of it; `splits`: how often slots were given away.
    `history`: nonces of earlier states, the latest last.

    `by`: who asked last for other replicas, or a split. `leader_by`: who asked for the `successor` or, when that is None, for
    the leader, if need be in a new generation. Both are for the audit trail, and empty where no person did, or it is not known.
    `pause`: of the replicas that are wanted, and of the split.
    """

    epoch: int
    in_sync: frozenset[Seat]
    replicas: tuple[str, ...]
    in_sync_min: int
    leader: Seat | None = None
    generation: int = 1
    nonce: str = ""
    successor: str | None = None
    wanted: tuple[str, ...] | None = None
    before: tuple[str, ...] | None = None
    split: tuple[int, ...] = ()
    splits: int = 0
    history: tuple[str, ...] = ()
    by: str = ""
    leader_by: str = ""
    pause: Pause = NOT_PAUSED

    def has_spare(self, members: Collection[Seat]) -> bool:
        """Whether a leader acknowledges without one of these."""
        return len(members) > self.in_sync_min

    def written_by(self, nonce: str) -> ShardState:
        """Returns the state with the nonce of the transaction that writes it in place of the one that this follows."""
        return replace(self, nonce=nonce, history=(*self.history, self.nonce)[-HISTORY_MAX:])

    def asked_by(self, who: str) -> ShardState:
        """Returns the state with who asks for what is wanted of it from now on, which is not paused."""
        return replace(self, by=who, pause=Pause(by=who))

    def to_be_led_by(self, node: str | None, who: str) -> ShardState:
        """Returns the state with the successor that `who` asks for; None: the leader stays. Until a new shard has a leader, or
        one of which a person accepted loss, the person who asked for that election stays named.
        """
        is_theirs = node != self.successor and self.leader is not None
        return replace(self, successor=node, leader_by=who if is_theirs else self.leader_by)

    def elected(self, member: Seat, in_sync: frozenset[Seat]) -> ShardState:
        """Returns the state that the replica leads next. Its election was asked for if it was to be handed leadership, or if
        no replica led before, as when a person accepted loss.
        """
        asked = member.node == self.successor or self.leader is None
        return replace(
            self,
            epoch=self.epoch + 1,
            leader=member,
            in_sync=in_sync,
            successor=None,
            leader_by=self.leader_by if asked else "",
        )


@dataclass(frozen=True, slots=True)
class Clone:
    """A replica of a shard in preparation: it has its parent's event files up to the number `through`. `stuck`: it has just
    failed to take one.
    """

    shard: int
    member: Seat
    through: int
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What the node of a replica last heard of the state: its generation, the revision that wrote it, and its nonce."""

    generation: int
    revision: int
    nonce: str

    def is_later_than(self, state: ShardState, revision: int) -> bool:
        """Whether a registry that holds this state, by this revision, was restored from an older copy (R12), perhaps changed
        since: a revision alone says nothing, those of a restored registry pass the earlier ones.
        """
        if self.generation != state.generation:
            return self.generation > state.generation
        if self.nonce == state.nonce or self.nonce in state.history:
            return False
        return len(state.history) < HISTORY_MAX or self.revision > revision


@dataclass(frozen=True, slots=True)
class Seen:
    """A linearizable read of both keys. `at`: the registry's revision then, which orders reads.

    `revision` wrote the state, `leader_revision` created the leader's key; 0 if there is none. `running`: the replicas whose
    processes have a lease; None: not known. `ticket`: one of those that so many shards may copy replicas by at once, which is
    free, None if none is; `holds`: the one that the leader of this shard has; `rate`: bytes a second that it may copy;
    None: all it can; `pause_all`: of the moves of all shards. `clones`: of the shards in preparation, those that run
    and are not stuck. `requests`: the latest about the whole cluster, if this shard records them.
    """

    at: int
    state: ShardState
    revision: int
    leader: Leader | None = None
    leader_revision: int = 0
    running: frozenset[Seat] | None = None
    clones: frozenset[Clone] = frozenset()
    ticket: int | None = 0
    holds: int | None = None
    rate: int | None = None
    pause_all: Pause = NOT_PAUSED
    requests: tuple[ClusterRequest, ...] = ()

    @property
    def paused(self) -> bool:
        """Whether nothing is done about the replicas that are wanted."""
        return self.pause_all.on or self.state.pause.on


@dataclass(frozen=True, slots=True)
class Swap:
    """A transaction: if the state was written by `revision` and the leader's key created by `leader_revision` (None: not
    compared; 0: does not exist), writes `state`, and with `leads` the leader's key under the lease of this process.
    `yields`: deletes the leader's key. `gifts`: gives slots to these shards, with these in-sync sets. `takes`,
    `frees`: the ticket that is taken, if it is free, and the one that is given back.
    """

    number: int
    revision: int
    leader_revision: int | None
    state: ShardState
    leads: Leader | None = None
    yields: bool = False
    gifts: tuple[tuple[int, frozenset[Seat]], ...] = ()
    takes: int | None = None
    frees: int | None = None


def trouble_of(state: ShardState, answer: Iterable[Seat]) -> str | None:
    """Returns what an operator has to know of a shard that is served. `answer`: the members of the set that do."""
    nodes = {member.node for member in answer}
    if len(nodes) < state.in_sync_min:
        return f"appends are refused: {too_few(state.in_sync_min, nodes)}"
    staying = state.replicas if state.wanted is None else set(state.wanted).intersection(state.before or ())
    missing = [node for node in staying if node not in nodes]
    return f"not in sync: {', '.join(missing)}" if missing else None


def too_few(needed: int, have: Iterable[str]) -> str:
    """Returns why appends are refused. `have`: the nodes whose replicas are in sync and answer."""
    answer = sorted(have)
    only = f"only {', '.join(answer)} {'answers' if len(answer) == 1 else 'answer'}" if answer else "none answers"
    return f"{needed} replicas must be in sync, {only}"
