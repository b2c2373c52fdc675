"""Assigns the queues of a topic to the members of a consumer group: balanced and sticky.

The numbers of queues per member differ by at most one. Within that, members keep their queues, since the last messages of a
queue that moves may be delivered twice.

Shards of a cluster do not know of each other's assignments, but have the same members. There the members that get one queue
more are taken in turns: in order of their names, each shard continuing where the one before it ended. So the numbers differ by
at most one over all shards, too. These queues may move when members join or leave.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from eventstore.checksum import crc32c


def assign_queues(
    queues: Sequence[int], members: Collection[str], held: Mapping[str, Collection[int]], load: Mapping[str, int]
) -> dict[str, list[int]]:
    """Returns the queues of each member that gets some.

    `members` is a set or a dictionary. `held`: the members' queues so far. `load`: how many queues of other topics a member
    has. The cost is linear in the number of queues; members are looked at only if one without a queue gets one.
    """
    kept = _kept(queues, members, held)
    low, extra = divmod(len(queues), len(members) or 1)
    # members with more queues keep one more; then members with few queues of other topics get one more
    order = sorted(kept, key=lambda member: (-min(len(kept[member]), low + 1), load.get(member, 0), member))
    without = min(len(queues), len(members)) - len(kept)  # members that have none and get one
    if without:
        others = (member for member in members if member not in kept)
        order += heapq.nsmallest(without, others, key=lambda member: (load.get(member, 0), member))
    return _shared(queues, kept, order, low, extra)


def assign_in_turns(
    queues: Sequence[int], members: Collection[str], held: Mapping[str, Collection[int]], topic: str, shard: int
) -> dict[str, list[int]]:
    """Returns the queues of each member that gets some, on a shard of a cluster. Topics begin with different members. `held`:
    see `assign_queues`.
    """
    if not members:
        return {}
    low, extra = divmod(len(queues), len(members))
    begin = (crc32c(topic.encode()) + shard * extra) % len(members)
    names = sorted(members)
    order = [*names[begin:], *names[:begin]][: len(queues)]
    return _shared(queues, _kept(queues, members, held), order, low, extra)


def _kept(queues: Iterable[int], members: Collection[str], held: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
    """Returns the existing queues of each member that has some."""
    existing = set(queues)
    return {member: mine for member, own in held.items() if member in members and (mine := sorted(existing.intersection(own)))}


def _shared(
    queues: Sequence[int], kept: Mapping[str, list[int]], order: Sequence[str], low: int, extra: int
) -> dict[str, list[int]]:
    """Returns `low` queues for each member, and one more for the first `extra` members in `order`. Members keep the queues they
    have, as far as they may have so many.
    """
    quota = {member: low + (place < extra) for place, member in enumerate(order)}
    assigned = {member: kept.get(member, [])[: quota[member]] for member in order}
    taken = {queue for own in assigned.values() for queue in own}
    free = iter([queue for queue in queues if queue not in taken])
    for member in order:
        assigned[member] += itertools.islice(free, quota[member] - len(assigned[member]))
    return {member: sorted(own) for member, own in assigned.items()}
