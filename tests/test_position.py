"""Positions: text that is the same for the same place, and refusals that name both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eventstore as es
from eventstore.model import VERSION_MAX
from eventstore.position import Position, start_of, starts_of
from eventstore.records.cluster_map import ClusterMap, Shard, even_slots

CLUSTER = bytes(range(16))
MAP = ClusterMap(CLUSTER, 9, 2, tuple(Shard(number, bytes([number]) * 16, slots) for number, slots in enumerate(even_slots(3))))
HERE = Position(CLUSTER.hex(), 2, {0: (120, 0), 1: (0, 0), 2: (98, 3)})
TEXT = f"p1.{CLUSTER.hex()}.2.0-120.1-0.2-98-3"

places = st.tuples(st.integers(0, VERSION_MAX), st.integers(0, 2**32 - 1))
positions = st.builds(
    Position, st.binary(min_size=16, max_size=16).map(bytes.hex), st.integers(1, 2**63 - 1),
    st.dictionaries(st.integers(0, 4095), places, min_size=1, max_size=20),
)  # fmt: skip


@given(positions)
def test_a_position_survives_its_text(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert hash(Position.parse(str(position))) == hash(position)
    backwards = replace(position, shards=dict(reversed(position.shards.items())))
    assert str(backwards) == str(position)


def test_the_text_of_a_position_is_stable() -> None:
    assert str(HERE) == TEXT
    assert es.Position.parse(TEXT) == HERE


@pytest.mark.parametrize(
    "text",
    ["", "7", TEXT + "\n", TEXT + ".0-1", TEXT.replace("p1", "p2"), TEXT[:-2] + "-٣", f"p1.{CLUSTER.hex()}.2", TEXT + "-1"],
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(es.InvalidArgument):
        Position.parse(text)


def test_a_cluster_takes_its_own_positions_and_no_others() -> None:
    assert starts_of(HERE, MAP) == {0: 120, 1: 0, 2: 98}
    assert starts_of(0, MAP) == {0: 0, 1: 0, 2: 0}
    assert starts_of(es.END, MAP) == {0: None, 1: None, 2: None}
    other = Position("ff" * 16, 2, HERE.shards)
    for refused, why in [
        (other, f"cluster {'ff' * 16}, but this is {CLUSTER.hex()}"),
        (Position(CLUSTER.hex(), 3, HERE.shards), "of layout 3 of the cluster, which has layout 2"),
        (Position(CLUSTER.hex(), 2, {0: (1, 0), 7: (1, 0)}), r"the shards \[0, 7\], but the cluster has \[0, 1, 2\]"),
        (5, "a sequence of one shard, but this cluster has 3"),
        (-1, "after"),
        ("p1", "after"),
    ]:
        with pytest.raises(es.InvalidArgument, match=why):
            starts_of(refused, MAP)


def test_a_single_store_takes_sequences_and_the_only_shard_of_a_cluster_both() -> None:
    assert (start_of(7), start_of(es.END)) == (7, None)
    with pytest.raises(es.InvalidArgument, match="this is a single store: give a sequence"):
        start_of(HERE)
    one = ClusterMap(CLUSTER, 1, 1, (Shard(0, CLUSTER, ((0, 4095),)),))
    assert starts_of(7, one) == starts_of(Position(CLUSTER.hex(), 1, {0: (7, 0)}), one) == {0: 7}
