"""The table of a routing client: the shard of each request, and batches that are split and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from eventstore.client.address import Address
from eventstore.client.routing.table import RoutingTable, check_cluster
from eventstore.errors import ConnectionLost, InvalidArgument
from eventstore.model import ID_BYTES_MAX
from eventstore.records.cluster_map import ClusterMap, Shard, even_slots
from eventstore.records.slots import slot_of

ASKED = Address("10.0.0.1", 7701)
CLUSTER = bytes(range(16))


def a_map(version: int, leaders: list[str | None], cluster: bytes = CLUSTER) -> ClusterMap:
    slots = even_slots(len(leaders))
    shards = [Shard(each, bytes([each] * 16), slots[each], leader) for each, leader in enumerate(leaders)]
    return ClusterMap(cluster, version, 1, tuple(shards))


@given(some.lists(some.integers(0, 4095), max_size=50), some.integers(1, 4), some.data())
def test_each_place_of_a_batch_goes_to_the_shard_of_its_slot_in_order(
    slots: list[int], shards: int, data: some.DataObject
) -> None:
    table = RoutingTable(a_map(1, [f"a:{number + 1}" for number in range(shards)]), ASKED)
    places = [place for place in range(len(slots)) if data.draw(some.booleans())]
    found = table.split(slots, places)
    assert sorted(place for where in found.values() for place in where) == places
    for shard, where in found.items():
        assert where == sorted(where)
        assert {table.known.owners[slots[place]] for place in where} <= {shard}


@given(some.text(min_size=1, max_size=ID_BYTES_MAX // 4).filter(lambda text: not text.startswith("$")))
def test_an_aggregate_is_at_the_shard_that_owns_its_slot(aggregate_id: str) -> None:
    table = RoutingTable(a_map(1, ["a:1", "a:2", "a:3"]), ASKED)
    (low, high), *_ = table.known.shard(table.shard_of(aggregate_id)).slots
    assert low <= slot_of(aggregate_id) <= high


def test_a_reserved_id_that_is_about_no_aggregate_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="read that of one"):
        RoutingTable(a_map(1, ["a:1", "a:2"]), ASKED).shard_of("$local")


def test_an_older_map_changes_nothing_and_one_of_another_cluster_is_refused() -> None:
    table = RoutingTable(a_map(2, ["a:1", "a:2"]), ASKED)
    table.learn(a_map(1, ["b:1", "b:2"]))
    assert table.address_of(0) == Address("a", 1)
    table.learn(a_map(3, [None, "0.0.0.0:5"]))
    assert (table.address_of(0), table.address_of(1)) == (None, Address("10.0.0.1", 5))
    other = bytes(16)
    with pytest.raises(ConnectionLost) as refused:
        table.learn(a_map(4, ["c:1"], cluster=other))
    assert refused.value.fields["expected"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert refused.value.fields["actual"] == "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ConnectionLost, match="none"):
        check_cluster(CLUSTER, None)


def test_what_is_of_one_shard_is_refused_where_there_are_several() -> None:
    assert RoutingTable(a_map(1, ["a:1"]), ASKED).only_shard("`read_all`") == 0
    with pytest.raises(InvalidArgument, match="`read_all` works on one shard only, and this cluster has 2"):
        RoutingTable(a_map(1, ["a:1", "a:2"]), ASKED).only_shard("`read_all`")
