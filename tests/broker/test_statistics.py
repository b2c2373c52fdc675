"""Statistics: rates of queues and chunks."""

from __future__ import annotations

from eventstore.broker.statistics import Statistics
from tests.broker.stepped import SMALL, Stepped, numbered
from tests.simulated_disk import SimulatedDisk


def test_each_chunk_counts_what_readers_found_in_the_ring_in_memory_and_in_its_file() -> None:
    broker = Stepped(SimulatedDisk(0), SMALL)
    broker.topic()
    statistics = Statistics(broker.engine, broker.opened.topics)
    broker.send(*numbered(60))
    broker.index()

    def sources() -> list[tuple[int, int, int]]:
        return [(chunk.recent, chunk.memory, chunk.file) for chunk in statistics.chunks()]

    count = len(sources())
    assert sources() == [(0, 0, 0)] * count
    broker.pull(55, messages_max=5)
    assert sources() == [(0, 0, 0)] * (count - 1) + [(5, 0, 0)]
    broker = broker.reopen()
    statistics = Statistics(broker.engine, broker.opened.topics)
    assert broker.pull(0, messages_max=60).count == 60
    *completed, (recent, memory, file) = sources()
    assert all(each[1] and not each[0] and not each[2] for each in completed)
    assert (recent, memory) == (0, 0)
    assert file + sum(each[1] for each in completed) == 60


def test_statistics_have_rates_per_queue_and_chunk() -> None:
    broker = Stepped(SimulatedDisk(0), SMALL)
    broker.topic()
    statistics = Statistics(broker.engine, broker.opened.topics)
    statistics.tick(10.0)
    broker.send(*numbered(60))
    broker.index()
    page = broker.pull(0, messages_max=20)
    statistics.pulled((1, 0), page.count, len(page.records))
    statistics.tick(12.0)
    first, second = statistics.queues()
    assert (first.rates.written, first.rates.read) == (30.0, 10.0)
    assert first.rates.read_bytes == len(page.records) / 2
    assert first.rates.written_bytes == 3 * first.rates.read_bytes, "messages of one size"
    assert (second.rates.written, second.end) == (0.0, 0)
    chunks = statistics.chunks()
    assert [chunk.state for chunk in chunks] == ["completed"] * (len(chunks) - 1) + ["ongoing"]
    assert sum(chunk.rates.read for chunk in chunks) == 10.0
    assert sum(chunk.rates.written for chunk in chunks) == 30.0
    statistics.tick(13.0)
    assert statistics.queues()[0].rates.written == 0.0
