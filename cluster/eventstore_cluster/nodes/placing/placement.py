"""Which nodes keep the replicas of new shards: as many on each, and as many leaders, as on any other one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence


def place(nodes: Sequence[str], shards: int, replicas: int) -> list[tuple[str, ...]]:
    """Returns the nodes of each shard, the preferred leader first.

    Two nodes differ by one replica and by one leader at most. Followers are spread over all other nodes, so that when a node
    fails, different nodes take over its shards.
    """
    placed = [[nodes[shard % len(nodes)]] for shard in range(shards)]
    kept = Counter(leader for (leader,) in placed)
    pairs: Counter[tuple[str, str]] = Counter()
    for shard, chosen in enumerate(placed):
        turn, first = divmod(shard, len(nodes))
        leader, ring = chosen[0], deque([*nodes[first + 1 :], *nodes[:first]])
        ring.rotate(-turn)
        for _ in range(replicas - 1):
            rest = [each for each in ring if each not in chosen]
            follower = min(rest, key=lambda each: (kept[each], pairs[leader, each]))
            chosen.append(follower)
            kept[follower] += 1
            pairs[leader, follower] += 1
    while _levelled(placed, kept, nodes):
        pass
    return [tuple(each) for each in placed]


def _levelled(placed: Sequence[list[str]], kept: Counter[str], nodes: Sequence[str]) -> bool:
    """Moves a follower from the fullest node to the emptiest, if that makes them more even."""
    fullest, emptiest = max(nodes, key=kept.__getitem__), min(nodes, key=kept.__getitem__)
    if kept[fullest] - kept[emptiest] <= 1:
        return False
    for chosen in placed:
        if fullest in chosen[1:] and emptiest not in chosen:
            chosen[chosen.index(fullest)] = emptiest
            kept[fullest] -= 1
            kept[emptiest] += 1
            return True
    return False
