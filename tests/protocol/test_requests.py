"""Requests: every one survives the wire, and whatever breaks a rule is refused by field, limit and value."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError, UnknownOperation
from eventstore.flat import Scalar
from eventstore.model import VERSION_MAX
from eventstore.protocol.codes import RequestCode
from eventstore.protocol.frames import LENGTH_BYTES, encode_frame
from eventstore.protocol.limits import (
    COMMANDS_PER_FRAME_MAX,
    COMMITS_PER_FRAME_MAX,
    CREDIT_BYTES_MAX,
    PAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    TYPES_MAX,
)
from eventstore.protocol.request_codec import BadRequest, RequestDecoder, encode_append, encode_request
from eventstore.protocol.requests import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    Append,
    Credit,
    FindCommand,
    Hello,
    Ping,
    Read,
    ReadAll,
    Request,
    Send,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
    WireCommand,
    check_command,
)

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=63)
counts = st.one_of(st.none(), st.integers(0, VERSION_MAX))
times = st.one_of(st.none(), st.integers(INT64_MIN, INT64_MAX))
positions = st.integers(0, INT64_MAX)
types = st.lists(texts, max_size=5).map(tuple)
page_sizes = st.integers(1, PAGE_BYTES_MAX)
credits_ = st.integers(0, CREDIT_BYTES_MAX)
request_ids = st.integers(1, UINT64_MAX)
prefixes = st.one_of(st.none(), st.just(""), texts)
expected = st.one_of(st.none(), st.just(True), st.integers(0, VERSION_MAX), texts)
wire_commands = st.tuples(texts, texts, texts, st.binary(max_size=200))
wire_commits = st.tuples(texts, expected, texts, times, st.binary(max_size=200))

requests = st.one_of(
    st.builds(Append, st.lists(wire_commits, min_size=1, max_size=20)),
    st.builds(Hello, st.integers(INT64_MIN, UINT64_MAX), texts),
    st.builds(Read, texts, st.integers(1, VERSION_MAX), counts, st.booleans(), counts, page_sizes),
    st.builds(ReadAll, positions, counts, page_sizes, prefixes, times, times, types),
    st.builds(Version, texts),
    st.builds(FindCommand, texts, texts),
    st.builds(Subscribe, positions, credits_, prefixes, types),
    st.builds(Credit, request_ids, credits_),
    st.builds(Unsubscribe, request_ids),
    st.just(Stats()),
    st.just(Ping()),
    st.builds(Send, st.lists(wire_commands, min_size=1, max_size=20)),
)


def decode(request_id: int, code: int, *values: Scalar) -> tuple[int, Request]:
    return RequestDecoder().decode(encode_frame(request_id, code, values)[LENGTH_BYTES:])


def refused(request_id: int, code: int, *values: Scalar) -> EventStoreError:
    with pytest.raises(BadRequest) as caught:
        decode(request_id, code, *values)
    assert caught.value.request_id == request_id
    return caught.value.error


@given(request_ids, requests)
def test_every_request_survives_the_wire(request_id: int, request: Request) -> None:
    payload = encode_request(request_id, request)[LENGTH_BYTES:]
    assert RequestDecoder().decode(payload) == (request_id, request)


@given(requests, requests)
def test_one_decoder_serves_any_number_of_requests(first: Request, second: Request) -> None:
    decoder = RequestDecoder()
    for request in (first, second, first):
        assert decoder.decode(encode_request(7, request)[LENGTH_BYTES:]) == (7, request)


@pytest.mark.parametrize(
    ("code", "values", "field", "limit", "value"),
    [
        (RequestCode.VERSION, ("",), "aggregate_id", 1, 0),
        (RequestCode.VERSION, ("é" * 128,), "aggregate_id", 255, 256),
        (RequestCode.FIND_COMMAND, ("a", "x" * 256), "command_id", 255, 256),
        (RequestCode.READ, ("a", 0, None, False, None, 100), "from_version", 1, 0),
        (RequestCode.READ, ("a", -1, None, False, None, 100), "from_version", 1, -1),
        (RequestCode.READ, ("a", 2**63, None, False, None, 100), "from_version", VERSION_MAX, str(2**63)),
        (RequestCode.READ, ("a", 1, -1, False, None, 100), "to_version", 0, -1),
        (RequestCode.READ, ("a", 1, None, False, -1, 100), "events_max", 0, -1),
        (RequestCode.READ, ("a", 1, None, False, None, 0), "bytes_max", 1, 0),
        (RequestCode.READ, ("a", 1, None, False, None, PAGE_BYTES_MAX + 1), "bytes_max", PAGE_BYTES_MAX, PAGE_BYTES_MAX + 1),
        (RequestCode.READ_ALL, (-1, None, 100, None, None, None), "after", 0, -1),
        (RequestCode.READ_ALL, (0, None, 100, "x" * 256, None, None), "aggregate_prefix", 255, 256),
        (RequestCode.READ_ALL, (0, None, 100, None, 2**63, None), "from_time", INT64_MAX, str(2**63)),
        (RequestCode.READ_ALL, (0, None, 100, None, None, None, ""), "types", 1, 0),
        (RequestCode.READ_ALL, (0, None, 100, None, None, None, *["t"] * 257), "types", TYPES_MAX, 257),
        (RequestCode.SUBSCRIBE, (-1, 100, None), "after", 0, -1),
        (RequestCode.SUBSCRIBE, (0, -1, None), "credit", 0, -1),
        (RequestCode.SUBSCRIBE, (0, CREDIT_BYTES_MAX + 1, None), "credit", CREDIT_BYTES_MAX, CREDIT_BYTES_MAX + 1),
        (RequestCode.CREDIT, (0, 100), "subscription", 1, 0),
        (RequestCode.HELLO, ("eventstore", 1, "x" * 256), "client", 255, 256),
    ],
)
def test_a_value_beyond_its_limit_is_refused_by_field_limit_and_value(
    code: int, values: tuple[Scalar, ...], field: str, limit: int, value: int | str
) -> None:
    error = refused(9, code, *values)
    assert isinstance(error, InvalidArgument)
    assert error.fields == {"field": field, "limit": limit, "value": value}


@pytest.mark.parametrize(
    ("code", "values", "field"),
    [
        (RequestCode.VERSION, (b"a",), "aggregate_id"),
        (RequestCode.VERSION, (None,), "aggregate_id"),
        (RequestCode.READ, ("a", None, None, False, None, 100), "from_version"),
        (RequestCode.READ, ("a", True, None, False, None, 100), "from_version"),
        (RequestCode.READ, ("a", 1, "2", False, None, 100), "to_version"),
        (RequestCode.READ, ("a", 1, None, 0, None, 100), "backwards"),
        (RequestCode.READ_ALL, (0, None, 100, 7, None, None), "aggregate_prefix"),
        (RequestCode.READ_ALL, (0, None, 100, None, None, None, b"type"), "types"),
        (RequestCode.UNSUBSCRIBE, ("8",), "subscription"),
        (RequestCode.HELLO, ("eventstore", "1", "x"), "version"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_field(code: int, values: tuple[Scalar, ...], field: str) -> None:
    error = refused(9, code, *values)
    assert isinstance(error, InvalidArgument)
    assert error.fields["field"] == field


@pytest.mark.parametrize("code", [RequestCode.VERSION, RequestCode.FIND_COMMAND])
def test_an_id_that_is_not_utf8_is_refused_in_a_way_that_can_be_shown(code: int) -> None:
    payload = flat.encode([9, code]) + b"\xa2\xff\xfe" * (1 if code == RequestCode.VERSION else 2)
    with pytest.raises(BadRequest) as caught:
        RequestDecoder().decode(payload)
    assert caught.value.request_id == 9
    assert caught.value.error.fields["field"] == "aggregate_id"
    assert caught.value.error.message.isascii()


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (RequestCode.HELLO, ()),
        (RequestCode.HELLO, ("eventstore", 1)),
        (RequestCode.HELLO, ("something else", 1, "x")),
        (RequestCode.READ, ("a", 1)),
        (RequestCode.READ, ("a", 1, None, False, None, 100, 1)),
        (RequestCode.READ_ALL, (0, None, 100, None, None)),
        (RequestCode.VERSION, ()),
        (RequestCode.SUBSCRIBE, (0, 100)),
        (RequestCode.CREDIT, (1,)),
        (RequestCode.STATS, (1,)),
        (RequestCode.PING, (None,)),
        (RequestCode.SEND, ()),
        (RequestCode.SEND, ("Open", "a", "c")),
        (RequestCode.SEND, ("Open", "a", "c", b"{}", "Open")),
        (RequestCode.APPEND, ()),
        (RequestCode.APPEND, ("a", 0, "c", None)),
        (RequestCode.APPEND, ("a", 0, "c", None, b"", "a")),
    ],
)
def test_a_wrong_number_of_values_is_a_protocol_error(code: int, values: tuple[Scalar, ...]) -> None:
    assert isinstance(refused(9, code, *values), ProtocolError)


GOOD = ("a", 0, "c", None, b"")


@pytest.mark.parametrize(
    "bad",
    [
        (b"a", 0, "c", None, b""),
        ("a", False, "c", None, b""),
        ("a", b"0", "c", None, b""),
        ("a", 0, None, None, b""),
        ("a", 0, "c", "now", b""),
        ("a", 0, "c", True, b""),
        ("a", 0, "c", None, "text"),
        ("a", 0, "c", None, None),
    ],
)
def test_a_commit_of_the_wrong_shape_is_a_protocol_error(bad: tuple[Scalar, ...]) -> None:
    for values in (bad, (*GOOD, *bad), (*bad, *GOOD)):
        assert isinstance(refused(9, RequestCode.APPEND, *values), ProtocolError)


def test_a_commit_may_rest_on_that_of_a_command() -> None:
    commit = ("a", "c", "d", None, b"")
    assert decode(9, RequestCode.APPEND, *commit) == (9, Append([commit]))
    assert decode(9, RequestCode.APPEND, *GOOD, *commit) == (9, Append([GOOD, commit]))


@pytest.mark.parametrize("bad", [(b"T", "a", "c", b""), ("T", None, "c", b""), ("T", "a", 1, b""), ("T", "a", "c", "{}")])
def test_a_command_of_the_wrong_shape_is_a_protocol_error(bad: tuple[Scalar, ...]) -> None:
    good = ("T", "a", "c", b"{}")
    for values in (bad, (*good, *bad), (*bad, *good)):
        assert isinstance(refused(9, RequestCode.SEND, *values), ProtocolError)


def test_a_frame_of_too_many_commands_is_refused_by_name() -> None:
    error = refused(9, RequestCode.SEND, *("T", "a", "c", b"") * (COMMANDS_PER_FRAME_MAX + 1))
    assert isinstance(error, InvalidArgument)
    assert (error.fields["field"], error.fields["limit"]) == ("commands", COMMANDS_PER_FRAME_MAX)


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (("", "a", "c", b""), "type"),
        (("T", "x" * 256, "c", b""), "aggregate_id"),
        (("T", "a", "\ud800", b""), "command_id"),
        (("T", "a", "c", bytes(PAYLOAD_BYTES_MAX + 1)), "payload"),
    ],
)
def test_a_command_beyond_a_limit_is_refused_by_the_name_of_its_field(command: WireCommand, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_command(command)
    assert caught.value.fields["field"] == field


def test_what_a_commit_says_is_left_to_the_store() -> None:
    commits = [("", -1, "", 2**64 - 1, b"\xc1"), ("x" * 300, None, "c", None, b""), ("a", True, "c", -5, b"")]
    assert decode(3, RequestCode.APPEND, *[value for commit in commits for value in commit]) == (3, Append(commits))
    bad_utf8 = flat.encode([3, RequestCode.APPEND]) + b"\xa2\xff\xfe" + flat.encode(GOOD[1:])
    assert RequestDecoder().decode(bad_utf8) == (3, Append([("\udcff\udcfe", *GOOD[1:])]))


def test_more_commits_than_a_frame_may_hold_are_refused() -> None:
    assert len(decode(1, RequestCode.APPEND, *GOOD * COMMITS_PER_FRAME_MAX)[1].commits) == COMMITS_PER_FRAME_MAX  # type: ignore[union-attr]
    error = refused(1, RequestCode.APPEND, *GOOD * (COMMITS_PER_FRAME_MAX + 1))
    assert error.fields == {"field": "commits", "limit": COMMITS_PER_FRAME_MAX, "value": COMMITS_PER_FRAME_MAX + 1}


def test_flat_commit_values_encode_as_the_request_they_make() -> None:
    assert encode_append(5, [*GOOD, *GOOD]) == encode_request(5, Append([GOOD, GOOD]))


@pytest.mark.parametrize("code", [0, 39, 99, 100, 255, 2**40])
def test_an_unknown_code_is_an_unknown_operation_under_its_request_id(code: int) -> None:
    error = refused(77, code, "whatever")
    assert isinstance(error, UnknownOperation)
    assert error.fields == {"operation": code}


def test_a_hello_may_say_more_than_this_version_knows() -> None:
    assert decode(1, RequestCode.HELLO, "eventstore", 9, "future", "extra", None) == (1, Hello(9, "future"))


@pytest.mark.parametrize("payload", [b"\x01", b"\xc0\x01", b"\xff\x0b", b"\xa1a\x0b", b"\xc3\x0b", b"\x01\xc0", b"\x01\xa1a"])
def test_a_payload_without_id_and_code_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        RequestDecoder().decode(payload)
    assert isinstance(caught.value.error, ProtocolError)


def test_request_id_zero_is_for_credit_alone() -> None:
    assert decode(0, RequestCode.CREDIT, 5, 100) == (0, Credit(5, 100))
    assert isinstance(refused(0, RequestCode.PING), ProtocolError)


def test_a_malformed_payload_is_refused_under_its_request_id_and_the_decoder_goes_on() -> None:
    decoder = RequestDecoder()
    for junk in (b"\x91\x91\xc0", b"\xa5abc", b"\x80" * 100):
        with pytest.raises(BadRequest) as caught:
            decoder.decode(flat.encode([4711, 2]) + junk)
        assert caught.value.request_id == 4711
        assert isinstance(caught.value.error, ProtocolError)
    with pytest.raises(BadRequest) as caught:
        decoder.decode(b"\xc1")
    assert caught.value.request_id == 0
    assert decoder.decode(encode_request(1, Ping())[LENGTH_BYTES:]) == (1, Ping())


@given(st.binary(min_size=1, max_size=200))
def test_noise_is_a_request_or_refused(noise: bytes) -> None:
    decoder = RequestDecoder()
    with contextlib.suppress(BadRequest):
        decoder.decode(noise)
    assert decoder.decode(encode_request(1, Ping())[LENGTH_BYTES:]) == (1, Ping())
