"""The commit record, byte by byte, and all of its decoders."""

from __future__ import annotations

import struct

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore.chunks.header import RECORDS_FROM
from eventstore.model import NewEvent
from eventstore.records import commit
from eventstore.records.event_page import decode_page
from eventstore.store.append import COMMITTED
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import EVENTS, Stepped, events_bytes, raw

FILE = EVENTS / "0000000001.events"


def content(store: Stepped) -> bytes:
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk.content(FILE)


@pytest.mark.usefixtures("without_key")
def test_the_record_on_disk_has_the_documented_bytes(opened: Maker) -> None:
    store = opened()
    store.append(raw("first", "c1"))
    durable = store.engine.front.end
    events = [NewEvent("Placed", b"data", None), NewEvent("Paid", {"a": 1}, {"b": 2})]
    store.append(raw("Ördnung", "command", *events, when=-5))
    start, stop = store.engine.tail.files[0].extent(1)
    record = content(store)[start:stop]

    def little(first: int, last: int) -> int:
        return int.from_bytes(record[first:last], "little")

    assert record[0:2] == bytes((0xC4, 54))
    assert little(2, 6) == crc32c(record[6:])
    assert little(6, 8) == 0
    assert little(8, 12) == len(record)
    assert little(12, 16) == durable
    assert little(16, 24) == 2, "the sequence of its first event"
    assert little(24, 28) == 1, "the epoch"
    assert little(28, 32) == 2, "how many events"
    assert struct.unpack_from("<q", record, 32) == (-5,)
    assert little(40, 48) == 1, "its first version"
    assert record[48:50] == bytes((len("Ördnung".encode()), len(b"command")))
    assert record[50:56] == bytes(6)
    aggregate = "Ördnung".encode()
    assert record[56:58] == bytes((0xD9, len(aggregate)))
    rest = aggregate + b"\xd9\x07command" + events_bytes(events) + b"\xce" + len(record).to_bytes(4, "big")
    assert record[58:] == rest


def test_a_run_of_records_is_one_flat_msgpack_sequence(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1", NewEvent("T", b"x")), raw("b", "2", NewEvent("U", b"y", b"m"), NewEvent("V", b"")))
    run = content(store)[RECORDS_FROM : store.engine.front.end]
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(run)
    values = list(unpacker)
    assert [type(value) for value in values] == [
        bytes, str, str, int, str, bytes, type(None), int,
        bytes, str, str, int, str, bytes, bytes, int, str, bytes, type(None), int,
    ]  # fmt: skip
    assert values[4:7] == ["T", b"x", None]


ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
own_ids = ids.filter(lambda text: not text.startswith("$"))  # the others are reserved for the store
events = st.builds(NewEvent, ids, st.binary(max_size=300), st.none() | st.binary(max_size=40))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(own_ids, ids, st.lists(events, min_size=1, max_size=4), st.integers(-(10**15), 10**15))
def test_all_decoders_of_a_commit_agree(
    opened: Maker, aggregate_id: str, command_id: str, made: list[NewEvent], when: int
) -> None:
    store = _shared(opened)
    ((status, *_),) = store.append(raw(aggregate_id, command_id, *made, when=when))
    view = store.engine.find_command(aggregate_id, command_id)
    assert view is not None
    assert (view.aggregate_id, view.command_id) == (aggregate_id, command_id)
    found = [event for event in store.read(aggregate_id) if event.command_id == command_id]
    assert commit.to_events(view) == found
    assert (view.last_version, view.last_sequence) == (found[-1].version, found[-1].sequence)
    page = store.engine.replay(aggregate_id, view.first_version, view.first_version, False, 1)
    assert decode_page(page.records) == found
    if status == COMMITTED:
        assert (view.count, view.time) == (len(made), when)
        assert [(event.type, event.data, event.metadata) for event in found] == [tuple(event[1:]) for event in made]


_stores: dict[int, Stepped] = {}


def _shared(opened: Maker) -> Stepped:
    """One store for all examples of a test, instead of a thousand directories."""
    if id(opened) not in _stores:
        _stores.clear()
        _stores[id(opened)] = opened()
    return _stores[id(opened)]


def test_a_commit_larger_than_a_file_gets_its_own_and_is_read_like_any_other(opened: Maker) -> None:
    store = opened()
    for number in range(4):
        store.append(raw("small", f"s{number}"), raw("large", f"l{number}", NewEvent("L", bytes([number]) * 20_000)))
    large = [header for header in store.engine.files.headers if header.completed and header.end > 20_000]
    assert len(large) == 3
    assert all(header.records == 1 for header in large)
    before = store.state()
    assert len(before) == 8
    store.sort()
    assert store.state() == before
    store = store.reopen()
    assert [event.data[0] for event in store.read("large", page_bytes=100)] == [0, 1, 2, 3]
    assert store.read("large", backwards=True) == store.read("large")[::-1]
