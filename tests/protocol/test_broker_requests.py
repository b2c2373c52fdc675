"""Requests to the broker: all of them survive the wire; invalid values are refused by field, limit and value."""

from __future__ import annotations

from types import NoneType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError
from eventstore.flat import Scalar
from eventstore.protocol import broker_requests as asked
from eventstore.protocol import group_requests, limits
from eventstore.protocol.broker_requests import BrokerRequest, SendMessages
from eventstore.protocol.frames import LENGTH_BYTES, encode_frame
from eventstore.protocol.group_requests import Join, ResetGroup
from eventstore.protocol.request_codec import BadRequest, RequestDecoder, encode_request, encode_send_messages
from eventstore.protocol.request_declaration import DECLARATIONS, Argument, Request, code_of

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=63)
queues = st.integers(0, limits.QUEUE_MAX)
offsets = st.integers(0, limits.INT64_MAX)


def values(argument: Argument) -> st.SearchStrategy[Any]:
    """Returns values that are within the limits of an argument."""
    if argument.rows:
        columns = [values(each) for each in argument.rows]
        row = columns[0] if len(columns) == 1 else st.tuples(*columns)
        return st.lists(row, min_size=1, max_size=5).map(tuple)
    by_type = {
        str: texts,
        int: st.integers(1 if argument.low is None else argument.low, 1_000 if argument.high is None else argument.high),
        bool: st.booleans(),
        bytes: st.binary(max_size=50),
        NoneType: st.none(),
    }
    return st.one_of(*(by_type[each] for each in argument.types))


def declared(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, *map(values, DECLARATIONS[kind].arguments))


requests = st.one_of(
    *(
        declared(kind)
        for kind in DECLARATIONS
        if issubclass(kind, BrokerRequest) and kind not in (SendMessages, Join, ResetGroup)
    ),
    declared(SendMessages).map(lambda request: SendMessages(request.topic, list(request.messages))),
    st.dictionaries(texts, st.none() | texts, min_size=1).map(lambda topics: Join("g", "m", False, tuple(topics.items()))),
    st.builds(ResetGroup, texts, texts, st.none() | queues, st.sampled_from(("start", "end")), st.none()),
    st.builds(ResetGroup, texts, texts, st.none() | queues, st.sampled_from(("offset", "time")), offsets),
)


def decode(code: int, *values: Scalar) -> Request:
    return RequestDecoder().decode(encode_frame(9, code, values)[LENGTH_BYTES:])[1]


def refused(code: int, *values: Scalar) -> EventStoreError:
    with pytest.raises(BadRequest) as caught:
        decode(code, *values)
    assert caught.value.request_id == 9
    return caught.value.error


@given(st.integers(1, 2**64 - 1), requests)
def test_every_request_survives_the_wire(request_id: int, request: BrokerRequest[Any]) -> None:
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
