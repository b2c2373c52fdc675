"""Joint commits that are larger than a page, read from several shards at once: nothing of another shard comes in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import pytest

import eventstore as es
from eventstore.records.cluster_map import even_slots
from eventstore.records.slots import number_of_slot
from tests.cluster.led_shards import LedShards

MEMBERS, COMMITS = 8, 6


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, 3) as shards:
        yield shards


def write(shards: LedShards, data: bytes) -> int:
    """Writes joint commits to each shard; returns how many events they have."""
    tags = [number_of_slot(slots[0][0]) for slots in even_slots(3)]
    with es.blocking.connect(shards.address) as store:
        for number in range(COMMITS):
            for shard in range(3):
                names = [f"a{number}-{member}{{{tags[shard]}}}" for member in range(MEMBERS)]
                store.commit([es.Write(name, [es.NewEvent("A", data)], 0) for name in names])
    return MEMBERS * COMMITS * 3


def check(events: list[es.Event]) -> None:
    pages = 0
    for before, event in pairwise(events):
        if before.commit_continues:
            assert event.command_id == before.command_id, "another commit has come in between"
        pages += before.command_id != event.command_id
    assert pages == COMMITS * 3 - 1
    assert not events[-1].commit_continues


def test_a_read_of_all_shards_has_each_joint_commit_in_one_piece(shards: LedShards) -> None:
    count = write(shards, bytes(200 * 1024))
    with es.blocking.connect(shards.address) as store:
        events = list(store.read_all())
        assert len(events) == count
        check(events)
        assert len({each.aggregate_id.partition("{")[2] for each in events[: count // 3]}) > 1, "the shards take turns"


def test_a_subscription_to_all_shards_has_each_joint_commit_in_one_piece(shards: LedShards) -> None:
    count = write(shards, bytes(200 * 1024))
    with es.blocking.connect(shards.address) as store, store.subscribe(after=0) as stream:
        events = list(islice((each for each in stream if isinstance(each, es.Event)), count))
    check(events)
