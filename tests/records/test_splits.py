"""What a map says about splits, and which events of a log a shard hands out since."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import InvalidArgument
from eventstore.records.cluster_map import ALL_SLOTS, ClusterMap, Shard, even_slots, read_cluster_map
from eventstore.records.slots import slot_of
from eventstore.records.splits import Split, check_splits, layout_of, slot_filter, splits_of, splits_of_text, splits_text

SPLITS = (Split(2, 0, 1, 50), Split(2, 0, 2, 50), Split(3, 1, 3, 80))
MAP = ClusterMap(
    bytes(16), 9, 3, tuple(Shard(number, bytes([number]) * 16, slots) for number, slots in enumerate(even_slots(4))), SPLITS
)


def test_a_map_is_read_with_its_splits_and_one_that_was_never_split_has_no_such_member() -> None:
    assert read_cluster_map(MAP.encode()) == MAP
    assert json.loads(MAP.encode())["splits"] == [[2, 0, 1, 50], [2, 0, 2, 50], [3, 1, 3, 80]]
    assert b"splits" not in replace(MAP, splits=()).encode()


@pytest.mark.parametrize(
    "splits",
    [
        [[2, 0, 1]],
        [[2, 0, 1, -1]],
        [[1, 0, 1, 5]],
        [[4, 0, 1, 5]],
        [[2, 0, 0, 5]],
        [[2, 0, 9, 5]],
        [[2, 0, 1, 5], [3, 2, 1, 9]],
        [[3, 0, 1, 5], [2, 1, 2, 9]],
        [[2, 0, True, 5]],
        {"0": 1},
    ],
)
def test_splits_that_cannot_have_been_are_refused(splits: object) -> None:
    document = {**json.loads(MAP.encode()), "splits": splits}
    with pytest.raises(InvalidArgument):
        read_cluster_map(json.dumps(document).encode())


def test_a_shard_has_the_layout_of_its_last_split() -> None:
    assert [MAP.layout_of(number) for number in range(4)] == [2, 3, 2, 3]
    assert layout_of((), 0) == 0
    assert splits_of(SPLITS, 1) == (SPLITS[0], SPLITS[2])


@given(
    st.lists(st.builds(Split, st.integers(2, 2**63 - 1), st.integers(0, 4095), st.integers(0, 4095), st.integers(0, 2**63 - 1)))
)
def test_splits_survive_their_text(splits: list[Split]) -> None:
    assert splits_of_text(splits_text(splits)) == tuple(splits)


@pytest.mark.parametrize("text", ["2-0-1", "2-0-1-5,", "2-0-1-x", "1-0-1-5", "2-0-4096-5"])
def test_text_that_names_no_splits_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        splits_of_text(text)


def test_a_shard_that_was_never_split_needs_no_filter_and_others_hand_out_their_slots() -> None:
    assert slot_filter(0, ALL_SLOTS, ()) is None
    low = slot_of("order-1")
    found = slot_filter(0, ((low, low),), SPLITS)
    assert found is not None
    assert found.through == 50
    assert found.owns("order-1")
    assert not found.owns("order-2")
    assert found.owns("$local")
    child = slot_filter(1, ((low, low),), SPLITS)
    assert child is not None
    assert child.through == 80
    assert not child.owns("$local")


def test_a_shard_that_was_split_off_is_split_into_many_later() -> None:
    check_splits([Split(2, 0, 1, 10), Split(3, 1, 2, 20), Split(3, 1, 3, 20)], 3, range(4))
    with pytest.raises(InvalidArgument, match="a parent of the same layout"):
        check_splits([Split(2, 0, 1, 10), Split(2, 1, 2, 20)], 2, range(3))
