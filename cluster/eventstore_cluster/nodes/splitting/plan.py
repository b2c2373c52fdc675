"""Which slots a shard keeps and which ones new shards get when it is split: even ranges, as contiguous as its own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, counted
from eventstore.records.cluster_map import SHARDS_MAX, SlotRange
from eventstore.records.slots import ranges_of, slots_in

PARTS_MAX = 32
"""Of one split: its transaction changes four keys for each new shard, and two more; etcd takes 128."""


def even_parts(shard: int, slots: Sequence[SlotRange], parts: int) -> list[tuple[SlotRange, ...]]:
    """Returns the slots of each part, the first of which stays; they differ by one slot at most.

    Raises:
        InvalidArgument: there are fewer slots than parts, or too many parts.
    """
    check_int("into", parts, 2, PARTS_MAX)
    every = sorted(slots_in(slots))
    if parts > len(every):
        raise InvalidArgument(
            f"shard {shard} has {counted(len(every), 'slot')}, which cannot be split into {parts}: each shard needs one",
            field="into",
            limit=len(every),
            value=parts,
        )
    bounds = [len(every) * part // parts for part in range(parts + 1)]
    return [ranges_of(every[first:behind]) for first, behind in itertools.pairwise(bounds)]


def spread_leaders(
    nodes: tuple[str, ...], leads: Mapping[str, int], count: int, away: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """Returns the nodes of each of `count` new shards, in the order in which they should lead: first the node that leads the
    fewest shards, then the nodes after it. `leads`: how many shards each leads now. `away`: the nodes that do not run, and lead
    none.
    """
    found, leading = list[tuple[str, ...]](), Counter(leads)
    for place in range(1, count + 1):
        first = min(range(len(nodes)), key=lambda at: (nodes[at] in away, leading[nodes[at]], (at - place) % len(nodes)))
        leading[nodes[first]] += 1
        found.append(nodes[first:] + nodes[:first])
    return found


def new_numbers(first: int, shards: Sequence[int], count: int) -> list[int]:
    """Returns numbers for new shards which no shard ever had. `first`: see `ClusterKey.next_shard`.

    Raises:
        InvalidArgument: there are no more.
    """
    begin = max(first, *(number + 1 for number in shards))
    if begin + count > SHARDS_MAX:
        raise InvalidArgument(
            f"a cluster gives {SHARDS_MAX} numbers to shards, and {begin} were given", field="into", limit=SHARDS_MAX - begin
        )
    return list(range(begin, begin + count))
