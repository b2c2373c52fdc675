"""Events as messages, as docs/BROKER.md defines them; none is ever refused."""

from __future__ import annotations

import base64
from json import loads

import pytest

from eventstore.errors import EventStoreError
from eventstore.model import COMMIT_BYTES_MAX, DATA_IS_JSON, EVENT_BYTES_MAX, METADATA_IS_JSON, VERSION_MAX, Event
from eventstore.records.event_message import EventMessages, origin_of_event, origin_of_message
from eventstore.records.message import Message, decode_messages
from eventstore.tags import TAGGED, enveloped
from tests.broker.stepped import Stepped
from tests.simulated_disk import SimulatedDisk

STORE = "1fb5c2fe-6e5d-4b52-9f3e-3c0f4f6f7a11"


def event(
    *, aggregate_id: str = "order-42", version: int = 3, type_: str = "OrderPaid", data: bytes = b'{"total":12}',
    metadata: bytes | None = None, command_id: str = "c-1", timestamp: int = 1_769_860_800_123_456, sequence: int = 1_024,
    format_: int = DATA_IS_JSON | METADATA_IS_JSON,
) -> Event:  # fmt: skip
    values = (aggregate_id, version, type_, data, metadata, command_id, timestamp, sequence, format_)
    return tuple.__new__(Event, values)


def sent(*events: Event) -> list[Message]:
    """Returns the messages as a consumer gets them, after the checks of the broker."""
    broker = Stepped(SimulatedDisk(1))
    broker.topic("events", 1)
    outcomes = broker.send(*EventMessages(STORE).of(events), topic="events")
    assert not [outcome for outcome in outcomes if isinstance(outcome, EventStoreError)]
    page = broker.pull(topic="events", bytes_max=64 << 20)
    return decode_messages(page.records, page.count)


def test_a_message_names_its_event() -> None:
    (message,) = sent(event(metadata=b'{"user":"ann"}'))
    assert (message.key, message.tag, message.body) == ("order-42", "OrderPaid", b'{"total":12}')
    assert message.properties == {
        "store": STORE, "sequence": "1024", "version": "3", "type": "OrderPaid", "command_id": "c-1",
        "timestamp": "1769860800123456", "format": "json", "metadata": '{"user":"ann"}',
    }  # fmt: skip


def test_bytes_that_are_not_json_are_sent_unchanged() -> None:
    (message,) = sent(event(data=b"\x00\xff", metadata=b"\xfe", format_=0))
    assert (message.body, message.properties["format"]) == (b"\x00\xff", "bytes")
    assert base64.b64decode(message.properties["metadata_base64"]) == b"\xfe"


def test_what_began_and_what_caused_an_event_are_properties_where_they_are_not_its_command() -> None:
    plain, caused, escaped = sent(
        event(metadata=b'{"correlation_id":"c-1"}'),
        event(metadata=b'{"correlation_id":"order-7","causation_id":"a/2"}'),
        event(metadata=b'{"correlation\\u005fid":"order-7"}'),
    )
    assert not {"correlation_id", "causation_id"} & plain.properties.keys()
    assert (caused.properties["correlation_id"], caused.properties["causation_id"]) == ("order-7", "a/2")
    assert escaped.properties["correlation_id"] == "order-7"


def test_metadata_flagged_as_json_that_is_not_text_is_sent_in_base_64() -> None:
    (message,) = sent(event(metadata=b"\xff\xfe"))
    assert base64.b64decode(message.properties["metadata_base64"]) == b"\xff\xfe"


@pytest.mark.parametrize("type_", ["a|b", "*", " spaced", "spaced ", "\u2003wide"])
def test_a_type_that_cannot_be_a_tag_is_only_a_property(type_: str) -> None:
    (message,) = sent(event(type_=type_))
    assert (message.tag, message.properties["type"]) == (None, type_)


def test_messages_of_every_body_have_the_tags_of_their_event() -> None:
    tags = tuple(f"t:{number:02d}" + '"' * 251 for number in range(32))
    tagged = event(metadata=enveloped(tags, b"{}"), format_=TAGGED | METADATA_IS_JSON)
    properties = [sent(tagged)[0].properties, _own(tagged).properties]
    assert [tuple(loads(each["tags"])) for each in properties] == [tags, tags]
    assert [each.get("metadata") for each in properties] == ["{}", None]
    assert "tags" not in _own(event()).properties


def _own(event: Event) -> Message:
    """Returns the message with a body of its own."""
    broker = Stepped(SimulatedDisk(1))
    broker.topic("events", 1)
    (outcome,) = broker.send(EventMessages(STORE).made_from(event, b"own"), topic="events")
    assert not isinstance(outcome, EventStoreError)
    page = broker.pull(topic="events")
    (message,) = decode_messages(page.records, page.count)
    assert (message.body, message.tag) == (b"own", "OrderPaid")
    return message


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("size", [0, 46_080, 46_081, 61_440, 61_441, EVENT_BYTES_MAX])
def test_no_metadata_is_too_large_to_publish_the_event(size: int, json: bool) -> None:
    metadata = b"m" * size
    longest = event(
        aggregate_id="a" * 255, version=VERSION_MAX, type_="t" * 255, data=b"", metadata=metadata, command_id="c" * 255,
        sequence=VERSION_MAX, format_=METADATA_IS_JSON if json else 0,
    )  # fmt: skip
    (message,) = sent(longest)
    properties = message.properties
    told = properties.get("metadata", "").encode() or base64.b64decode(properties.get("metadata_base64", ""))
    assert told == metadata or properties["metadata_bytes"] == str(size)


def test_the_largest_event_is_a_message() -> None:
    assert EVENT_BYTES_MAX < COMMIT_BYTES_MAX
    (message,) = sent(event(aggregate_id="ä" * 127, data=bytes(EVENT_BYTES_MAX), format_=0))
    assert len(message.body) == EVENT_BYTES_MAX


def test_the_event_of_a_message_can_be_identified() -> None:
    made = [event(sequence=number, version=number, aggregate_id=f"a-{number}") for number in range(1, 50)]
    messages = sent(*made)
    assert [origin_of_message(message, STORE) for message in messages] == [origin_of_event(each) for each in made]
    assert origin_of_message(messages[0], "another") is None


def test_events_of_one_aggregate_are_in_one_queue_whatever_their_order() -> None:
    broker = Stepped(SimulatedDisk(1))
    broker.topic("events", 4)
    made = [event(sequence=number, aggregate_id=f"a-{number % 7}") for number in range(1, 100)]
    places = broker.send(*EventMessages(STORE).of(made), topic="events")
    queues: dict[str, set[int]] = {}
    for each, place in zip(made, places, strict=True):
        assert not isinstance(place, EventStoreError)
        queues.setdefault(each.aggregate_id, set()).add(place[0])
    assert all(len(numbers) == 1 for numbers in queues.values())
