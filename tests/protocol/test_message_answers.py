"""Answers of the broker survive the wire at any size; other values are a ProtocolError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.errors import InvalidArgument, ProtocolError, UnknownQueue
from eventstore.flat import Scalar
from eventstore.protocol.answers import AnswerDecoder
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.frames import LENGTH, LENGTH_BYTES, FrameReader
from eventstore.protocol.limits import FRAME_BYTES_MAX
from eventstore.protocol.message_answers import Messages, QueuePage, decode_sent, encode_messages, sent_values

counts = st.integers(0, 2**63 - 1)
pages = st.builds(QueuePage, counts, counts, counts, st.none() | counts, st.none() | counts, counts)


def decoded(pieces: list[bytes]) -> tuple[int, object]:
    (payload,) = FrameReader().feed(b"".join(pieces))
    return AnswerDecoder().decode(payload)


@given(st.integers(1, 2**64 - 1), st.lists(st.binary(max_size=100), max_size=4), counts, st.lists(pages, max_size=5))
def test_messages_survive_the_wire(request_id: int, records: list[bytes], count: int, found: list[QueuePage]) -> None:
    answer = decoded(encode_messages(request_id, records, count, found))
    assert answer == (request_id, Messages(b"".join(records), count, tuple(found)))


@pytest.mark.parametrize("size", [65_535, 65_536, 70_000, 1_000_000])
def test_large_records_are_not_copied(size: int) -> None:
    page = QueuePage(1, 0, 2, 7, None, 1)
    request_id, answer = decoded(encode_messages(2**64 - 1, [bytes(size // 2), b"", b"x" * (size - size // 2)], 1, [page]))
    assert isinstance(answer, Messages)
    assert (request_id, bytes(answer.records[:1]), len(answer.records), answer.pages) == (2**64 - 1, b"\0", size, (page,))
    assert isinstance(answer.records, memoryview) == (size >= 70_000)


def test_records_are_pieces_of_the_frame_without_a_copy() -> None:
    records = [b"a" * 10, b"b" * 10]
    assert [piece for piece in encode_messages(1, records, 2) if any(piece is record for record in records)] == records


def test_more_than_a_frame_holds_is_refused() -> None:
    with pytest.raises(ProtocolError):
        encode_messages(1, [bytes(FRAME_BYTES_MAX)], 1)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        ("", 0),
        (b"", None),
        (b"", True),
        (b"", 0, 1, 2),
        (b"", 0, 1, 2, 3, None, None, None),
        (b"", 0, None, 2, 3, None, None, 1),
        (b"", 0, 1, 2, 3, "4", None, 1),
        (b"x" * 70_000,),
        (1, b"x" * 70_000),
    ],
)
def test_values_that_are_not_messages_are_a_protocol_error(values: tuple[Scalar, ...]) -> None:
    payload = flat.encode((1, AnswerCode.MESSAGES, *values))
    with pytest.raises(ProtocolError):
        AnswerDecoder().decode(payload)


def test_a_large_payload_that_is_cut_off_is_a_protocol_error() -> None:
    whole = b"".join(encode_messages(1, [b"x" * 100_000], 1))[LENGTH_BYTES:]
    for cut in (80_000, len(whole) - 1):
        with pytest.raises(ProtocolError):
            AnswerDecoder().decode(whole[:cut])
    assert LENGTH.unpack(b"".join(encode_messages(1, [b"x" * 100_000], 1))[:LENGTH_BYTES]) == (len(whole),)


def test_the_outcome_of_a_message_survives_the_wire() -> None:
    assert decode_sent(*sent_values((3, 7, 2**63))) == (3, 7, 2**63)
    error = decode_sent(*sent_values(UnknownQueue("no queue", topic="t", queue=None)))
    assert isinstance(error, UnknownQueue)
    assert (error.message, error.fields) == ("no queue", {"topic": "t", "queue": None})
    long = decode_sent(*sent_values(InvalidArgument("x" * 5_000), 100))
    assert isinstance(long, InvalidArgument)
    assert long.message == "x" * 100


@pytest.mark.parametrize(
    "values", [(None, 1, None), (None, 1, b"\xc1"), (None, 1, b"\x01"), (1, 2, None), (True, 1, 1), (None, 1, 1)]
)
def test_values_that_are_not_the_outcome_of_a_message_are_a_protocol_error(values: tuple[Scalar, Scalar, Scalar]) -> None:
    assert isinstance(decode_sent(*values), ProtocolError)
