"""Answers of the broker: pages of whole message records, and what became of messages that were sent.

The records of a page are pieces of a frame that are never put together here: they go from the engine to the socket as they
are. A client decodes them all at once, whatever queues they are of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, cast

from eventstore import flat
from eventstore.errors import EventStoreError, ProtocolError
from eventstore.flat import Malformed, Scalar
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.error_values import error_of, error_values
from eventstore.protocol.frames import LENGTH, bad_length
from eventstore.protocol.limits import ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX
from eventstore.protocol.payload import decode_head, payload_decoder

_MESSAGES: Final = int(AnswerCode.MESSAGES)
_BIN32: Final = struct.Struct(">BI")
_PAGE_VALUES: Final = 6
_HEAD_BYTES: Final = 9 + 1  # request id, code
_ERROR_VALUES_MAX: Final = 256


class QueuePage(NamedTuple):
    """What a PULL says about one queue.

    The next messages are to be asked for from `next_offset` on. The queue holds [begin, end). `clamped`: the offset that was
    asked for, where the queue does not hold it and another one was taken. `due_ms`: in a retry queue, after how many
    milliseconds its next message is due. `messages`: how many of the records are of this queue.
    """

    next_offset: int
    begin: int
    end: int
    clamped: int | None
    due_ms: int | None
    messages: int


@dataclass(frozen=True, slots=True)
class Messages:
    """`count` whole message records; `pages`: to a PULL, one for each queue that was asked for, in the same order."""

    records: bytes | memoryview
    count: int
    pages: tuple[QueuePage, ...] = ()


WireSent: TypeAlias = "tuple[Scalar, Scalar, Scalar]"
"""(queue, queue offset, position), or (nil, error code, the error as flat msgpack)."""


def encode_messages(request_id: int, records: Sequence[bytes], count: int, pages: Iterable[QueuePage] = ()) -> list[bytes]:
    """The pieces of the frame, to be sent one after the other. `records`: pieces of whole records.

    Raises:
        ProtocolError: it is larger than the protocol allows.
    """
    size = sum(map(len, records))
    head = flat.encode((request_id, _MESSAGES)) + _BIN32.pack(0xC6, size)
    rest = flat.encode([count, *flat.chain(pages)])
    length = len(head) + size + len(rest)
    if length > FRAME_BYTES_MAX:
        raise bad_length(length, FRAME_BYTES_MAX)
    return [LENGTH.pack(length) + head, *(piece for piece in records if piece), rest]


def decode_messages_answer(values: Sequence[Scalar | memoryview]) -> Messages:
    """The answer that has these values behind request id and code.

    Raises:
        ProtocolError
    """
    if len(values) % _PAGE_VALUES != 2 or not isinstance(values[0], bytes | memoryview) or not _are_counts(values[1:]):
        raise ProtocolError(f"MESSAGES takes records (bin), a count, and {_PAGE_VALUES} values for each queue")
    rows = cast("Sequence[int]", values[2:])
    pages = [QueuePage(*rows[at : at + _PAGE_VALUES]) for at in range(0, len(rows), _PAGE_VALUES)]
    return Messages(values[0], cast(int, values[1]), tuple(pages))


def _are_counts(values: Sequence[object]) -> bool:
    """The first is that of all records; then row by row, of which the fourth and fifth value may be nil."""
    return all(
        value.__class__ is int or (value is None and place % _PAGE_VALUES in (4, 5)) for place, value in enumerate(values)
    )


def decode_large_messages(payload: bytes) -> Sequence[Scalar | memoryview] | None:
    """All values of a MESSAGES; its records, in the middle, stay where they are. None where they are not there."""
    head = decode_head(payload, _HEAD_BYTES, 2)
    at = len(flat.encode(head))
    mark, size = _BIN32.unpack_from(payload, at)
    start = at + _BIN32.size
    if len(head) < 2 or mark != 0xC6 or start + size > len(payload):
        return None
    return [*head, memoryview(payload)[start : start + size], *payload_decoder().decode(payload[start + size :])]


def sent_values(outcome: tuple[int, int, int] | EventStoreError, text_bytes_max: int = ERROR_TEXT_BYTES_MAX) -> WireSent:
    """The three values of what became of one message; the texts of an error are cut to `text_bytes_max` each."""
    if isinstance(outcome, EventStoreError):
        return None, outcome.code, flat.encode(error_values(outcome, text_bytes_max))
    return outcome


def decode_sent(queue: Scalar, offset: Scalar, position: Scalar) -> tuple[int, int, int] | EventStoreError:
    """(queue, queue offset, position) or the error that `sent_values` described; a ProtocolError where it is neither."""
    if queue.__class__ is int and offset.__class__ is int and position.__class__ is int:
        return queue, offset, position
    if queue is None and isinstance(position, bytes):
        try:
            return error_of(payload_decoder(_ERROR_VALUES_MAX).decode(position))
        except Malformed as error:
            return ProtocolError(f"the error of a message is malformed: {error}")
        except ProtocolError as error:
            return error
    return ProtocolError(f"what became of a message is queue, offset, position or an error, not {queue!r}, {offset!r}")
