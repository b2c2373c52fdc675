"""Average allocation: which member of a consumer group reads which queues of a topic.

Every member gets as many queues as any other, or one more, and keeps what it has as far as that allows: each queue that
moves is a queue whose last messages may be delivered twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A queue that a member reads: from which offset on, and which tags."""

    topic: str
    queue: int
    offset: int
    tags: str | None


def allocate(
    queues: Sequence[int], members: Collection[str], held: Mapping[str, Collection[int]], load: Mapping[str, int]
) -> dict[str, list[int]]:
    """The queues of each member. `held`: what each has now. `load`: how many queues of other topics it has already."""
    if not members:
        return {}
    there = set(queues)
    kept = {member: [queue for queue in sorted(held.get(member, ())) if queue in there] for member in members}
    low, extra = divmod(len(queues), len(members))
    # who has more keeps more, and who has little of other topics takes the odd queue
    order = sorted(members, key=lambda member: (-min(len(kept[member]), low + 1), load.get(member, 0), member))
    quota = {member: low + (place < extra) for place, member in enumerate(order)}
    shares = {member: kept[member][: quota[member]] for member in order}
    taken = {queue for share in shares.values() for queue in share}
    free = [queue for queue in queues if queue not in taken]
    for member in order:
        while len(shares[member]) < quota[member]:
            shares[member].append(free.pop(0))
    return {member: sorted(share) for member, share in shares.items()}
