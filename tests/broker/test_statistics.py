"""Statistics: rates of queues and chunks."""

from __future__ import annotations

from eventstore.broker.statistics import Statistics
from tests.broker.stepped import SMALL, Stepped, numbered
from tests.simulated_disk import SimulatedDisk


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
