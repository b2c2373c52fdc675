"""Answers of the broker: pages of whole message records, and the outcomes of sent messages.

A server never joins the records of a page: it passes them from the engine to the socket as pieces of a frame. A client decodes
all of them at once, from all queues.
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
_FOUND_VALUES: Final = 3
_HEAD_BYTES: Final = 9 + 1  # request id, code
_ERROR_VALUES_MAX: Final = 256


class QueuePage(NamedTuple):
    """The part of an answer to PULL about one queue.

    `next_offset`: where the next pull continues. The queue holds the offsets [begin, end). `clamped`: the requested offset, if
    the queue does not hold it and another one was used. `due_ms`: in a retry queue, the milliseconds until its next message is
    due. `messages`: the number of records of this queue.
    """

    next_offset: int
    begin: int
    end: int
    clamped: int | None
    due_ms: int | None
    messages: int


@dataclass(frozen=True, slots=True)
class Messages:
    """`count` whole message records; `pages`: in an answer to PULL, one for each requested queue, in the same order.

    `next`: in an answer to FIND_KEY the position before which to continue; 0: nothing is left.
    """

    records: bytes | memoryview
    count: int
    pages: tuple[QueuePage, ...] = ()
    next: int | None = None


WireSent: TypeAlias = "tuple[Scalar, Scalar, Scalar]"
"""(queue, queue offset, position), or (nil, error code, the error as flat msgpack)."""


def encode_messages(
    request_id: int, records: Sequence[bytes], count: int, pages: Iterable[QueuePage] = (), next_before: int | None = None
) -> list[bytes]:
    """Returns the pieces of the frame, to be sent in order. `records`: pieces that consist of whole records.

    `pages` are for an answer to PULL, `next_before` for one to FIND_KEY.

    Raises:
        ProtocolError: the frame is larger than the protocol allows.
    """
    size = sum(map(len, records))
    head = flat.encode((request_id, _MESSAGES)) + _BIN32.pack(0xC6, size)
    rest = flat.encode([count, *flat.chain(pages)] if next_before is None else [count, next_before])
    length = len(head) + size + len(rest)
    if length > FRAME_BYTES_MAX:
        raise bad_length(length, FRAME_BYTES_MAX)
    return [LENGTH.pack(length) + head, *(piece for piece in records if piece), rest]


def decode_messages_answer(values: Sequence[Scalar | memoryview]) -> Messages:
    """Decodes the values of a MESSAGES after request id and code.

    Raises:
        ProtocolError
    """
    found = len(values) == _FOUND_VALUES
    if (
        (len(values) % _PAGE_VALUES != 2 and not found)
        or not isinstance(values[0], bytes | memoryview)
        or not _are_counts(values[1:])
    ):
        what = f"{_PAGE_VALUES} values for each queue or a position"
        raise ProtocolError(f"MESSAGES takes records (bin), a count, and {what}")
    if found:
        return Messages(values[0], cast(int, values[1]), next=cast(int, values[2]))
    rows = cast("Sequence[int]", values[2:])
    pages = [QueuePage(*rows[at : at + _PAGE_VALUES]) for at in range(0, len(rows), _PAGE_VALUES)]
    return Messages(values[0], cast(int, values[1]), tuple(pages))


def _are_counts(values: Sequence[object]) -> bool:
    """Checks the count of all records and the rows of the pages; the fourth and fifth value of a row may be nil."""
    return all(
        value.__class__ is int or (value is None and place % _PAGE_VALUES in (4, 5)) for place, value in enumerate(values)
    )


def decode_large_messages(payload: bytes) -> Sequence[Scalar | memoryview] | None:
    """Decodes a large MESSAGES without copying its records. Returns None if they are not where they should be."""
    head = decode_head(payload, _HEAD_BYTES, 2)
    at = len(flat.encode(head))
    mark, size = _BIN32.unpack_from(payload, at)
    start = at + _BIN32.size
    if len(head) < 2 or mark != 0xC6 or start + size > len(payload):
        return None
    return [*head, memoryview(payload)[start : start + size], *payload_decoder().decode(payload[start + size :])]


def sent_values(outcome: tuple[int, int, int] | EventStoreError, text_bytes_max: int = ERROR_TEXT_BYTES_MAX) -> WireSent:
    """Returns the three values of a message's outcome; the texts of an error are cut to `text_bytes_max` each."""
    if isinstance(outcome, EventStoreError):
        return None, outcome.code, flat.encode(error_values(outcome, text_bytes_max))
    return outcome


def decode_sent(queue: Scalar, offset: Scalar, position: Scalar) -> tuple[int, int, int] | EventStoreError:
    """Decodes `sent_values`: (queue, queue offset, position), or the error. Returns a ProtocolError if it is neither."""
    if queue.__class__ is int and offset.__class__ is int and position.__class__ is int:
        return queue, offset, position
    if queue is None and isinstance(position, bytes):
        try:
            return error_of(payload_decoder(_ERROR_VALUES_MAX).decode(position))
        except Malformed as error:
            return ProtocolError(f"the error of a message is malformed: {error}")
        except ProtocolError as error:
            return error
    return ProtocolError(f"the outcome of a message is queue, offset, position or an error, not {queue!r}, {offset!r}")
