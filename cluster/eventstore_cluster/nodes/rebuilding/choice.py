"""Which replica of a shard has everything that was acknowledged, if the registry no longer says who was in sync.

It is the replica that led the last epoch of which any log has anything. It was in sync when it was elected, so it had all that
was committed before; what was committed while it led is on its disk; and nothing was committed in a later epoch, for that would
be on the disks of all who were in sync. The leader notes it on its disk before another replica gets anything of that epoch.

This holds if the folders of all replicas are seen, and are the ones that they had. If not, another replica may have led later,
and a person has to accept what may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore_cluster.registry.kept_keys import KeptShard
from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.registry_state import Seat

EPOCHS_SKIPPED: Final = 2**20
"""If a replica may not have been seen: it may have epochs that no other replica knows, and an epoch is never given twice."""
NONCE: Final = "the registry was rebuilt"


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica on `node` is to be the only one in sync.

    Attributes:
        key: of the shard.
        risks: why acknowledged events may be lost by that; empty if none can be.
    """

    shard: int
    node: str
    key: ShardKey
    risks: tuple[str, ...]


def newest(copies: Mapping[str, KeptShard]) -> KeptShard:
    return max(copies.values(), key=lambda copy: copy.age)


def choose(shard: int, copies: Mapping[str, KeptShard], running: Mapping[str, ReplicaKey], generation: int) -> Choice:
    """Chooses among the replicas whose processes run. `copies`: of the shard's key, by node. `generation`: the next one.

    Raises:
        InvalidArgument: none runs.
    """
    kept = newest(copies)
    state = kept.key.state
    seen = {node: running[node] for node in state.replicas if node in running and running[node].reach}
    if not seen:
        raise InvalidArgument(
            f"no replica of shard {shard} is seen: one of the nodes {', '.join(state.replicas)} is needed, with its folder",
            field="shard",
            value=shard,
        )
    last = max(epoch for key in seen.values() for epoch, _, _ in key.reach)
    led = [node for node, key in seen.items() if key.led and _epoch_of_documents(key) == last]
    node = led[0] if led else max(seen, key=lambda each: seen[each].reach)  # of several, the preferred leader
    risks = [*_unseen(state.replicas, seen), *_of_another_history(copies, kept)]
    if last > 0:  # otherwise nothing was ever written
        risks += _without_leader(last, led) or [*_behind(node, last, seen), *_strange(node, seen[node], state.in_sync)]
    epoch = max(state.epoch, last) + (EPOCHS_SKIPPED if risks else 0)
    rebuilt = replace(
        state,
        epoch=epoch,
        generation=generation,
        leader=None,
        successor=None,
        split=(),
        nonce=NONCE,
        in_sync=frozenset({Seat(node, seen[node].incarnation)}),
    )
    return Choice(shard, node, replace(kept.key, state=rebuilt), tuple(f"shard {shard}: {risk}" for risk in risks))


def _epoch_of_documents(key: ReplicaKey) -> int:
    return key.reach[-1][0]


def _unseen(replicas: tuple[str, ...], seen: Mapping[str, ReplicaKey]) -> list[str]:
    missing = [node for node in replicas if node not in seen]
    return [f"the replica on {', '.join(missing)} is not seen"] if missing else []


def _of_another_history(copies: Mapping[str, KeptShard], kept: KeptShard) -> list[str]:
    """Returns a risk if what a node knows did not lead to what is known last: then an epoch may have had two leaders."""
    apart = sorted(node for node, copy in copies.items() if copy.known().is_later_than(kept.key.state, kept.revision))
    if not apart:
        return []
    return [
        f"what {', '.join(apart)} {'knows' if len(apart) == 1 else 'know'} of it is not what the newest copy, of revision "
        f"{kept.revision}, came from: etcd was restored from an older copy, and replicas may have acknowledged before and after"
    ]


def _without_leader(last: int, led: list[str]) -> list[str]:
    if len(led) == 1:
        return []
    who = f"{' and '.join(led)} both say that they led" if led else "none that is seen led"
    return [f"{who} epoch {last}, the last one"]


def _behind(node: str, last: int, seen: Mapping[str, ReplicaKey]) -> list[str]:
    """Returns a risk if others have more of the last epoch than its leader, which may send what it has not synced yet."""
    own = seen[node].reach[:-1]  # the leader does not note the number of each document
    ahead = [
        other
        for other, key in seen.items()
        if any(theirs > mine for theirs, mine in zip(key.reach, own, strict=False) if theirs[0] == last)
    ]
    if not ahead:
        return []
    return [
        f"{', '.join(ahead)} has more of epoch {last} than {node}, which led it and may have died while it wrote: then nothing "
        f"is lost; if the disk of {node} was set back to an earlier state, stop {node} before you continue"
    ]


def _strange(node: str, key: ReplicaKey, in_sync: frozenset[Seat]) -> list[str]:
    """Returns a risk if the replica was not in sync as far as nodes know, or has not the folder that it had then (R9)."""
    if any(Seat(node, each) in in_sync for each in (*key.earlier, key.incarnation)):
        return []
    known = ", ".join(sorted(member.node for member in in_sync))
    return [f"{node} is none of those that were in sync when the nodes last heard of it ({known}), or its folder is a copy"]
