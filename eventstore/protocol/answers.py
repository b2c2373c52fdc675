"""Answers of a server, as values and as frames. Pages of messages are in `message_answers`.

Servers encode, from the values they have at hand; clients decode.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, TypeAlias, cast

from eventstore import flat
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError, VersionConflict
from eventstore.event_identity import LogPosition
from eventstore.flat import Malformed, Scalar
from eventstore.model import Committed, Unchanged
from eventstore.protocol.codes import AnswerCode, OutcomeKind
from eventstore.protocol.error_values import error_of, error_values
from eventstore.protocol.frames import LENGTH, bad_length, encode_frame
from eventstore.protocol.limits import ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX
from eventstore.protocol.message_answers import Messages, decode_large_messages, decode_messages_answer
from eventstore.protocol.payload import decode_head, payload_decoder

_BIN32: Final = struct.Struct(">BI")
OK: Final = int(AnswerCode.OK)
_ERROR: Final = int(AnswerCode.ERROR)
_OUTCOMES: Final = int(AnswerCode.OUTCOMES)
_SOME_OUTCOMES: Final = int(AnswerCode.SOME_OUTCOMES)
_PAGE: Final = int(AnswerCode.PAGE)
_MESSAGES: Final = int(AnswerCode.MESSAGES)
_COMMITTED: Final = int(OutcomeKind.COMMITTED)
_DUPLICATE: Final = int(OutcomeKind.DUPLICATE)
_CONFLICT: Final = int(OutcomeKind.CONFLICT)
_REFUSED: Final = int(OutcomeKind.REFUSED)
_UNCHANGED: Final = int(OutcomeKind.UNCHANGED)
OUTCOME_VALUES: Final = 3
PLACED_OUTCOME_VALUES: Final = 1 + OUTCOME_VALUES
_ALL_COMMITTED: Final = frozenset({_COMMITTED})
_INTS: Final = frozenset({int})
_ERROR_VALUES_MAX: Final = 256
_LARGE_BYTES: Final = 70_000  # a bin of more than 65,535 bytes has a length of four bytes
_PAGE_HEAD_BYTES: Final = 9 + 1 + 29 + 1  # request id, code, next (a place as text perhaps), at_end
_PAGE_HEAD_VALUES: Final = 4


@dataclass(frozen=True, slots=True)
class Ok:
    """Success, with the values that the request asks for."""

    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The request was refused or failed."""

    error: EventStoreError


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of each commit, command or message: three values each, see `OutcomeKind` and `message_answers`.

    `durability`: of the commits (see `Committed`); None: not said.
    """

    values: Sequence[Scalar]
    durability: int | None = None


@dataclass(frozen=True, slots=True)
class SomeOutcomes:
    """Outcomes of some commands of a SEND: four values each, its place in the request before those of `Outcomes`. None: the
    server will answer in parts."""

    values: Sequence[Scalar]
    durability: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Whole commit records. `next`: where the next page begins. `at_end`: there is no further page, or not yet. `identity`: of
    the event at `next` of the log, its first 8 digits; empty where the page does not say it.
    """

    next: int | None
    at_end: bool
    records: bytes | memoryview
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The server is stopping; it answers what it has received and then closes the connection."""


AnswerValues: TypeAlias = Sequence[Scalar | memoryview]
Answer: TypeAlias = Ok | Failure | Outcomes | SomeOutcomes | Page | Messages | Goodbye

# ---- encoding


def encode_ok(request_id: int, *values: Scalar) -> bytes:
    return encode_frame(request_id, OK, values)


def encode_error(request_id: int, error: EventStoreError) -> bytes:
    return encode_frame(request_id, _ERROR, error_values(error))


def encode_goodbye() -> bytes:
    return encode_frame(0, AnswerCode.GOODBYE, ())


def outcome_values(
    outcome: Committed | EventStoreError, text_bytes_max: int = ERROR_TEXT_BYTES_MAX
) -> tuple[Scalar, Scalar, Scalar]:
    """Returns the three values of a commit's outcome; the texts of an error are cut to `text_bytes_max` each."""
    if isinstance(outcome, Committed):
        return (_DUPLICATE if outcome.duplicate else _COMMITTED, outcome.version, outcome.sequence)
    if isinstance(outcome, VersionConflict):
        return (_CONFLICT, outcome.fields["actual"], 0)
    return (_REFUSED, outcome.code, flat.encode(error_values(outcome, text_bytes_max)))


