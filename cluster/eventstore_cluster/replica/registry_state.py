"""What the registry holds about a shard: its state under one key, and the key of its leader, which is leased."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

ASKED_BY_MAX: Final = 128
"""Characters of who asked for something."""
HISTORY_MAX: Final = 64
"""Of the earlier nonces in a state: a node that has not heard of the shard for so many changes cannot tell any more."""


class Seat(NamedTuple):  # it is hashed and compared several times for each acknowledgement
    """A replica: the node, and the incarnation of its data folder (R9)."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's key: leadership belongs to one run of one process (R3).

    Attributes:
        address: HOST:PORT for the other replicas.
    """

    member: Seat
    run: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Whether the requested change is paused, and who last paused or resumed it (empty if unknown)."""

    on: bool = False
    by: str = ""


NOT_PAUSED: Final = Pause()


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A request about the whole cluster, or a node.

    Attributes:
        number: one more than the number of the request before it.
        id: unique.
        by: who asked.
        at: when, in seconds of Unix time by the clock of that machine.
        details: what was asked for.
    """

    number: int
    id: str
    by: str
    at: int
    details: Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard; changed only by transactions that compare its revision.

    Attributes:
        epoch: the number of the last election.
        in_sync: the replicas that hold everything that was acknowledged.
        replicas: the nodes that are to keep a replica, in the order in which they should lead.
        in_sync_min: appends are refused while fewer replicas are in sync.
        leader: the replica that was elected last, whether it still leads or not.
        generation: grows when a person accepts loss (R12).
        nonce: of the transaction that wrote this state.
        successor: the node that a person wants to lead; None again with the next election.
        wanted: the nodes that are to keep replicas when a move is done, in the order in which they should lead; None if no move
            is pending.
        before: the nodes that kept replicas when the move was asked for; None if no move is pending.
        split: the numbers of the shards in preparation that are to get slots of this one.
        splits: how often slots were given away.
        history: nonces of earlier states, the latest last.
        by: who last asked for other replicas, or a split; for the audit trail, empty if no person did or it is not known.
        leader_by: who asked for the `successor` or, when that is None, for the leader, if need be in a new generation; for the
            audit trail, empty if no person did or it is not known.
        pause: of the move and of the split.
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
        """Returns the state with the nonce of the transaction that writes it. The nonce until now goes into `history`."""
        return replace(self, nonce=nonce, history=(*self.history, self.nonce)[-HISTORY_MAX:])

    def asked_by(self, who: str) -> ShardState:
        """Returns the state, not paused, with `who` as the person who asks for the changes that are pending from now on."""
        return replace(self, by=who, pause=Pause(by=who))

    def to_be_led_by(self, node: str | None, who: str) -> ShardState:
        """Returns the state with the successor that `who` asks for; None: the leader stays.

        A person may have asked for the next election, of a new shard or by accepting loss. That person stays named until there
        is a leader.
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
    """A replica of a shard in preparation.

    Attributes:
        through: it has its parent's event files up to this number.
        stuck: it has just failed to take a file.
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
        since. A revision alone says nothing: after a restore, revisions pass the earlier ones.
        """
        if self.generation != state.generation:
            return self.generation > state.generation
        if self.nonce == state.nonce or self.nonce in state.history:
            return False
        return len(state.history) < HISTORY_MAX or self.revision > revision


@dataclass(frozen=True, slots=True)
class Seen:
    """A linearizable read of a shard's state and of its leader's key.

    Attributes:
        at: the registry's revision then, which orders reads.
        revision: wrote the state.
        leader_revision: created the leader's key; 0 if there is none.
        running: the replicas whose processes have a lease; None: not known.
        clones: the clones of shards in preparation that run.
        ticket: a free ticket, which allows a shard to copy replicas; None if none is free.
        holds: the ticket that the leader of this shard has.
        rate: bytes a second that it may copy; None: all it can.
        pause_all: of the moves of all shards.
        requests: the latest about the whole cluster, if this shard records them.
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
        """Whether nothing is done about the wanted replicas."""
        return self.pause_all.on or self.state.pause.on


@dataclass(frozen=True, slots=True)
class Swap:
    """A transaction on a shard's state and its leader's key. It applies if the state was written by `revision` and the leader's
    key created by `leader_revision`.

    Attributes:
        leader_revision: None: not compared; 0: the key must not exist.
        state: is written.
        leads: is written as the leader's key, under the lease of this process.
        yields: deletes the leader's key.
        gifts: gives slots to these shards, with these in-sync sets.
        takes: the ticket to take, if it is free.
        frees: the ticket to give back.
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
    """Returns what an operator has to know of a shard that is served; None if nothing. `answer`: the members of the set that
    answer.
    """
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
