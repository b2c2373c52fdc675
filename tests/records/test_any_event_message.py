"""Whatever the store accepts as an event is a message, in this process and for another server: none can hold up the rest."""

from __future__ import annotations

import json
from typing import NamedTuple

from hypothesis import assume, example, given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.client.session.message_rows import encode_message
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.model import EVENT_BYTES_MAX, ID_BYTES_MAX, VERSION_MAX, Event
from eventstore.records.commit import check_id
from eventstore.records.event_message import EventMessages, origin_of_event, origin_of_message
from eventstore.records.message import RawMessage, decode_messages, decode_properties
from eventstore.store.event_checks import EventsCheck
from tests.broker.stepped import Stepped
from tests.simulated_disk import SimulatedDisk

STORE = "1fb5c2fe-6e5d-4b52-9f3e-3c0f4f6f7a11"
SIZES = [45 * 1024, 45 * 1024 + 1, 60 * 1024, 60 * 1024 + 1, 64 * 1024, 70_000, EVENT_BYTES_MAX]
NAMES = st.sampled_from(["correlation_id", "causation_id", "x"])

texts = st.text(max_size=ID_BYTES_MAX) | st.sampled_from(
    ["\0", "*", "|", " a", "a\n", ":a", "$a", "\ud800", "ä" * 127, "a" * 255, "\ufeff"]
)
json_values = st.none() | st.integers() | st.text(max_size=20) | st.floats() | st.lists(st.text(max_size=3), max_size=3)
objects = st.dictionaries(NAMES | st.text(max_size=5), json_values | texts, max_size=4)
encodings = st.sampled_from(["utf-8", "utf-16", "utf-32", "utf-8-sig"])


def as_json(value: object, encoding: str, ascii_only: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode(encoding, errors="surrogatepass")


class Long(NamedTuple):
    """Bytes that are too many to be shown if the test fails."""

    unit: bytes
    size: int
    before: bytes = b""


metadata = (
    st.none()
    | st.binary(max_size=300)
    | st.builds(as_json, objects | json_values, encodings, st.booleans())
    | st.builds(Long, st.sampled_from([b"\\", b"\xff", b"m"]), st.sampled_from(SIZES))
    | st.builds(Long, st.sampled_from([b"[", b"9"]), st.sampled_from([5_000, 60_000]), st.just(b'{"correlation_id":'))
    | st.sampled_from([b'{"correlation_id":"\\ud800"}', b'{"correlation_id":1e999}', b'{"causation_id":"\\u0000"}'])
)


def accepted(format_: int, type_: str, data: bytes, metadata: bytes | None, *ids: str) -> None:
    """Passes on only what the store accepts."""
    try:
        EventsCheck()(flat.encode((format_, type_, data, metadata)))
        for each in ids:
            check_id("id", each)
    except (InvalidArgument, UnicodeEncodeError):
        assume(False)


@given(
    st.integers(0, 3), texts, st.binary(max_size=50), metadata, texts, texts,
    st.integers(1, VERSION_MAX), st.integers(1, VERSION_MAX), st.integers(-(2**63), 2**63 - 1),
)  # fmt: skip
@example(
    3, "*", b"", b'{"correlation_id":"' + b"\\u0000" * 40 + b'"}', "a" * 255, "c" * 255, VERSION_MAX, VERSION_MAX, -(2**63)
)
@example(3, "t" * 255, b"", Long(b"m", 61_440), "\U0001f600" * 63, "c" * 255, VERSION_MAX, VERSION_MAX, -(2**63))
@example(2, "T", b"", Long(b"m", 64 * 1024), "a", "c", 1, 1, 1)
@example(2, "T", b"", Long(b"[", 60_000, b'{"correlation_id":'), "a", "c", 1, 1, 1)
@example(2, "T", b"", b'{"correlation_id":"\\ud800"}', "a", "c", 1, 1, 1)
def test_every_event_that_is_stored_can_be_published(
    format_: int, type_: str, data: bytes, metadata: bytes | Long | None, aggregate_id: str, command_id: str,
    version: int, sequence: int, timestamp: int,
) -> None:  # fmt: skip
    if isinstance(metadata, Long):
        metadata = metadata.before + metadata.unit * (metadata.size - len(metadata.before))
    accepted(format_, type_, data, metadata, aggregate_id, command_id)
    values = (aggregate_id, version, type_, data, metadata, command_id, timestamp, sequence, format_)
    event: Event = tuple.__new__(Event, values)
    (here,) = EventMessages(STORE).of([event])
    body, key, tag, properties, _ = here
    elsewhere: RawMessage = encode_message(body, key, tag, decode_properties(properties), None)
    assert elsewhere == here
    broker = Stepped(SimulatedDisk(1))
    broker.topic("events", 1)
    for own in (True, False):
        (outcome,) = broker.engine.send(broker.opened.topics.get("events"), [elsewhere], own=own)
        assert not isinstance(outcome, EventStoreError)
    broker.persist()
    page = broker.pull(topic="events", bytes_max=64 << 20)
    for message in decode_messages(page.records, page.count):
        assert origin_of_message(message, STORE) == origin_of_event(event)
        assert message.body == data
