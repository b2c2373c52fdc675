"""Assigns the queues of a topic to the members of a consumer group: balanced and sticky.

The numbers of queues per member differ by at most one. Within that, members keep their queues, since the last messages of a
queue that moves may be delivered twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def assign_queues(
    queues: Sequence[int], members: Collection[str], held: Mapping[str, Collection[int]], load: Mapping[str, int]
) -> dict[str, list[int]]:
    """Returns the queues of each member. `held`: its queues so far. `load`: how many queues of other topics it has."""
    if not members:
        return {}
    existing = set(queues)
    kept = {member: [queue for queue in sorted(held.get(member, ())) if queue in existing] for member in members}
    low, extra = divmod(len(queues), len(members))
    # members with more queues keep one more; then members with few queues of other topics get one more
    order = sorted(members, key=lambda member: (-min(len(kept[member]), low + 1), load.get(member, 0), member))
    quota = {member: low + (place < extra) for place, member in enumerate(order)}
    assigned = {member: kept[member][: quota[member]] for member in order}
    taken = {queue for own in assigned.values() for queue in own}
    free = [queue for queue in queues if queue not in taken]
    for member in order:
        while len(assigned[member]) < quota[member]:
            assigned[member].append(free.pop(0))
    return {member: sorted(own) for member, own in assigned.items()}
