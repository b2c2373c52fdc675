"""The next step from the replicas that a shard has to those that are wanted: one transaction of its leader.

    1  nodes that are wanted are named as replicas: they start a process, which fetches, and is added to the set
    2  when all that are wanted are in the set and keep up, a leader that is not is to hand over to the first of them
    3  the others leave, the set and the replicas at once, and nothing more is wanted; a shard that had only one replica needs
       two in sync from then on

What comes next follows from the state alone, so any later leader continues where the last one ended. A step that cannot be done
yet is waited for: the replicas there were before serve meanwhile, and count. While moves are paused, or those of this shard, no
step is begun, and nothing is copied to new replicas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from eventstore_cluster.replica.actions import Action, Transact
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import NOT_PAUSED, Seat, ShardState


class Moving:
    """What the leader `me` does about what is wanted. Copying needs a ticket, of which the cluster has few: taken with the
    first step, or by the leader that comes after, and given back with the last one or with the lease; and while the shard is
    paused alone, so that others copy meanwhile.
    """

    def __init__(self, registrar: Registrar, me: Seat) -> None:
        self._registrar: Final = registrar
        self._me: Final = me

    def next_step(self, level: Collection[Seat]) -> list[Action]:
        """Returns the transaction that may be sent now. `level`: see `next_state`."""
        seen, registrar = self._registrar.seen, self._registrar
        assert seen is not None
        if registrar.unanswered is not None or registrar.yielding:
            return []
        state = None if seen.paused else next_state(seen.state, self._me, level)
        lacks_ticket = seen.holds is None and bool(copied(seen.state))
        takes = seen.ticket if lacks_ticket and not seen.paused else None
        frees = seen.holds if (state or seen.state).wanted is None or seen.state.pause.on else None
        if takes is None and frees is None and (state is None or lacks_ticket):
            return []
        return [Transact(registrar.propose(state or seen.state, seen.leader_revision, takes=takes, frees=frees))]

    def may_copy(self, member: Seat) -> bool:
        """Whether a replica may be sent the log now: one that is new waits for the ticket, and while moves are paused."""
        seen = self._registrar.seen
        return seen is None or (seen.holds is not None and not seen.paused) or member.node not in copied(seen.state)


def copied(state: ShardState) -> set[str]:
    """Returns the nodes whose replicas are to be copied yet."""
    members = {member.node for member in state.in_sync}
    return set() if state.wanted is None else set(state.wanted).difference(state.before or (), members)


def next_state(state: ShardState, leader: Seat, level: Collection[Seat]) -> ShardState | None:
    """`level`: members of the in-sync set that keep up with the leader. None: nothing can be done yet, or is wanted."""
    if state.wanted is None:
        return None
    if missing := tuple(node for node in state.wanted if node not in state.replicas):
        return replace(state, replicas=state.replicas + missing)
    if not {member.node for member in level}.issuperset(state.wanted) or len(state.wanted) < state.in_sync_min:
        return None  # R5
    if leader.node not in state.wanted:
        return None if state.successor in state.wanted else state.to_be_led_by(state.wanted[0], state.by)
    in_sync = frozenset(member for member in state.in_sync if member.node in state.wanted)
    least = least_in_sync(len(state.before or ()), len(state.wanted), state.in_sync_min)
    return replace(state, replicas=state.wanted, in_sync=in_sync, wanted=None, before=None, in_sync_min=least, pause=NOT_PAUSED)


def least_in_sync(before: int, wanted: int, in_sync_min: int) -> int:
    """Returns how many replicas must be in sync once a shard that had `before` has as many as are wanted."""
    return 2 if before == 1 < wanted else in_sync_min
