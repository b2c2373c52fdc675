"""Encodes and decodes the message record: the same bytes on disk, on the wire and at the consumer.

     0 .. 32    as in `chunks.record`; sequence is the message's number in the log, count 1
     32        40              48          56         60      62      64         68         72
    +---------+---------------+-----------+----------+-------+-------+----------+----------+
    | time µs | queue offset  | position  | topic id | queue | node  | tag hash | key hash |
    +---------+---------------+-----------+----------+-------+-------+----------+----------+
    | tag | key | topic | body | properties | 0xCE length |

After the header follow five msgpack values: tag and key are str or nil, topic is str, body is bin, properties is bin or nil.
So a record is a flat msgpack sequence of seven values, and a page of n records one of 7 n. The tag comes first because the
broker compares it.

`position` is the message's position in the log: (chunk number << 32) + byte offset, so the chunk is found by division, and a
record states its own position. The first record of each chunk is a state record (see `state_record`); its topic id is 0.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Final, TypeAlias, cast

from eventstore import flat
from eventstore.checksum import crc32c
from eventstore.chunks.record import PREFIX, TRAILER, Framing, after_crc
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.fields import check_text, shown

HEADER: Final = PREFIX.extended(
    ("time", "q"),
    ("queue_offset", "Q"),
    ("position", "Q"),
    ("topic_id", "I"),
    ("queue", "H"),
    ("node", "H"),
    ("tag_hash", "I"),
    ("key_hash", "I"),
)
HEADER_BYTES: Final = HEADER.size
AFTER_CRC: Final = after_crc(HEADER)
VALUES: Final = 7
POSITION_BITS: Final = 32
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
PROPERTIES_BYTES_MAX: Final = 64 * 1024
OWN_PROPERTIES_BYTES_MAX: Final = 8 * 1024  # added by the broker to a failed message: origin, failures, reason
TEXT_BYTES_MAX: Final = 255
FRAMING: Final = Framing(HEADER_BYTES)
FIXED_BYTES: Final = HEADER_BYTES + TRAILER.size
_HEADER_COLUMNS: Final = HEADER.columns("length", "sequence", "time", "queue_offset", "position", "queue", "node")

assert HEADER_BYTES == 72

RawMessage: TypeAlias = tuple[bytes, str | None, str | None, bytes | None, int | None]
"""(body, key, tag, encoded properties, queue). Queue None: chosen by key; without a key, round robin."""


def position_of(chunk: int, byte_offset: int) -> int:
    return (chunk << POSITION_BITS) + byte_offset


def chunk_of(position: int) -> tuple[int, int]:
    """Returns the chunk number and the byte offset."""
    return position >> POSITION_BITS, position & ((1 << POSITION_BITS) - 1)


def text_hash(text: str | None) -> int:
    """Returns the CRC-32C of the UTF-8 bytes, the same in every process and language; 0 for None."""
    return 0 if text is None else crc32c(text.encode())


def message_id(node: int, position: int) -> str:
    """Returns 20 hexadecimal digits: the node, and the position in its log."""
    return f"{node:04x}{position:016x}"


def message_ids(node: int, positions: Sequence[int]) -> list[str]:
    """Returns `message_id` for many positions, in a third of the time."""
    digits, first = struct.pack(f">{len(positions)}Q", *positions).hex(), f"{node:04x}"
    return [first + digits[at : at + 16] for at in range(0, len(digits), 16)]


def parse_message_id(value: object) -> tuple[int, int]:
    """Returns node and position.

    Raises:
        InvalidArgument
    """
    try:
        if isinstance(value, str) and len(value) == 20 and value.isalnum():
            return int(value[:4], 16), int(value[4:], 16)
    except ValueError:
        pass
    raise InvalidArgument(f"message_id is {shown(value)}, not 20 hexadecimal digits", field="message_id", value=shown(value))


def encode_properties(properties: Mapping[str, str] | None) -> bytes | None:
    """Returns names and values in turn, as flat msgpack; None if there are none.

    Raises:
        InvalidArgument: a name or value is not text, a name is empty or begins with a colon, or together they are too large.
    """
    if not properties:
        return None
    for name, value in properties.items():
        _check_property(name, value)
    return _bounded(flat.encode(flat.chain(properties.items())))


def _check_property(name: str, value: str) -> None:
    try:
        check_text("the name of a property", name)
        check_text(f"property {name}", value, 0, PROPERTIES_BYTES_MAX)
    except InvalidArgument as error:
        error.fields["field"] = "properties"
        raise
    if name.startswith(":"):
        raise InvalidArgument(f"property {shown(name)}: names that begin with a colon are the broker's", field="properties")


def decode_properties(raw: bytes | None) -> dict[str, str]:
    """Decodes the bytes of `encode_properties`, and the broker's own properties. Safe on any thread.

    Raises:
        ProtocolError
    """
    if not raw:
        return {}
    try:
        values = _PROPERTIES.decoder.decode(raw)
        return dict(zip(cast("list[str]", values[0::2]), cast("list[str]", values[1::2]), strict=True))
    except ValueError as error:
        raise ProtocolError(f"properties of {len(raw)} bytes are malformed: {error}", field="properties") from None


def check_properties(raw: object) -> bytes | None:
    """Returns `raw` if it holds valid properties of a sender.

    Raises:
        InvalidArgument
    """
    if raw is None:
        return None
    if not isinstance(raw, bytes):
        raise InvalidArgument(f"properties must be bytes, not {shown(raw)}", field="properties")
    _bounded(raw)
    try:
        values = _PROPERTIES.decoder.decode(raw)
    except flat.Malformed as error:
        raise InvalidArgument(f"properties are {error}", field="properties") from None
    if len(values) % 2 or not all(isinstance(value, str) for value in values):
        raise InvalidArgument("properties must be names and values, all of them text", field="properties")
    return encode_properties(dict(zip(cast("list[str]", values[0::2]), cast("list[str]", values[1::2]), strict=True)))


def _bounded(raw: bytes) -> bytes:
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise InvalidArgument(
            f"properties have {len(raw)} bytes, allowed are {PROPERTIES_BYTES_MAX}",
            field="properties",
            limit=PROPERTIES_BYTES_MAX,
            value=len(raw),
        )
    return raw


class _OfThread(threading.local):
    """A decoder per thread: messages may be handled on any thread."""

    def __init__(self) -> None:
        size_bytes_max = PROPERTIES_BYTES_MAX + OWN_PROPERTIES_BYTES_MAX
        self.decoder = flat.Decoder(size_bytes_max, size_bytes_max)


_PROPERTIES: Final = _OfThread()


class Message(tuple[str, int, int, str | None, str | None, int, bytes, bytes | None, int, int, int]):
    """A message as a consumer receives it. A tuple, so that pages of them are built in C."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self[0]

    @property
    def queue(self) -> int:
        return self[1]

    @property
    def queue_offset(self) -> int:
        """Position in its queue, from 0."""
        return self[2]

    @property
    def key(self) -> str | None:
        return self[3]

    @property
    def tag(self) -> str | None:
        return self[4]

    @property
    def timestamp(self) -> int:
        """When the broker accepted it, in microseconds since 1970-01-01 UTC; never less than the previous message's time."""
        return self[5]

    @property
    def body(self) -> bytes:
        return self[6]

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self[7])

    @property
    def position(self) -> int:
        return self[8]

    @property
    def node(self) -> int:
        return self[9]

    @property
    def number(self) -> int:
        """The number of messages in the log up to and including this one, as if none had been deleted."""
        return self[10]

    @property
    def message_id(self) -> str:
        return message_id(self[9], self[8])

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, queue={self.queue}, queue_offset={self.queue_offset}, body={self.body!r})"


