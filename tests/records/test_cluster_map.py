"""A map that exists is whole: every slot has one owner. Anything else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eventstore.errors import InvalidArgument
from eventstore.records.cluster_map import ALL_SLOTS, ClusterMap, Shard, even_slots, read_cluster_map, single_map
from eventstore.records.slots import SLOTS

STORES = [bytes([number]) * 16 for number in range(5)]


def cluster_map(shards: int = 2, version: int = 3) -> ClusterMap:
    slots = even_slots(shards)
    return ClusterMap(
        bytes(16), version, 1, tuple(Shard(number, STORES[number], slots[number], f"h:{number}") for number in range(shards))
    )


def document(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster_map().encode())
    return {**found, **changes}


def read(**changes: Any) -> ClusterMap:
    return read_cluster_map(json.dumps(document(**changes)).encode())


def shard(**changes: Any) -> dict[str, Any]:
    first: dict[str, Any] = document()["shards"][0]
    return {**first, **changes}


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_a_map_is_read_as_it_was_written(shards: int) -> None:
    found = cluster_map(shards)
    assert read_cluster_map(found.encode()) == found
    assert len(found.owners) == SLOTS
    assert set(found.owners) == set(range(shards))


def test_a_store_that_is_no_cluster_owns_every_slot() -> None:
    assert read_cluster_map(single_map(STORES[1]).encode()) == ClusterMap(None, 1, 1, (Shard(0, STORES[1], ALL_SLOTS),))


def test_even_slots_differ_by_one_at_most() -> None:
    sizes = {high - low + 1 for ((low, high),) in even_slots(3)}
    assert sizes == {1365, 1366}


def test_members_of_later_versions_are_ignored() -> None:
    assert read(generation=4) == cluster_map()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"shards": [shard(slots=[[0, 2048]]), document()["shards"][1]]}, "slot 2048 is named twice, by shards 0 and 1"),
        ({"shards": [shard(slots=[[0, 2046]]), document()["shards"][1]]}, "no shard owns slot 2047"),
        ({"shards": [shard(slots=[[0, 4095]]), document()["shards"][1]]}, "slot 2048 is named twice"),
        ({"shards": [shard(), shard()]}, "not in order, or one is named twice"),
        ({"shards": [document()["shards"][1], shard()]}, "not in order"),
        ({"shards": [shard(), {**document()["shards"][1], "uuid": shard()["uuid"]}]}, "two shards have the same store"),
        ({"shards": [shard(), {**document()["shards"][1], "leader": "h:0"}]}, "two shards have the same leader"),
        ({"shards": []}, "it has 0 shards"),
        ({"shards": [shard(slots=[[5, 4]])]}, "slot is 4, allowed are 5 to 4095"),
        ({"shards": [shard(slots=[[0, 4096]])]}, "slot is 4096"),
        ({"shards": [shard(slots=[[0, True]])]}, "pairs of the first and the last"),
        ({"shards": [shard(slots=[7])]}, "pairs of the first and the last"),
        ({"shards": [shard(slots="x")]}, "a shard is an object with"),
        ({"shards": [shard(uuid="00")]}, "32 hexadecimal digits"),
        ({"shards": [shard(leader=7)]}, "leader must be text"),
        ({"shards": [shard(epoch="1")]}, "epoch must be an integer"),
        ({"shards": [7]}, "a shard is an object with"),
        ({"cluster": 7}, "32 hexadecimal digits"),
        ({"version": -1}, "version is -1"),
        ({"layout": None}, "layout must be an integer"),
        ({"shards": {}}, "not an object with cluster"),
    ],
)
def test_a_map_that_is_not_whole_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named.replace("(", r"\(")):
        read(**changes)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b" " * 2_000_000])
def test_what_is_not_a_map_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidArgument, match="the map of the cluster is refused"):
        read_cluster_map(raw)