def encode_outcomes(request_id: int, values: Sequence[Scalar]) -> bytes:
    """Encodes outcomes: three values for each commit, command or message, in the order of the request."""
    payload = flat.encode((request_id, _OUTCOMES, *values))
    length = len(payload)
    if length > FRAME_BYTES_MAX:
        raise bad_length(length, FRAME_BYTES_MAX)
    return LENGTH.pack(length) + payload


def encode_some_outcomes(request_id: int, values: Sequence[Scalar]) -> bytes:
    """Encodes the outcomes of some commands, each preceded by its place in the request."""
    return encode_frame(request_id, _SOME_OUTCOMES, values)


def encode_page(request_id: int, next_version: int | None, records: bytes) -> bytes:
    """Encodes the answer to a READ."""
    return _page((request_id, _PAGE, next_version), records)


def encode_scan_page(request_id: int, next_after: int, at_end: bool, records: bytes, identity: str = "") -> bytes:
    """Encodes the answer to a READ_ALL or READ_ALL_BACKWARDS, or one answer to a SUBSCRIBE (`at_end`: caught up). `identity`:
    of the event at `next_after`, for a client that asked HELLO for `places`.
    """
    place = str(LogPosition(next_after, identity)) if identity else next_after
    return _page((request_id, _PAGE, place, at_end), records)


def _page(head: Sequence[Scalar], records: bytes) -> bytes:
    """Copies the records once; packing them as a value would copy them three times."""
    packed = flat.encode(head)
    size = len(records)
    length = len(packed) + _BIN32.size + size
    if length > FRAME_BYTES_MAX:
        raise bad_length(length, FRAME_BYTES_MAX)
    return b"".join((LENGTH.pack(length), packed, _BIN32.pack(0xC6, size), records))


# ---- decoding


class AnswerDecoder:
    """Decodes payloads to answers. Use one per client; not thread-safe."""

    def __init__(self) -> None:
        self._decode = payload_decoder().decode

    def decode(self, payload: bytes) -> tuple[int, Answer]:
        """Returns the request id and the answer.

        Raises:
            ProtocolError: the payload is not an answer.
        """
        try:
            values = self._decode(payload) if len(payload) < _LARGE_BYTES else self._decode_large(payload)
        except Malformed as error:
            raise ProtocolError(f"the payload is malformed: {error}") from None
        if len(values) < 2 or values[0].__class__ is not int or values[1].__class__ is not int:
            raise ProtocolError("a payload begins with request id (uint) and code (uint)")
        request_id, code = values[0], values[1]
        make = _DECODERS.get(code)
        if make is None:
            raise ProtocolError(f"an answer of the unknown kind {code}", value=code)
        return request_id, make(values)

    def _decode_large(self, payload: bytes) -> Sequence[Scalar | memoryview]:
        """Decodes a large page without copying its records; decoding them as a value would copy them twice."""
        head = decode_head(payload, _PAGE_HEAD_BYTES, _PAGE_HEAD_VALUES)
        if head[1:2] == [_MESSAGES]:
            return decode_large_messages(payload) or self._decode(payload)
        position = len(flat.encode(head))
        records = position + _BIN32.size
        if head[1:2] == [_PAGE] and _BIN32.unpack_from(payload, position) == (0xC6, len(payload) - records):
            return [*head, memoryview(payload)[records:]]
        return self._decode(payload)


def _decode_error(values: AnswerValues) -> Answer:
    return Failure(error_of(cast("Sequence[Scalar]", values[2:])))


def _decode_outcomes(values: AnswerValues) -> Answer:
    outcomes, durability = _split_durability(values[2:], OUTCOME_VALUES)
    if not outcomes or len(outcomes) % OUTCOME_VALUES:
        raise ProtocolError(f"OUTCOMES takes {OUTCOME_VALUES} values for each commit, got {len(outcomes)}")
    return Outcomes(outcomes, durability)


