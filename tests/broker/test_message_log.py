"""What is sent can be pulled: in order per queue, as the same bytes, after a restart, a crash, and from every place it can be
in: memory, the ongoing chunk, completed chunks, with the queue index or without.
"""

from __future__ import annotations

import pytest

from eventstore.broker.message import decode_messages
from eventstore.broker.queue_chunks import DOCUMENT
from eventstore.errors import EventStoreError
from tests.broker.stepped import DATA, Stepped, numbered, raw
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedDisk


def test_what_was_sent_is_pulled_in_order_with_everything_it_had() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    outcomes = broker.send(raw(b"one", "key", "paid", 1), raw(b"two", queue=1), raw(b"three", queue=0))
    assert [outcome[:2] for outcome in outcomes if not isinstance(outcome, EventStoreError)] == [(1, 0), (1, 1), (0, 0)]
    first, second = broker.messages(queue=1)
    assert (first.topic, first.queue, first.queue_offset, first.key, first.tag) == ("orders", 1, 0, "key", "paid")
    assert (first.body, first.properties, first.timestamp, first.number) == (b"one", {}, 1_000_000_000, 1)
    assert (second.key, second.tag, second.body, second.queue_offset) == (None, None, b"two", 1)
    assert first.message_id == f"{broker.opened.node:04x}{first.position:016x}"
    assert first.position == outcomes[0][2]  # type: ignore[index] # an outcome, checked above


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_what_was_acknowledged_survives_a_crash(mode: CrashMode) -> None:
    disk = SimulatedDisk(1)
    broker = Stepped(disk)
    broker.topic()
    for batch in range(40):
        broker.send(*numbered(5, start=5 * batch))
        if batch == 20:
            broker.index()
    expected = [message[0] for message in numbered(200)]
    assert broker.bodies() == expected
    again = Stepped(disk.crash(mode))
    assert again.bodies() == expected
    assert again.send(raw(queue=0))[0][1] == 200  # type: ignore[index] # an outcome
    assert again.bodies()[200:] == [b"body"]


def test_the_queue_index_can_be_deleted_and_is_built_anew() -> None:
    disk = SimulatedDisk(2)
    broker = Stepped(disk)
    broker.topic()
    broker.send(*numbered(200))
    broker.index()
    assert broker.engine.queues[1, 0].tail.base > 150, "most entries are on disk alone"
    before = broker.messages()
    broker.close()
    for name in disk.names(DATA / "queues" / "0000000001-00000"):
        disk.remove(DATA / "queues" / "0000000001-00000" / name)
    broker = Stepped(disk)
    assert broker.opened.report.rebuilt
    assert broker.messages() == before
    broker.index()
    assert broker.messages() == before
    disk.remove(DATA / DOCUMENT)
    broker = broker.reopen()
    assert broker.messages() == before


def test_a_recovery_scans_only_the_last_chunk() -> None:
    broker = Stepped(SimulatedDisk(3))
    broker.topic()
    broker.send(*numbered(300))
    assert broker.engine.files.last > 5
    broker.index()
    broker = broker.reopen()
    assert broker.opened.report.scanned == 1
    assert not broker.opened.report.rebuilt
    assert [message.queue_offset for message in broker.messages()] == list(range(300))


def test_a_page_is_bounded_by_messages_and_by_bytes_and_holds_at_least_one() -> None:
    broker = Stepped(SimulatedDisk(4))
    broker.topic()
    broker.send(*numbered(20, size=500))
    assert broker.pull(3, messages_max=4).next_offset == 7
    page = broker.pull(0, bytes_max=1300)
    assert (page.count, page.next_offset) == (2, 2)
    assert broker.pull(5, bytes_max=1).count == 1
    assert decode_messages(page.records, 2)[1].queue_offset == 1


def test_an_offset_outside_the_queue_is_clamped_and_that_is_said() -> None:
    broker = Stepped(SimulatedDisk(5))
    broker.topic()
    broker.send(*numbered(3))
    beyond = broker.pull(99)
    assert (beyond.count, beyond.next_offset, beyond.clamped, beyond.end) == (0, 3, 99, 3)
    assert broker.pull(-5).clamped == -5
    assert broker.pull(3).clamped is None
