"""Assigns the queues of a topic to the members of a consumer group: balanced and sticky.

The numbers of queues per member differ by at most one. Within that, members keep their queues, since the last messages of a
queue that moves may be delivered twice.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Mapping, Sequence


def assign_queues(
    queues: Sequence[int], members: Collection[str], held: Mapping[str, Collection[int]], load: Mapping[str, int]
) -> dict[str, list[int]]:
    """Returns the queues of each member that gets some. `members` is a set or a dictionary.

    `held`: the queues so far of those that have some. `load`: how many queues of other topics a member has. Costs as much as
    there are queues, and a look at each member only if one without a queue gets one.
    """
    if not members:
        return {}
    existing = set(queues)
    kept = {member: mine for member, own in held.items() if member in members and (mine := sorted(existing.intersection(own)))}
    low, extra = divmod(len(queues), len(members))
    # members with more queues keep one more; then members with few queues of other topics get one more
    order = sorted(kept, key=lambda member: (-min(len(kept[member]), low + 1), load.get(member, 0), member))
    without = min(len(queues), len(members)) - len(kept)  # members that have none and get one
    if without:
        others = (member for member in members if member not in kept)
        order += heapq.nsmallest(without, others, key=lambda member: (load.get(member, 0), member))
    quota = {member: low + (place < extra) for place, member in enumerate(order)}
    assigned = {member: kept.get(member, [])[: quota[member]] for member in order}
    taken = {queue for own in assigned.values() for queue in own}
    free = iter([queue for queue in queues if queue not in taken])
    for member in order:
        assigned[member] += itertools.islice(free, quota[member] - len(assigned[member]))
    return {member: sorted(own) for member, own in assigned.items()}