def _decode_some_outcomes(values: AnswerValues) -> Answer:
    outcomes, durability = _split_durability(values[2:], PLACED_OUTCOME_VALUES)
    if len(outcomes) % PLACED_OUTCOME_VALUES:
        raise ProtocolError(f"SOME_OUTCOMES takes {PLACED_OUTCOME_VALUES} values for each command, got {len(outcomes)}")
    return SomeOutcomes(outcomes, durability)


def _split_durability(values: AnswerValues, width: int) -> tuple[Sequence[Scalar], int | None]:
    """Returns the values of outcomes, and the durability that follows them if the server says it."""
    outcomes: Any = values
    if len(outcomes) % width != 1:
        return outcomes, None
    last = outcomes[-1]
    if last is not None and (last.__class__ is not int or last < 0):
        raise ProtocolError("the outcomes are followed by their durability (uint or nil)")
    return outcomes[:-1], last


def _decode_page(values: AnswerValues) -> Answer:
    match values[2:]:
        case [None | int() as following, bytes() | memoryview() as records] if following.__class__ is not bool:
            return Page(following, following is None, records)
        case [int() as following, bool(at_end), bytes() | memoryview() as records] if following.__class__ is int:
            return Page(following, at_end, records)
        case [str() as text, bool(at_end), bytes() | memoryview() as records]:
            place = _decode_place(text)
            return Page(place.sequence, at_end, records, place.identity)
    raise ProtocolError("PAGE takes next (int, nil or a place as str), at_end (bool, not for READ) and records (bin)")


def _decode_place(text: str) -> LogPosition:
    try:
        return LogPosition.parse("next", text)
    except InvalidArgument as error:
        raise ProtocolError(f"a page: {error.message}", **error.fields) from None


_DECODERS: Final[dict[int, Callable[[AnswerValues], Answer]]] = {
    OK: lambda values: Ok(cast("tuple[Scalar, ...]", tuple(values[2:]))),
    _ERROR: _decode_error,
    _OUTCOMES: _decode_outcomes,
    _SOME_OUTCOMES: _decode_some_outcomes,
    _PAGE: _decode_page,
    _MESSAGES: lambda values: decode_messages_answer(values[2:]),
    int(AnswerCode.GOODBYE): lambda _: Goodbye(),
}


def decode_all_committed(
    aggregate_ids: Sequence[str], values: Sequence[Scalar], durability: int | None
) -> list[Committed | EventStoreError] | None:
    """Decodes the outcomes of these commits, in C loops; returns None unless all were committed and none is a duplicate."""
    kinds, versions, sequences = values[0::3], values[1::3], values[2::3]
    if set(kinds) != _ALL_COMMITTED or set(map(type, versions)) != _INTS or set(map(type, sequences)) != _INTS:
        return None
    rows = zip(aggregate_ids, versions, sequences, repeat(False), repeat(durability), strict=False)
    return list(map(cast("type[Committed]", tuple.__new__), repeat(Committed), rows))


def decode_outcome(
    aggregate_id: str, expected: int | str, kind: Scalar, first: Scalar, second: Scalar, durability: int | None = None
) -> Committed | EventStoreError:
    """Decodes `outcome_values` of a commit on `aggregate_id` that expected `expected`. Values that are not an outcome are
    returned as a ProtocolError.
    """
    if (kind in (_COMMITTED, _DUPLICATE)) and first.__class__ is int and second.__class__ is int:
        return Committed(aggregate_id, first, second, kind == _DUPLICATE, durability)
    if kind == _CONFLICT and isinstance(first, int):
        return VersionConflict(aggregate_id, expected, first)
    if kind == _REFUSED and isinstance(second, bytes):
        try:
            return error_of(payload_decoder(_ERROR_VALUES_MAX).decode(second))
        except Malformed as error:
            return ProtocolError(f"the error of an outcome is malformed: {error}")
        except ProtocolError as error:
            return error
    return ProtocolError(f"an outcome of the unknown kind {kind!r}")


def decode_command_outcome(
    aggregate_id: str, kind: Scalar, first: Scalar, second: Scalar, durability: int | None = None
) -> Committed | Unchanged | EventStoreError:
    """Decodes the outcome of a command."""
    if kind == _UNCHANGED:
        return Unchanged(aggregate_id)
    return decode_outcome(aggregate_id, "the version it was handled at", kind, first, second, durability)
