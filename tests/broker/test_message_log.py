"""Messages can be pulled in order per queue, as the same bytes, after a restart or a crash, and from every place: memory, the
current chunk, completed chunks, with the queue index or without.
"""

from __future__ import annotations

import pytest
from crc32c import crc32c

from eventstore.broker.log.queue_chunks import DOCUMENT
from eventstore.errors import EventStoreError, ProtocolError
from eventstore.records.message import decode_messages
from eventstore.records.tag_filter import parse_tags
from tests.broker.stepped import DATA, Stepped, numbered, raw
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedDisk


def test_messages_are_pulled_in_order_with_all_their_fields() -> None:
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
def test_acknowledged_messages_survive_a_crash(mode: CrashMode) -> None:
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


def test_the_queue_index_can_be_deleted_and_is_rebuilt() -> None:
    disk = SimulatedDisk(2)
    broker = Stepped(disk)
    broker.topic()
    broker.send(*numbered(200))
    broker.index()
    assert broker.engine.queues[1, 0].tail.base > 150, "most entries are on disk only"
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


def test_an_offset_outside_the_queue_is_clamped_and_reported() -> None:
    broker = Stepped(SimulatedDisk(5))
    broker.topic()
    broker.send(*numbered(3))
    beyond = broker.pull(99)
    assert (beyond.count, beyond.next_offset, beyond.clamped, beyond.end) == (0, 3, 99, 3)
    assert broker.pull(-5).clamped == -5
    assert broker.pull(3).clamped is None


def test_tags_with_the_same_hash_are_distinguished() -> None:
    pair = ("paid", "sent")
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.send(raw(b"wanted", tag=pair[0], queue=0), raw(b"other", tag=pair[1], queue=0))
    log = broker.engine.queues[1, 0]
    log.tail.tags[1] = log.tail.tags[0]  # as if both had one hash
    assert broker.bodies(tags=pair[0]) == [b"wanted"]


def test_a_tag_that_begins_like_another_is_another() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.send(*(raw(tag.encode(), tag=tag, queue=0) for tag in ("a", "ab", "a" * 40, "b")))
    assert broker.bodies(tags="a") == [b"a"]
    assert broker.bodies(tags="b | ab") == [b"ab", b"b"]
    assert parse_tags("*") is parse_tags(None) is None


def test_a_page_that_is_cut_off_is_refused() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.send(*numbered(3))
    page = broker.pull(0)
    assert decode_messages(b"", 0) == []
    for records, count in ((page.records[:-1], 3), (page.records, 2), (page.records, 4), (b"x" * 90, 1)):
        with pytest.raises(ProtocolError):
            decode_messages(records, count)


def test_a_key_leads_to_the_same_queue_in_every_process_and_messages_without_a_key_are_spread_in_turn() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic(queues=4)
    by_key = broker.send(*(raw(key=f"key-{number % 10}") for number in range(100)))
    assert [outcome[0] for outcome in by_key[:10]] == [crc32c(f"key-{number}".encode()) % 4 for number in range(10)]  # type: ignore[index]
    assert [outcome[0] for outcome in by_key[10:20]] == [outcome[0] for outcome in by_key[:10]]  # type: ignore[index]
    in_turn = broker.send(*(raw() for _ in range(8)))
    assert [outcome[0] for outcome in in_turn] == [0, 1, 2, 3, 0, 1, 2, 3]  # type: ignore[index]


def test_times_never_decrease_from_one_message_to_the_next() -> None:
    times = iter((50.0, 60.0, 40.0, 70.0))
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.engine.sender._clock = lambda: next(times)
    for _ in range(4):
        broker.send(raw(queue=0))
    assert [message.timestamp for message in broker.messages()] == [50_000_000, 60_000_000, 60_000_000, 70_000_000]
