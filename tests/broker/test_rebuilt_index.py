"""The index of the queues is built again after messages were deleted: for another size of its files, or after a loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.broker.stepped import DATA, SMALL, Stepped, numbered
from tests.simulated_disk import SimulatedCrash, SimulatedDisk

_SENT = 600


def after_deletions(disk: SimulatedDisk, entries: int) -> Stepped:
    """Returns a broker of queue chunks of so many entries, of whose messages the first are deleted."""
    broker = Stepped(disk, replace(SMALL, queue_chunk_entries=entries))
    broker.topic("orders", 1)
    for start in range(0, _SENT, 5):
        broker.send(*numbered(5, 100, start))
    broker.index()
    through = broker.engine.files.first + 7
    broker.engine.forget_chunks(through, broker.engine.files.state(through + 1) or {})
    broker.engine.delete_chunks(through)
    return broker


def assert_all_is_there(broker: Stepped) -> None:
    first = broker.engine.queues[broker.opened.topics.get("orders").id, 0].first
    assert 0 < first < _SENT
    assert [int(body[:6]) for body in broker.bodies(0, first)] == list(range(first, _SENT))


@pytest.mark.parametrize(("before", "after"), [(100, 60), (100, 64), (64, 100), (16, 1000), (1000, 50)])
def test_the_size_of_queue_chunks_can_be_changed(before: int, after: int) -> None:
    broker = after_deletions(SimulatedDisk(1), before)
    broker.close()
    broker = Stepped(broker.disk, replace(broker.settings, queue_chunk_entries=after))
    assert_all_is_there(broker)
    broker.index()
    assert_all_is_there(broker)
    broker.close()


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))])
def test_a_power_failure_while_lost_queue_chunks_are_built_again_loses_nothing(seed: int) -> None:
    for nth in range(1, 14):
        disk = SimulatedDisk(seed)
        broker = after_deletions(disk, 1000)
        broker.close()
        folder = DATA / "queues" / "0000000001-00000"
        for name in list(disk.names(folder)):
            disk.remove(folder / name)
        disk.sync_folder(folder)
        broker = Stepped(disk, broker.settings)
        disk.crash_at(nth)
        try:
            broker.index()
        except SimulatedCrash:
            broker = Stepped(disk.crash("sectors"), broker.settings)
            broker.index()
        assert_all_is_there(broker)
        broker.close()
