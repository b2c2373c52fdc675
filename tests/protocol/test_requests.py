"""Requests: all of them survive the wire; invalid values are refused by field, limit and value."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError, UnknownOperation
from eventstore.flat import Scalar
from eventstore.model import ANY, EXISTS, VERSION_MAX, ExpectedVersion
from eventstore.protocol.backup_requests import BeginBackup, NoteBackup
from eventstore.protocol.frames import LENGTH_BYTES, encode_frame
from eventstore.protocol.limits import (
    COMMANDS_PER_FRAME_MAX,
    COMMITS_PER_FRAME_MAX,
    CREDIT_BYTES_MAX,
    INT64_MAX,
    INT64_MIN,
    PAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    SILENCE_S_MAX,
    TYPES_MAX,
    UINT64_MAX,
)
from eventstore.protocol.reaction_requests import (
    AskWaits,
    CheckParking,
    FollowReactions,
    ListAlarms,
    ListParked,
    ListProjections,
    ListReactions,
    NoteProjection,
    RecordParking,
    ReplayReaction,
    RetryParked,
    SilenceAlarm,
    SkipParked,
    TellPlace,
    TestAlarms,
    WaitProjection,
)
from eventstore.protocol.request_codec import BadRequest, RequestDecoder, encode_append, encode_request
from eventstore.protocol.request_declaration import Request, code_of
from eventstore.protocol.requests import (
    Append,
    Credit,
    FindCommand,
    Hello,
    ListAggregates,
    ListClients,
    Ping,
    Read,
    ReadAll,
    ReadAllBackwards,
    Send,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
    WireCommand,
    check_command,
)
from eventstore.protocol.timer_requests import ChangeTimer, ConfirmClock, ListTimers, RecordTimers, SetTimer
from eventstore.records.raw_commit import AfterCommand, AppendCondition, OnAllReplicas, RawCommit
from eventstore.records.timer_record import AFTER_US_MAX
from tests.records.parking_fields import parked, unparked

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=63)
counts = st.one_of(st.none(), st.integers(0, VERSION_MAX))
times = st.one_of(st.none(), st.integers(INT64_MIN, INT64_MAX))
positions = st.integers(0, INT64_MAX)
types = st.lists(texts, max_size=5).map(tuple)
page_sizes = st.integers(1, PAGE_BYTES_MAX)
credits_ = st.integers(0, CREDIT_BYTES_MAX)
request_ids = st.integers(1, UINT64_MAX)
names = st.one_of(st.none(), texts)
prefixes = st.one_of(st.none(), st.just(""), texts)
versions = st.integers(0, VERSION_MAX)
conditions = st.one_of(st.sampled_from([ANY, EXISTS]), versions, st.builds(AfterCommand, versions, texts))
wire_commands = st.tuples(texts, texts, texts, st.binary(max_size=200), st.none() | st.binary(max_size=50))
raw_commits = st.tuples(texts, conditions, texts, times, st.binary(max_size=200))

requests = st.one_of(
    st.builds(Append, st.lists(raw_commits, min_size=1, max_size=20)),
    st.builds(Hello, st.integers(INT64_MIN, UINT64_MAX), texts),
    st.builds(Read, texts, st.integers(1, VERSION_MAX), counts, st.booleans(), counts, page_sizes),
    st.builds(ReadAllBackwards, positions, counts, page_sizes, prefixes, names, times, times, types),
    st.builds(ReadAll, positions, counts, page_sizes, prefixes, names, times, times, types),
    st.builds(Version, texts),
    st.builds(RecordParking, st.just("$parked{a}"), st.just("$Parked"), st.builds(parked, why=st.text())),
    st.builds(RecordParking, st.just("$parked{a}"), st.just("$Unparked"), st.builds(unparked, who=st.text())),
    st.builds(CheckParking),
    st.builds(ListReactions),
    st.builds(NoteProjection, texts, positions, times, positions),
    st.just(BeginBackup()),
    st.builds(NoteBackup, texts, st.none() | positions),
    st.builds(ListProjections, st.integers(0, 2**63 - 1)),
    st.builds(WaitProjection, texts, names, st.none() | st.integers(0, VERSION_MAX)),
    st.builds(AskWaits, texts, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    st.builds(TellPlace, texts, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    st.builds(FollowReactions, names, st.none() | st.integers(1, VERSION_MAX), names),
    st.builds(ListParked, texts, st.integers(0, 2**63 - 1)),
    st.builds(RetryParked, texts, names, texts, texts),
    st.builds(SkipParked, texts, texts, texts, texts),
    st.builds(ReplayReaction, texts, st.integers(1, 2**63 - 1), texts, texts),
    st.builds(SetTimer, texts, texts, st.just("T"), st.binary(), st.integers(0, AFTER_US_MAX)),
    st.builds(SetTimer, texts, texts, st.just("T"), st.binary(), st.none(), st.just(5), st.just("t"), st.just(b"{}")),
    st.builds(RecordTimers, st.just((("$timers{a}", "c-1", "$TimerCancelled", b'{"timer":"t"}', None),) * 2)),
    st.builds(ListTimers, st.integers(0, 2**63 - 1), names),
    st.builds(ChangeTimer, texts, st.just("t"), st.just("move"), st.integers(0, 2**50), texts, texts),
    st.builds(ChangeTimer, texts, st.just("t"), st.sampled_from(["run", "cancel"]), st.none(), texts, texts),
    st.builds(ConfirmClock, texts, texts),
    st.builds(ListAlarms, st.integers(0, 2**63 - 1)),
    st.builds(SilenceAlarm, texts, st.integers(0, SILENCE_S_MAX), texts, texts),
    st.builds(TestAlarms, texts),
    st.builds(ListAggregates, prefixes, prefixes, st.integers(1, 1_000)),
    st.builds(FindCommand, texts, texts),
    st.builds(Subscribe, st.none() | positions, credits_, prefixes, names, times, times, types),
    st.builds(Credit, request_ids, credits_),
    st.builds(Unsubscribe, request_ids),
    st.just(Stats()),
    st.just(Ping()),
    st.builds(ListClients, versions, st.integers(1, 1_000)),
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
        (code_of(Version), ("",), "aggregate_id", 1, 0),
        (code_of(Version), ("é" * 128,), "aggregate_id", 255, 256),
        (code_of(FindCommand), ("a", "x" * 256), "command_id", 255, 256),
        (code_of(Read), ("a", 0, None, False, None, 100), "from_version", 1, 0),
        (code_of(Read), ("a", -1, None, False, None, 100), "from_version", 1, -1),
        (code_of(Read), ("a", 2**63, None, False, None, 100), "from_version", VERSION_MAX, str(2**63)),
        (code_of(Read), ("a", 1, -1, False, None, 100), "to_version", 0, -1),
        (code_of(Read), ("a", 1, None, False, -1, 100), "events_max", 0, -1),
        (code_of(Read), ("a", 1, None, False, None, 0), "bytes_max", 1, 0),
        (code_of(Read), ("a", 1, None, False, None, PAGE_BYTES_MAX + 1), "bytes_max", PAGE_BYTES_MAX, PAGE_BYTES_MAX + 1),
        (code_of(ReadAll), (-1, None, 100, None, None, None, None, None), "after", 0, -1),
        (code_of(ReadAll), (0, None, 100, "x" * 256, None, None, None), "aggregate_prefix", 255, 256),
        (code_of(ReadAll), (0, None, 100, None, None, 2**63, None), "from_time", INT64_MAX, str(2**63)),
        (code_of(ReadAll), (0, None, 100, None, None, None, None, ""), "types", 1, 0),
        (code_of(ReadAll), (0, None, 100, None, None, None, None, *["t"] * 257), "types", TYPES_MAX, 257),
        (code_of(ReadAll), (0, None, 100, None, "x" * 256, None, None), "aggregate_id", 255, 256),
        (code_of(ListAggregates), (None, None, 1_001), "limit", 1_000, 1_001),
        (code_of(Subscribe), (-1, 100, None, None, None, None), "after", 0, -1),
        (code_of(Subscribe), (0, -1, None, None, None, None), "credit", 0, -1),
        (
            code_of(Subscribe),
            (0, CREDIT_BYTES_MAX + 1, None, None, None, None),
            "credit",
            CREDIT_BYTES_MAX,
            CREDIT_BYTES_MAX + 1,
        ),
        (code_of(Credit), (0, 100), "subscription", 1, 0),
        (code_of(Hello), ("eventstore", 1, "x" * 256), "client", 255, 256),
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
        (code_of(Version), (b"a",), "aggregate_id"),
        (code_of(Version), (None,), "aggregate_id"),
        (code_of(Read), ("a", None, None, False, None, 100), "from_version"),
        (code_of(Read), ("a", True, None, False, None, 100), "from_version"),
        (code_of(Read), ("a", 1, "2", False, None, 100), "to_version"),
        (code_of(Read), ("a", 1, None, 0, None, 100), "backwards"),
        (code_of(ReadAll), (0, None, 100, 7, None, None, None), "aggregate_prefix"),
        (code_of(ReadAll), (0, None, 100, None, None, None, None, b"type"), "types"),
        (code_of(Unsubscribe), ("8",), "subscription"),
        (code_of(Hello), ("eventstore", "1", "x"), "version"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_field(code: int, values: tuple[Scalar, ...], field: str) -> None:
    error = refused(9, code, *values)
    assert isinstance(error, InvalidArgument)
    assert error.fields["field"] == field


@pytest.mark.parametrize("code", [code_of(Version), code_of(FindCommand)])
def test_an_id_that_is_not_utf8_is_refused_with_a_printable_message(code: int) -> None:
    payload = flat.encode([9, code]) + b"\xa2\xff\xfe" * (1 if code == code_of(Version) else 2)
    with pytest.raises(BadRequest) as caught:
        RequestDecoder().decode(payload)
    assert caught.value.request_id == 9
    assert caught.value.error.fields["field"] == "aggregate_id"
    assert caught.value.error.message.isascii()


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (code_of(Hello), ()),
        (code_of(Hello), ("eventstore", 1)),
        (code_of(Hello), ("something else", 1, "x")),
        (code_of(Read), ("a", 1)),
        (code_of(Read), ("a", 1, None, False, None, 100, 1)),
        (code_of(ReadAll), (0, None, 100, None, None, None)),
        (code_of(Version), ()),
        (code_of(Subscribe), (0, 100)),
        (code_of(Credit), (1,)),
        (code_of(Stats), (1,)),
        (code_of(Ping), (None,)),
        (code_of(Send), ()),
        (code_of(Send), ("Open", "a", "c")),
        (code_of(Send), ("Open", "a", "c", b"{}")),
        (code_of(Send), ("Open", "a", "c", b"{}", None, "Open")),
        (code_of(Append), ()),
        (code_of(Append), ("a", 0, "c", None)),
        (code_of(Append), ("a", 0, "c", None, b"", "a")),
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
        assert isinstance(refused(9, code_of(Append), *values), ProtocolError)


@pytest.mark.parametrize(
    ("wire", "condition"),
    [
        (None, ANY),
        (True, EXISTS),
        (0, 0),
        (1, 1),
        (VERSION_MAX, VERSION_MAX),
        ("0/c", AfterCommand(0, "c")),
        ("7/c-41", AfterCommand(7, "c-41")),
        (f"{VERSION_MAX}/", AfterCommand(VERSION_MAX, "")),
        ("1/1/", AfterCommand(1, "1/")),
    ],
)
def test_each_condition_of_a_commit_has_its_wire_form(wire: Scalar, condition: AppendCondition) -> None:
    row, commit = ("a", wire, "d", None, b""), ("a", condition, "d", None, b"")
    assert decode(9, code_of(Append), *row) == (9, Append([commit]))
    assert decode(9, code_of(Append), *GOOD, *row) == (9, Append([GOOD, commit]))
    assert encode_append(9, [commit]) == encode_frame(9, code_of(Append), row)
    assert encode_append(9, [GOOD, commit]) == encode_frame(9, code_of(Append), [*GOOD, *row])


@pytest.mark.parametrize("malformed", ["/1", "x/1", "01/1", "-1/1", "+1/1", "１/1", "1_0/1", " 1/1", "9" * 5_000 + "/1"])
def test_a_malformed_version_before_a_command_is_a_version_that_no_aggregate_has(malformed: str) -> None:
    (_, request) = decode(9, code_of(Append), "a", malformed, "d", None, b"")
    assert request == Append([("a", AfterCommand(-1, "1"), "d", None, b"")])


@pytest.mark.parametrize("senseless", ["", "1", "c"])
def test_a_text_that_is_not_a_condition_is_refused_by_the_store(senseless: str) -> None:
    row = ("a", senseless, "d", None, b"")
    assert decode(9, code_of(Append), *row) == (9, Append([cast(RawCommit, row)]))


@pytest.mark.parametrize(
    "bad",
    [
        (b"T", "a", "c", b"", None), ("T", None, "c", b"", None), ("T", "a", 1, b"", None), ("T", "a", "c", "{}", None),
        ("T", "a", "c", b"{}", "{}"),
    ],
)  # fmt: skip
def test_a_command_of_the_wrong_shape_is_a_protocol_error(bad: tuple[Scalar, ...]) -> None:
    good = ("T", "a", "c", b"{}", None)
    for values in (bad, (*good, *bad), (*bad, *good)):
        assert isinstance(refused(9, code_of(Send), *values), ProtocolError)


def test_a_frame_of_too_many_commands_is_refused_by_name() -> None:
    error = refused(9, code_of(Send), *("T", "a", "c", b"", None) * (COMMANDS_PER_FRAME_MAX + 1))
    assert isinstance(error, InvalidArgument)
    assert (error.fields["field"], error.fields["limit"]) == ("commands", COMMANDS_PER_FRAME_MAX)


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (("", "a", "c", b"", None), "type"),
        (("T", "x" * 256, "c", b"", None), "aggregate_id"),
        (("T", "a", "\ud800", b"", None), "command_id"),
        (("T", "a", "c", bytes(PAYLOAD_BYTES_MAX + 1), None), "payload"),
        (("T", "a", "c", b"", b" " * 16_385), "metadata"),
        (("T", "a", "c", b"", b"{"), "metadata"),
        (("T", "a", "c", b"", b"[" * 16_384), "metadata"),
        (("T", "a", "c", b"", b'{"a":NaN}'), "metadata"),
        (("T", "a", "c", b"", b"\xff"), "metadata"),
        (("T", "a", "c", b"", b"[]"), "metadata"),
        (("T", "a", "c", b"", b'{"schema":2}'), "metadata"),
        (("T", "a", "c", b"", b'{"no_publish":true}'), "metadata"),
        (("T", "a", "c", b"", b'{"correlation_id":1}'), "correlation_id"),
        (("T", "a", "c", b"", b'{"causation_id":""}'), "causation_id"),
    ],
)
def test_a_command_beyond_a_limit_is_refused_by_the_name_of_its_field(command: WireCommand, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_command(command)
    assert caught.value.fields["field"] == field


def test_the_content_of_a_commit_is_checked_by_the_store() -> None:
    commits: list[Any] = [("", -1, "", 2**64 - 1, b"\xc1"), ("x" * 300, None, "c", None, b""), ("a", True, "c", -5, b"")]
    row = [value for commit in commits for value in commit]
    commits[1:] = [("x" * 300, ANY, "c", None, b""), ("a", EXISTS, "c", -5, b"")]
    assert decode(3, code_of(Append), *row) == (3, Append(commits))
    bad_utf8 = flat.encode([3, code_of(Append)]) + b"\xa2\xff\xfe" + flat.encode(GOOD[1:])
    assert RequestDecoder().decode(bad_utf8) == (3, Append([("\udcff\udcfe", *GOOD[1:])]))


def test_more_commits_than_a_frame_may_hold_are_refused() -> None:
    assert len(decode(1, code_of(Append), *GOOD * COMMITS_PER_FRAME_MAX)[1].commits) == COMMITS_PER_FRAME_MAX  # type: ignore[union-attr]
    error = refused(1, code_of(Append), *GOOD * (COMMITS_PER_FRAME_MAX + 1))
    assert error.fields == {"field": "commits", "limit": COMMITS_PER_FRAME_MAX, "value": COMMITS_PER_FRAME_MAX + 1}


def test_commits_encode_as_the_request_they_make() -> None:
    assert encode_append(5, [GOOD, GOOD]) == encode_request(5, Append([GOOD, GOOD]))


@pytest.mark.parametrize("code", [0, 98, 99, 100, 255, 2**40])
def test_an_unknown_code_is_an_unknown_operation_under_its_request_id(code: int) -> None:
    error = refused(77, code, "whatever")
    assert isinstance(error, UnknownOperation)
    assert error.fields == {"operation": code}


def test_a_hello_may_have_more_values_than_this_version_knows() -> None:
    assert decode(1, code_of(Hello), "eventstore", 9, "future", "extra", None) == (1, Hello(9, "future"))


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("durability", [False, True])
def test_a_hello_says_what_the_client_takes(in_parts: bool, durability: bool) -> None:
    hello = Hello(1, "demo", in_parts, durability)
    assert RequestDecoder().decode(encode_request(1, hello)[LENGTH_BYTES:]) == (1, hello)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("all:any", ANY), ("all:exists", EXISTS), ("all:0", 0), ("all:17", 17), (f"all:{VERSION_MAX}", VERSION_MAX)],
)
def test_a_commit_may_expect_all_replicas_in_sync(text: str, expected: ExpectedVersion) -> None:
    commit = ("a", OnAllReplicas(expected), "c", None, b"")
    assert decode(1, code_of(Append), "a", text, "c", None, b"") == (1, Append([commit]))
    assert encode_append(1, [commit]) == encode_frame(1, code_of(Append), ("a", text, "c", None, b""))
    assert encode_append(1, [commit] * 2) == encode_frame(1, code_of(Append), ("a", text, "c", None, b"") * 2)


@pytest.mark.parametrize("text", ["all:", "all:none", "all:-1", "all:01", "all: 1", "All:any", "all", "all:all:any"])
def test_a_condition_that_is_malformed_is_left_to_the_store_which_refuses_its_commit_alone(text: str) -> None:
    assert decode(1, code_of(Append), "a", text, "c", None, b"") == (1, Append([("a", text, "c", None, b"")]))  # type: ignore[list-item]


@pytest.mark.parametrize("payload", [b"\x01", b"\xc0\x01", b"\xff\x0b", b"\xa1a\x0b", b"\xc3\x0b", b"\x01\xc0", b"\x01\xa1a"])
def test_a_payload_without_id_and_code_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        RequestDecoder().decode(payload)
    assert isinstance(caught.value.error, ProtocolError)


def test_request_id_zero_is_for_credit_alone() -> None:
    assert decode(0, code_of(Credit), 5, 100) == (0, Credit(5, 100))
    assert isinstance(refused(0, code_of(Ping)), ProtocolError)


def test_a_malformed_payload_is_refused_under_its_request_id_and_the_decoder_continues() -> None:
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
