"""The small parts: records in memory, tags, properties, statistics, the CRCs of entries."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.broker.entry import first_bad, make_entries
from eventstore.broker.message import (
    PROPERTIES_BYTES_MAX,
    Message,
    check_properties,
    decode_messages,
    decode_properties,
    encode_properties,
    message_id,
    message_ids,
    parse_message_id,
)
from eventstore.broker.recent import Recent
from eventstore.broker.retrying import failed, failures_of
from eventstore.broker.statistics import Statistics
from eventstore.broker.tag_filter import parse_tags
from eventstore.errors import InvalidArgument, ProtocolError
from tests.broker.stepped import SMALL, Stepped, numbered, raw
from tests.simulated_disk import SimulatedDisk


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(0, 20), st.integers(0, 3_000))
def test_the_last_records_are_kept_by_count_and_within_the_bytes(batches: list[int], records_max: int, bytes_max: int) -> None:
    recent, position, sent = Recent(records_max, bytes_max), 0, []
    for count in batches:
        positions = list(range(position, position + count))
        records = [bytes(number % 50) for number in positions]
        recent.add(positions, records, sum(map(len, records)))
        position += count
        sent += records
        kept = [number for number in range(position) if recent.get(number) is not None]
        assert kept == list(range(position - len(kept), position)), "the last ones, without a gap"
        assert len(recent) == len(kept) <= records_max
        assert sum(len(sent[number]) for number in kept) <= bytes_max
        if sum(map(len, sent)) <= bytes_max:
            assert len(kept) == min(records_max, position)


def test_records_in_memory_take_little_more_than_their_bytes_however_many_went_by() -> None:
    recent, count, size = Recent(500, 1 << 30), 50, 2_000
    tracemalloc.start()
    try:
        for position in range(0, 10_000, count):
            recent.add(list(range(position, position + count)), [bytes(size) for _ in range(count)], count * size)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(recent) == 500
    assert 500 * size < taken < 600 * size


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), min_size=1, max_size=50), st.integers(0, 2**40))
def test_the_crcs_of_many_entries_are_those_of_each(rows: list[tuple[int, int, int, int]], first: int) -> None:
    key = (7, 3)
    columns = (array("Q"), array("I"), array("I"), array("I"))
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    raw_entries = make_entries(key, first, *columns).tobytes()
    for place, (position, length, tag, key_hash) in enumerate(rows):
        covered = struct.pack("<QQIII", first + place, position + 1, length, tag, key_hash)
        assert raw_entries[32 * place : 32 * place + 28] == covered
        assert raw_entries[32 * place + 28 : 32 * place + 32] == struct.pack("<I", crc32c(struct.pack("<II", *key) + covered))
    assert first_bad(key, first, make_entries(key, first, *columns)) is None
    assert first_bad((7, 4), first, make_entries(key, first, *columns)) == 0
    assert first_bad(key, first + 1, make_entries(key, first, *columns)) == 0


def test_tags_with_one_hash_are_told_apart() -> None:
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


@given(st.dictionaries(st.text(min_size=1, max_size=20).filter(lambda name: name[0] != ":"), st.text(max_size=50), max_size=5))
def test_properties_come_back_as_they_went(properties: dict[str, str]) -> None:
    try:
        packed = encode_properties(properties)
    except InvalidArgument:  # half a surrogate pair
        assert any("\ud800" <= character <= "\udfff" for text in (*properties, *properties.values()) for character in text)
        return
    assert decode_properties(packed) == properties
    assert check_properties(packed) == packed


@pytest.mark.parametrize(
    "bad", [flat.encode(("a",)), flat.encode(("a", 1)), flat.encode((":a", "b")), b"\x80", bytes(70_000), "a"]
)
def test_properties_that_are_none_are_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument):
        check_properties(bad)


def test_properties_that_are_full_bear_what_the_broker_adds_when_the_message_fails() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    properties = {"a": "x" * (PROPERTIES_BYTES_MAX - 5)}
    packed = encode_properties(properties)
    assert packed is not None
    assert len(packed) == PROPERTIES_BYTES_MAX
    broker.send((b"", None, None, packed, 0))
    page = broker.pull(0)
    message = decode_messages(page.records, page.count)[0]
    for failures in range(1, 4):
        _, (*_, added, queue) = failed(message, "\U0001f4a5" * 4_096, [1.0] * 9)
        assert queue == failures - 1
        message = Message((*message[:7], added, *message[8:]))
        assert {**message.properties, **properties} == message.properties
        assert failures_of(message) == failures


def test_properties_are_read_on_many_threads_at_once() -> None:
    packed = [encode_properties({f"k{one}-{place}": f"v{one}-{place}" * 3 for place in range(20)}) for one in range(4)]
    expected = [decode_properties(each) for each in packed]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            rounds = threads.map(
                lambda one: all(decode_properties(packed[one]) == expected[one] for _ in range(3_000)), range(4)
            )
            assert all(rounds)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("bad", [flat.encode(("a",)), b"\x80", bytes(80_000)])
def test_properties_that_cannot_be_read_are_a_typed_error(bad: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_properties(bad)


def test_a_message_id_is_node_and_position() -> None:
    assert parse_message_id(message_id(9, 5 << 32 | 4096)) == (9, 5 << 32 | 4096)
    assert message_ids(9, [0, 5 << 32 | 4096]) == [message_id(9, 0), message_id(9, 5 << 32 | 4096)]
    assert message_ids(9, []) == []
    for bad in ("", "x" * 20, "0" * 19, 7, "+" + "0" * 19):
        with pytest.raises(InvalidArgument):
            parse_message_id(bad)


def test_a_page_that_was_cut_is_refused() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.send(*numbered(3))
    page = broker.pull(0)
    assert decode_messages(b"", 0) == []
    for records, count in ((page.records[:-1], 3), (page.records, 2), (page.records, 4), (b"x" * 90, 1)):
        with pytest.raises(ProtocolError):
            decode_messages(records, count)


def test_a_key_leads_to_the_same_queue_in_every_process_and_messages_without_one_go_in_turn() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic(queues=4)
    by_key = broker.send(*(raw(key=f"key-{number % 10}") for number in range(100)))
    assert [outcome[0] for outcome in by_key[:10]] == [crc32c(f"key-{number}".encode()) % 4 for number in range(10)]  # type: ignore[index]
    assert [outcome[0] for outcome in by_key[10:20]] == [outcome[0] for outcome in by_key[:10]]  # type: ignore[index]
    in_turn = broker.send(*(raw() for _ in range(8)))
    assert [outcome[0] for outcome in in_turn] == [0, 1, 2, 3, 0, 1, 2, 3]  # type: ignore[index]


def test_statistics_tell_rates_per_queue_and_chunk() -> None:
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


def test_time_never_goes_back_from_one_message_to_the_next() -> None:
    times = iter((50.0, 60.0, 40.0, 70.0))
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.engine.sender._clock = lambda: next(times)
    for _ in range(4):
        broker.send(raw(queue=0))
    assert [message.timestamp for message in broker.messages()] == [50_000_000, 60_000_000, 60_000_000, 70_000_000]
