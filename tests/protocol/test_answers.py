"""Answers: all of them survive the wire; errors keep class, fields and code, and can always be sent."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventstore import errors, flat
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError, VersionConflict
from eventstore.flat import Scalar
from eventstore.model import Committed
from eventstore.protocol.answers import (
    Answer,
    AnswerDecoder,
    Failure,
    Goodbye,
    Ok,
    Outcomes,
    Page,
    SomeOutcomes,
    decode_outcome,
    encode_error,
    encode_goodbye,
    encode_ok,
    encode_outcomes,
    encode_page,
    encode_scan_page,
    encode_some_outcomes,
    outcome_values,
)
from eventstore.protocol.frames import LENGTH_BYTES, FrameReader, encode_frame
from eventstore.protocol.limits import ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX

numbers = st.integers(0, 2**63 - 1)
request_ids = st.integers(1, 2**64 - 1)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=50), st.binary(max_size=50))
fields = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(st.characters(codec="utf-8"), max_size=50)),
    max_size=5,
)
ERRORS: list[EventStoreError] = [
    EventStoreError("something"),
    errors.InvalidArgument("bad", field="type", limit=255, value=300),
    errors.VersionConflict("order-42", "exists", 0),
    errors.CommandIdReused("order-42", "c-1", 3, 17),
    errors.CrossShard("order-42", "order-7", 0, 1),
    errors.ConditionFailed("order-42", "OrderPlaced", 7),
    errors.SubjectErased("customer:c-17"),
    errors.Overloaded("busy", limit=10),
    errors.StorageFull("full"),
    errors.Poisoned("broken"),
    errors.Corrupt("file.events", 4096, "bad checksum"),
    errors.FolderRefused("/data", "in use"),
    errors.ProtocolError("what?"),
    errors.UnsupportedVersion("too new", value=9),
    errors.UnknownOperation("unknown", operation=99),
    errors.ConnectionLost("gone"),
    errors.ShuttingDown("later"),
    errors.Closed("closed"),
    errors.ReadFailed("EIO"),
    errors.UnknownCommand("no handler", type="Deposit"),
    errors.UnknownEvent("unknown", type="Opened", schema=2),
    errors.PayloadInvalid("no integer", type="Deposit", field="cents"),
    errors.Rejected("not enough", reason="insufficient_funds", missing=12),
    errors.HandlerFailed("a bug", handler="bank.deposit", error="KeyError"),
    errors.DomainRefused("no module", module="bank"),
    errors.ProjectionFailed("a bug", projection="balances", aggregate_id="acc-1", version=3, sequence=17),
    errors.Fenced("moved on", name="balances"),
    errors.Diverged("another event", what="table 'balances'", sequence=7),
    errors.UnknownTopic("no topic", topic="orders"),
    errors.UnknownQueue("no queue", topic="orders", queue=9),
    errors.UnknownGroup("no group", group="billing"),
    errors.Rebalanced("join again", group="billing", member="m", generation=3),
    errors.Unconsumed("still to consume", topic="orders", queue=2, group="billing"),
    errors.Elsewhere(3718, 7),
    errors.NotEnoughReplicas("2 replicas must be in sync", needed=2),
    errors.OutdatedCode("older", type="Moved", schema=2, known=1),
    errors.Unauthenticated("nobody"),
    errors.PermissionDenied("not that", permission="read"),
    errors.MessagesFailed(3, errors.TimedOut("late", outcome="none")),
    errors.TimedOut("too slow", outcome="unknown"),
]


def decode(frame: bytes) -> tuple[int, Answer]:
    (payload,) = FrameReader().feed(frame)
    return AnswerDecoder().decode(payload)


def same(left: EventStoreError, right: EventStoreError) -> bool:
    return type(left) is type(right) and (left.message, left.fields) == (right.message, right.fields)


@given(request_ids, st.lists(scalars, max_size=20))
def test_ok_survives_the_wire(request_id: int, values: list[Scalar]) -> None:
    assert decode(encode_ok(request_id, *values)) == (request_id, Ok(tuple(values)))


@given(request_ids, st.lists(st.tuples(st.integers(0, 2), numbers, numbers), min_size=1, max_size=30))
def test_outcomes_survive_the_wire(request_id: int, outcomes: list[tuple[int, int, int]]) -> None:
    values = [value for outcome in outcomes for value in outcome]
    assert decode(encode_outcomes(request_id, values)) == (request_id, Outcomes(values))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 69_990, 70_000, 1_000_000])
@given(request_id=request_ids, following=st.one_of(st.none(), numbers), at_end=st.booleans())
@example(request_id=2**64 - 1, following=2**63 - 1, at_end=True)
def test_pages_survive_the_wire(size: int, request_id: int, following: int | None, at_end: bool) -> None:
    records = bytes(range(256)) * (size // 256) + bytes(size % 256)
    answered, page = decode(encode_page(request_id, following, records))
    assert isinstance(page, Page)
    assert (answered, page.next, page.at_end, bytes(page.records)) == (request_id, following, following is None, records)
    answered, page = decode(encode_scan_page(request_id, following or 0, at_end, records))
    assert isinstance(page, Page)
    assert (answered, page.next, page.at_end, bytes(page.records)) == (request_id, following or 0, at_end, records)
    answered, page = decode(encode_scan_page(request_id, following or 1, at_end, records, "0123abcd"))
    assert isinstance(page, Page)
    assert (page.next, page.identity, bytes(page.records)) == (following or 1, "0123abcd", records)


def test_a_page_that_ends_at_no_place_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="expected a sequence, or sequence-identity"):
        decode(encode_frame(1, 103, ("7-xyz", True, b"")))


def test_a_large_page_in_another_encoding_is_decoded() -> None:
    records = bytes(100_000)
    head = b"\xcd\x00\x07\xcc\x67\xc0"  # longer than necessary
    payload = head + b"\xc6" + len(records).to_bytes(4, "big") + records
    assert AnswerDecoder().decode(payload) == (7, Page(None, True, records))


def test_goodbye_survives_the_wire() -> None:
    assert decode(encode_goodbye()) == (0, Goodbye())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_class_message_and_fields(error: EventStoreError) -> None:
    request_id, answer = decode(encode_error(5, error))
    assert request_id == 5
    assert isinstance(answer, Failure)
    assert same(answer.error, error)
    assert answer.error.code == error.code


def test_every_class_of_error_has_its_own_code() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, EventStoreError)]
    assert len({cls.code for cls in classes}) == len(classes) == len(ERRORS)


@given(st.sampled_from([InvalidArgument, ProtocolError, errors.Overloaded]), st.text(max_size=50), fields)
def test_any_message_and_fields_survive(cls: type[EventStoreError], message: str, content: dict[str, str | int | None]) -> None:
    content.pop("message", None)
    content.pop("self", None)
    error = cls(message, **content)
    _, answer = decode(encode_error(5, error))
    assert isinstance(answer, Failure)
    assert same(answer.error, cls(message.encode("utf-8", "backslashreplace").decode(), **content))


def test_an_unknown_error_code_becomes_a_plain_error() -> None:
    _, answer = decode(encode_frame(1, 101, (4711, "from the future", "answer", 42)))
    assert isinstance(answer, Failure)
    assert same(answer.error, EventStoreError("from the future", answer=42))


def test_an_error_that_quotes_a_value_that_cannot_be_encoded_is_still_sent() -> None:
    error = InvalidArgument("bad \udcff", field="id", value="\ud800" + "x" * 100_000, limit=2**70)
    _, answer = decode(encode_error(5, error))
    assert isinstance(answer, Failure)
    assert answer.error.message == "bad \\udcff"
    assert answer.error.fields["limit"] == str(2**70)
    assert len(str(answer.error.fields["value"])) <= ERROR_TEXT_BYTES_MAX


@pytest.mark.parametrize(
    "outcome",
    [Committed("a", 3, 17), Committed("a", 3, 17, duplicate=True), VersionConflict("a", 5, 3), *ERRORS],
    ids=lambda outcome: type(outcome).__name__,
)
def test_an_outcome_survives_the_wire(outcome: Committed | EventStoreError) -> None:
    expected: int | str = 5
    if isinstance(outcome, VersionConflict):
        outcome = VersionConflict("a", 5, 3)
    _, answer = decode(encode_outcomes(1, outcome_values(outcome)))
    assert isinstance(answer, Outcomes)
    found = decode_outcome("a", expected, *answer.values, 1)
    if isinstance(outcome, Committed):
        assert found == outcome
    else:
        assert isinstance(found, EventStoreError)
        assert same(found, outcome)


@pytest.mark.parametrize("durability", [0, 3, None])
def test_outcomes_are_followed_by_their_durability(durability: int | None) -> None:
    assert decode(encode_outcomes(1, (0, 1, 7, 1, 2, 3, durability)))[1] == Outcomes([0, 1, 7, 1, 2, 3], durability)
    assert decode(encode_some_outcomes(1, (5, 0, 1, 7, durability)))[1] == SomeOutcomes([5, 0, 1, 7], durability)
    assert decode(encode_some_outcomes(1, (durability,)))[1] == SomeOutcomes([], durability)


@pytest.mark.parametrize("durability", [-1, True, "3", b""])
def test_a_durability_that_is_not_a_count_is_a_protocol_error(durability: Scalar) -> None:
    for frame in (encode_outcomes(1, (0, 1, 7, durability)), encode_some_outcomes(1, (5, 0, 1, 7, durability))):
        with pytest.raises(ProtocolError):
            decode(frame)


@pytest.mark.parametrize(
    "values", [(4, 1, 1), (0, None, 1), (0, 1, "1"), (2, "x", 0), (3, 2, "text"), (3, 2, b""), (3, 2, b"\xc1"), (3, 2, b"\x02")]
)
def test_values_that_are_not_an_outcome_are_a_protocol_error(values: tuple[Scalar, Scalar, Scalar]) -> None:
    assert isinstance(decode_outcome("a", 1, *values), ProtocolError)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x01", b"\xc0\x64", b"\x01\x02", b"\x01\x65", b"\x01\x65\x02", b"\x01\x65\xa1x\xa1y", b"\x01\x65\x02\xa1m\xa1k",
        b"\x01\x65\x02\xa1m\xa1k\xc4\x00", b"\x01\x66", b"\x01\x66\x00\x01", b"\x01\x67", b"\x01\x67\x01", b"\x01\x67\xc0\xc0",
        b"\x01\x67\xa1x\xc4\x00", b"\x01\x67\x01\x01\xc4\x00", b"\x01\x67\x01\xc3\xc3\xc4\x00", b"\x91\x01", b"\xc1",
        b"\x01\x67\xc0\x91" + bytes(100_000), b"\x01\x67\xc0\xc6\x00\x00\x00\x05" + bytes(100_000),
    ],
    ids=lambda payload: payload[:10].hex(),
)  # fmt: skip
def test_a_payload_that_is_not_an_answer_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        AnswerDecoder().decode(payload)


def test_a_page_over_the_frame_limit_is_not_encoded() -> None:
    with pytest.raises(ProtocolError):
        encode_page(1, None, bytes(FRAME_BYTES_MAX))


@given(st.binary(min_size=1, max_size=200))
def test_noise_is_an_answer_or_a_protocol_error(noise: bytes) -> None:
    decoder = AnswerDecoder()
    with contextlib.suppress(ProtocolError):
        decoder.decode(noise)
    assert decoder.decode(encode_ok(1)[LENGTH_BYTES:]) == (1, Ok())


def test_the_flat_form_of_a_refusal_is_that_of_the_error() -> None:
    error = InvalidArgument("bad", field="type")
    kind, code, packed = outcome_values(error)
    assert (kind, code, packed) == (3, 2, flat.encode(errors.to_wire(error)))
