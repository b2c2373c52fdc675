"""Requests to the broker: all of them survive the wire; invalid values are refused by field, limit and value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError
from eventstore.flat import Scalar
from eventstore.protocol import broker_requests as asked
from eventstore.protocol import group_requests, limits
from eventstore.protocol.broker_requests import BrokerRequest, SendMessages
from eventstore.protocol.frames import LENGTH_BYTES, encode_frame
from eventstore.protocol.request_codec import BadRequest, RequestDecoder, encode_request, encode_send_messages
from eventstore.protocol.request_declaration import Request, code_of

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=63)
queues = st.integers(0, limits.QUEUE_MAX)
offsets = st.integers(0, limits.INT64_MAX)
tags = st.none() | texts
page_sizes = st.integers(1, limits.PAGE_BYTES_MAX)
messages = st.tuples(st.binary(max_size=50), st.none() | texts, tags, st.none() | st.binary(max_size=20), st.none() | queues)


def rows(*values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[tuple[object, ...], ...]]:
    return st.lists(st.tuples(*values), min_size=1, max_size=5).map(tuple)


places = rows(texts, queues, offsets)
requests: st.SearchStrategy[BrokerRequest] = st.one_of(
    st.builds(SendMessages, texts, st.lists(messages, min_size=1, max_size=20)),
    st.builds(
        asked.Pull, st.integers(1, limits.PULL_MESSAGES_MAX), page_sizes, st.integers(0, limits.PULL_WAIT_MS_MAX),
        st.none() | texts, st.none() | texts, rows(texts, queues, offsets, tags),
    ),
    st.builds(group_requests.Join, texts, texts, st.booleans(), st.dictionaries(texts, tags, min_size=1, max_size=5).map(
        lambda topics: tuple(topics.items())
    )),
    st.builds(group_requests.Heartbeat, texts, texts, offsets),
    st.builds(group_requests.Leave, texts, texts),
    st.builds(group_requests.CommitOffsets, texts, texts, offsets, places),
    st.builds(group_requests.FailMessages, texts, texts, offsets, st.just("") | texts, places),
    st.builds(group_requests.ReplayDead, texts, st.lists(offsets, min_size=1, max_size=5).map(tuple)),
    st.builds(group_requests.ResetGroup, texts, texts, st.none() | queues, st.sampled_from(("start", "end")), st.none()),
    st.builds(group_requests.ResetGroup, texts, texts, st.none() | queues, st.sampled_from(("offset", "time")), offsets),
    st.just(group_requests.ListGroups()),
    st.builds(group_requests.ShowGroup, texts, offsets),
    st.builds(group_requests.ListMembers, texts),
    st.builds(group_requests.ListInHand, st.none() | texts),
    st.builds(group_requests.DeleteGroup, texts),
    st.builds(group_requests.ForgetTopic, texts, texts),
    st.builds(asked.CreateTopic, texts, st.none() | st.integers(1, limits.QUEUES_MAX), st.booleans()),
    st.just(asked.ListTopics()),
    st.builds(asked.ShowTopic, texts),
    st.builds(asked.DeleteTopic, texts, st.booleans()),
    st.builds(asked.AddQueues, texts, st.integers(1, limits.QUEUES_MAX)),
    st.builds(asked.CloseQueue, texts, queues),
    st.builds(asked.RemoveQueue, texts, queues),
    st.builds(asked.FindMessage, texts),
    st.builds(asked.ReadMessage, texts, queues, offsets),
    st.builds(asked.FindKey, texts, texts, st.integers(1, limits.FOUND_MESSAGES_MAX), page_sizes, offsets),
    st.builds(asked.OffsetAt, texts, queues, st.integers(limits.INT64_MIN, limits.INT64_MAX)),
    st.builds(asked.ListChunks, offsets),
)  # fmt: skip


def decode(code: int, *values: Scalar) -> Request:
    return RequestDecoder().decode(encode_frame(9, code, values)[LENGTH_BYTES:])[1]


def refused(code: int, *values: Scalar) -> EventStoreError:
    with pytest.raises(BadRequest) as caught:
        decode(code, *values)
    assert caught.value.request_id == 9
    return caught.value.error


@given(st.integers(1, 2**64 - 1), requests)
def test_every_request_survives_the_wire(request_id: int, request: BrokerRequest) -> None:
    assert RequestDecoder().decode(encode_request(request_id, request)[LENGTH_BYTES:]) == (request_id, request)


@pytest.mark.parametrize(
    ("code", "values", "field", "limit", "value"),
    [
        (code_of(asked.Pull), (0, 1, 0, None, None, "t", 0, 0, None), "messages_max", 1, 0),
        (code_of(asked.Pull), (10_001, 1, 0, None, None, "t", 0, 0, None), "messages_max", 10_000, 10_001),
        (code_of(asked.Pull), (1, 2**23 + 1, 0, None, None, "t", 0, 0, None), "bytes_max", 2**23, 2**23 + 1),
        (code_of(asked.Pull), (1, 1, 60_001, None, None, "t", 0, 0, None), "wait_ms", 60_000, 60_001),
        (code_of(asked.Pull), (1, 1, 0, None, None), "wants", 1_000, 0),
        (code_of(asked.Pull), (1, 1, 0, None, None, *("t", 0, 0, None) * 1_001), "wants", 1_000, 1_001),
        (code_of(asked.Pull), (1, 1, 0, None, None, "t", 65_536, 0, None), "queue", 65_535, 65_536),
        (code_of(asked.Pull), (1, 1, 0, None, None, "t", 0, -1, None), "offset", 0, -1),
        (code_of(asked.Pull), (1, 1, 0, None, None, "t", 0, 0, ""), "tags", 1, 0),
        (code_of(group_requests.Join), ("g", "m", False), "topics", 1_000, 0),
        (code_of(group_requests.Join), ("g", "x" * 256, False, "t", None), "member", 255, 256),
        (code_of(group_requests.CommitOffsets), ("g", "m", 1, *("t", 0, 0) * 16_385), "offsets", 16_384, 16_385),
        (code_of(group_requests.FailMessages), ("g", "m", 1, "", *("t", 0, 0) * 257), "places", 256, 257),
        (code_of(group_requests.ReplayDead), ("g",), "offsets", 256, 0),
        (code_of(asked.CreateTopic), ("t", 257, False), "queues", 256, 257),
        (code_of(asked.CreateTopic), ("x" * 300, 1, False), "topic", 255, 300),
        (code_of(asked.FindKey), ("t", "k", 1_001, 1, 0), "messages_max", 1_000, 1_001),
        (code_of(SendMessages), ("t", *(b"", None, None, None, None) * 4_097), "messages", 4_096, 4_097),
    ],
)
def test_a_value_beyond_its_limit_is_refused_by_field_limit_and_value(
    code: int, values: tuple[Scalar, ...], field: str, limit: int, value: int
) -> None:
    error = refused(code, *values)
    assert isinstance(error, InvalidArgument)
    assert error.fields == {"field": field, "limit": limit, "value": value}


@pytest.mark.parametrize(
    ("code", "values", "field"),
    [
        (code_of(asked.Pull), (1, 1, 0, None, None, b"t", 0, 0, None), "topic"),
        (code_of(asked.Pull), (1, 1, 0, None, None, "t", True, 0, None), "queue"),
        (code_of(asked.Pull), (1, 1, 0, None, None, "t", 0, None, None), "offset"),
        (code_of(group_requests.Join), ("g", "m", 1, "t", None), "from_end"),
        (code_of(group_requests.Join), ("g", "m", False, "t", None, "t", "paid"), "topics"),
        (code_of(group_requests.Heartbeat), ("g", "m", None), "generation"),
        (code_of(group_requests.ResetGroup), ("g", "t", None, "middle", None), "to"),
        (code_of(group_requests.ResetGroup), ("g", "t", None, "end", 7), "value"),
        (code_of(group_requests.ResetGroup), ("g", "t", None, "time", None), "value"),
        (code_of(asked.CreateTopic), ("t", 1, None), "if_missing"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_field(code: int, values: tuple[Scalar, ...], field: str) -> None:
    error = refused(code, *values)
    assert isinstance(error, InvalidArgument)
    assert error.fields["field"] == field


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (code_of(SendMessages), ()),
        (code_of(SendMessages), ("t",)),
        (code_of(SendMessages), ("t", b"", None, None, None)),
        (code_of(SendMessages), (b"t", b"", None, None, None, None)),
        (code_of(asked.Pull), (1, 1)),
        (code_of(asked.Pull), (1, 1, 0, None, None, "t", 0, 0)),
        (code_of(group_requests.Join), ("g", "m", False, "t")),
        (code_of(group_requests.CommitOffsets), ("g", "m", 1, "t", 0)),
        (code_of(group_requests.Leave), ("g",)),
        (code_of(asked.ListTopics), (1,)),
    ],
)
def test_a_wrong_number_of_values_is_a_protocol_error(code: int, values: tuple[Scalar, ...]) -> None:
    assert isinstance(refused(code, *values), ProtocolError)


def test_the_content_of_a_message_is_checked_by_the_broker() -> None:
    bad = [("text", 1, True, None, "x"), (b"", "", "a|b", b"\xc1", -1)]
    values = [value for message in bad for value in message]
    assert decode(code_of(SendMessages), "t", *values) == SendMessages("t", bad)


def test_flat_message_values_encode_as_the_request_they_make() -> None:
    message = (b"body", "key", None, None, 3)
    assert encode_send_messages(5, "t", [*message, *message]) == encode_request(5, SendMessages("t", [message, message]))