def decode_messages(records: bytes, count: int) -> list[Message]:
    """Returns the messages of a page of `count` whole records; contents are trusted, shape is checked.

    Raises:
        ProtocolError
    """
    make = cast("Callable[..., Message]", tuple.__new__)
    return list(map(make, repeat(Message), zip(*decode_columns(records, count)[:-1], strict=True)))


def decode_columns(records: bytes, count: int) -> Sequence[Sequence[object]]:
    """Returns the values of `decode_messages` by column: the first values of all messages, then the second ones, and so on; at
    last the lengths of the records.

    Raises:
        ProtocolError
    """
    try:
        values = flat.decode_trusted(records, VALUES * count)
        headers = cast("Sequence[bytes]", values[0::VALUES])
        joined = b"\0\0" + b"\0\0".join(headers) if count else b""
        if len(joined) != HEADER_BYTES * count:
            raise ValueError("a header has another length")
        lengths, numbers, times, offsets, positions, queues, nodes = _HEADER_COLUMNS(joined)
        if sum(lengths) != len(records) or list(values[6::VALUES]) != lengths:
            raise ValueError("the lengths do not add up")
    except (flat.Malformed, TypeError, ValueError) as error:
        raise ProtocolError(f"a page of {len(records)} bytes is malformed: {error}", field="records") from None
    tags, keys, topics, bodies, properties = (values[place::VALUES] for place in range(1, 6))
    return topics, queues, offsets, keys, tags, times, bodies, properties, positions, nodes, numbers, lengths
