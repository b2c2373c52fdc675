"""Events as CloudEvents, read and written by the SDK of the CNCF as well."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_binary_event,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from eventstore.cloudevents import Joint, from_batch, from_headers, from_structured, headers, structured, whole
from eventstore.errors import InvalidArgument
from eventstore.model import DATA_IS_JSON, TIME_MAX, TIME_MIN, Event, NewEvent

SOURCE = "urn:uuid:00000000-0000-0000-0000-00000000000a"
TIME = 1_700_000_000_123_456
TAG = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=20)
ID = TAG | st.just("\x01")
PAYLOADS = st.one_of(st.binary(max_size=30), st.recursive(st.integers() | st.text() | st.none() | st.booleans(), st.lists))
METADATA = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.dictionaries(
        st.sampled_from(["correlation_id", "causation_id", "traceparent", "schema", "cloudevent", "x"]),
        st.one_of(
            st.text(max_size=9),
            st.integers(),
            st.dictionaries(st.sampled_from(["id", "source", "time", "sequence", "x1", "A"]), st.text(max_size=3)),
        ),
    ),
)


def stored(new: NewEvent, aggregate_id: str = "order-42", version: int = 3, command_id: str = "c-1", time: int = TIME) -> Event:
    event: Event = tuple.__new__(Event, (aggregate_id, version, new[1], new[2], new[3], command_id, time, 77, new[0]))
    return event


def again(text: str) -> Event:
    """The event that is stored of a CloudEvent."""
    found = whole(from_structured(text), text)
    assert found.time is not None
    return stored(found.event, found.aggregate_id, found.version, found.command_id, found.time)


@given(
    st.builds(NewEvent, ID, PAYLOADS, METADATA, st.sets(TAG, max_size=3)),
    ID,
    st.integers(1, 2**62),
    ID,
    st.integers(TIME_MIN, TIME_MAX),
)
@example(NewEvent("T", 1, {"cloudevent": {"sequence": "0" * 20}, "correlation_id": "c"}), "a", 1, "c", 0)
@example(NewEvent("T", b"", {"correlation_id": "c", "schema": 2}), "a/1", 1, "c", -1)
@example(NewEvent("T", b"", {"cloudevent": {"id": "0"}, "schema": 1, "x": 1}), "a", 1, "c", 0)
def test_an_event_is_the_same_after_a_round_trip(
    new: NewEvent, aggregate_id: str, version: int, command_id: str, time: int
) -> None:
    event = stored(new, aggregate_id, version, command_id, time)
    text = structured(event, SOURCE, 3, Joint(9, 2))
    assert again(text) == event
    assert whole(from_structured(text), text).joint == (9, 2)
    elsewhere = "urn:uuid:00000000-0000-0000-0000-00000000000b"
    assert again(structured(again(text), elsewhere)) == event


@given(st.builds(NewEvent, ID, PAYLOADS, METADATA), ID)
def test_an_event_is_the_same_after_a_round_trip_in_binary_mode(new: NewEvent, aggregate_id: str) -> None:
    event = stored(new, aggregate_id)
    named, body = headers(event, SOURCE)
    assert all(value.isascii() and value.isprintable() for value in named.values())
    found = from_headers(named.items(), body)
    assert stored(found.event, found.aggregate_id, found.version, found.command_id, found.time or 0) == event


def test_the_sdk_reads_what_we_write() -> None:
    metadata = {"correlation_id": "begin", "schema": 2, "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    event = stored(NewEvent("Bestellt%", {"total": 12, "wer": "Ä€"}, metadata, ["customer:7"]), "bestellung-Ä 1")
    named, body = headers(event, SOURCE, 2)
    for found in (
        from_structured_event(HTTPMessage({}, structured(event, SOURCE, 2).encode())),
        from_binary_event(HTTPMessage(named, body)),
    ):
        assert found.get_type() == "Bestellt%"
        assert found.get_subject() == "bestellung-Ä 1"
        assert found.get_id() == "bestellung-Ä 1/3"
        assert found.get_source() == SOURCE
        assert found.get_time().timestamp() * 1_000_000 == pytest.approx(TIME, abs=1)
        assert found.get_data() == {"total": 12, "wer": "Ä€"}
        assert found.get_dataschema() == SOURCE + "#/events/Bestellt%25/versions/2"
        assert found.get_extension("sequence") == "00002-00000000000000000077"
        assert (found.get_extension("correlationid"), found.get_extension("causationid")) == ("begin", "c-1")
        assert found.get_extension("traceparent") == metadata["traceparent"]
        assert json.loads(found.get_extension("estags")) == ["customer:7"]


@pytest.mark.parametrize("data", [{"n": 1, "text": "Ä"}, b"\x00\xff", None, "text"])
def test_what_the_sdk_writes_comes_back_to_it(data: Any) -> None:
    kind = {dict: "application/json", bytes: "image/png", str: "text/plain"}.get(type(data))
    attributes: dict[str, Any] = {
        "id": "e 1",
        "source": "/shop",
        "type": "com.shop.placed",
        "subject": "order-1",
        "sequence": "0005",
        "partitionkey": "k",
        "correlationid": "x-1",
        "dataschema": "https://shop.example/placed.json",
        **({} if kind is None else {"datacontenttype": kind}),
    }
    sent = CloudEvent(attributes, data)
    one = to_structured_event(sent)
    received = whole(from_structured(one.body.decode()), one.body.decode())
    assert (received.aggregate_id, received.command_id) == ("order-1", "/shop e 1")
    event = stored(received.event, received.aggregate_id, 1, received.command_id, received.time or 0)
    back = from_structured_event(HTTPMessage({}, structured(event, SOURCE).encode()))
    assert {name: back.get_attributes()[name] for name in sent.get_attributes()} == sent.get_attributes()
    assert back.get_data() == (data.encode() if isinstance(data, str) else data)
    assert event.correlation_id == "x-1"
    binary = to_binary_event(sent)
    by_headers = from_headers(binary.headers.items(), binary.body)
    assert by_headers._replace(event=received.event) == received
    if data is not None:
        assert by_headers.event.metadata == received.event.metadata


def test_nanoseconds_and_zones_are_kept() -> None:
    for time in ("2026-01-31T12:00:00.123456789Z", "2026-01-31T14:00:00.123456+02:00"):
        given = {"specversion": "1.0", "id": "1", "source": "/s", "type": "T", "subject": "a", "time": time}
        event = again(json.dumps(given))
        assert event.time.isoformat() == "2026-01-31T12:00:00.123456+00:00"
        assert json.loads(structured(event, SOURCE))["time"] == time


def test_numbers_keep_their_spelling() -> None:
    begin = '{"specversion":"1.0","id":"1","source":"/s","type":"T","subject":"a","time":"2026-01-01T00:00:00Z",'
    given = begin + '"data": {"n": 1.10000000000000000001} }'
    assert again(given).data == b'{"n":1.10000000000000000001}'
    assert '"data":{"n":1.10000000000000000001}' in structured(again(given), SOURCE)


def test_the_same_foreign_event_is_the_same_however_its_values_are_set_apart() -> None:
    value = {"a b": ["c \\", ' " ', 1, {"d\n ": None}]}
    found = [again(json.dumps({**GOOD, "time": "2026-01-01T00:00:00Z", "data": value}, indent=indent)) for indent in (None, 3)]
    assert found[0] == found[1]
    assert found[0].json() == value


def test_json_of_several_lines_comes_back_as_it_was() -> None:
    event = stored(tuple.__new__(NewEvent, (1, "T", b'{"a":\n 1}', None)))
    assert again(structured(event, SOURCE)) == event
    assert "\n" not in structured(event, SOURCE)


GOOD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "T", "subject": "a"}


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"type": None}, "type", "is missing"),
        ({"type": ""}, "type", "not empty"),
        ({"subject": None}, "subject", "names the aggregate"),
        ({"source": None}, "source", "is missing"),
        ({"source": "a b"}, "source", "no space"),
        ({"id": 5}, "id", "must be text"),
        ({"specversion": "0.3"}, "specversion", "'0.3'"),
        ({"specversion": None}, "specversion", "None"),
        ({"Extension": "x"}, "Extension", "small letters"),
        ({"ext": 2**31}, "ext", "32 bits"),
        ({"ext": 10**400}, "ext", "32 bits"),
        ({"ext": 1.5}, "ext", "attribute is text"),
        ({"ext": {"a": 1}}, "ext", "attribute is text"),
        ({"time": "2026-01-31"}, "time", "RFC 3339"),
        ({"time": "2026-13-31T12:00:00Z"}, "time", "RFC 3339"),
        ({"data": 1, "data_base64": "AA=="}, "data", "give one"),
        ({"data_base64": "%"}, "data_base64", "not base 64"),
        ({"estags": "x"}, "estags", "not a JSON list"),
        ({"estags": '["a\\u0001"]'}, "tags", "control character"),
        ({"escommandid": "c", "esversion": "x"}, "esversion", "a number"),
        ({"esjointcommit": "1"}, "esjointevents", "from 2"),
        ({"subject": "x" * 256}, "subject", "256 bytes"),
        ({"type": "x" * 256}, "type", "256 bytes"),
        ({"type": "\ud800"}, "type", "half of a surrogate pair"),
    ],
)
def test_what_is_no_cloudevent_names_the_attribute(change: dict[str, object], field: str, says: str) -> None:
    text = json.dumps({**GOOD, **change})
    with pytest.raises(InvalidArgument, match=says) as refused:
        whole(from_structured(text), text)
    assert refused.value.fields["field"] == field


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'{' is missing"),
        ("[]", "'{' is missing"),
        ('{"id":"1","id":"2"}', "twice"),
        ('{"id":NaN}', "NaN is not JSON"),
        ('{"id":' + "[" * 100_000, "not a JSON object"),
        (json.dumps(GOOD) + "x", "more text"),
        (json.dumps(GOOD)[:-1], "'" + ","),
    ],
)
def test_what_is_not_json_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        whole(from_structured(text), text)


@pytest.mark.parametrize("body", ['{"a": 1}'.encode("utf-16"), b'\xef\xbb\xbf{"a":1}', b"NaN", b"", b"1 2", b"\xff"])
def test_a_body_in_binary_mode_that_is_not_json_is_refused(body: bytes) -> None:
    given = {f"ce-{name}": str(value) for name, value in GOOD.items() if name != "data"}
    with pytest.raises(InvalidArgument, match="the body is not JSON"):
        from_headers([*given.items(), ("content-type", "application/json")], body)


def test_data_that_a_client_only_called_json_are_told_as_bytes() -> None:
    for data in (b"NaN", b"[1,", b"\xef\xbb\xbf1", b""):
        event = tuple.__new__(Event, ("a", 1, "T", data, None, "c", 0, 1, DATA_IS_JSON))
        told = json.loads(structured(event, "urn:uuid:0"), parse_constant=pytest.fail)
        assert base64.b64decode(told["data_base64"]) == data


def test_a_batch_is_read_whole_or_names_its_event() -> None:
    assert list(from_batch(" [ ] ")) == []
    assert [each.command_id for each in from_batch(json.dumps([GOOD, {**GOOD, "id": "2"}]))] == ["/s 1", "/s 2"]
    for text, says in (
        (json.dumps([GOOD, {}]), "event 1 of the batch: specversion"),
        (json.dumps([GOOD])[:-1], "']' is missing|',' is missing"),
        ("[" + json.dumps(GOOD) + ",]", "event 1 of the batch: '{' is missing"),
        ("[] x", "more text after the batch"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            list(from_batch(text))


def test_two_sources_never_share_a_command_id() -> None:
    long = {**GOOD, "source": "/" + "s" * 300}
    ids = {again_id({**GOOD, "source": source, "id": id_}) for source, id_ in (("a", "b c"), ("a", "b"), ("ab", "c"))}
    assert len(ids) == 3
    assert again_id(long) == again_id(long) != again_id({**long, "id": "2"})


def again_id(given: dict[str, Any]) -> str:
    text = json.dumps(given)
    return whole(from_structured(text), text).command_id
