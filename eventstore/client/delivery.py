"""What a consumer is given: messages it can finish, or raw batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from eventstore.broker.message import Message, decode_columns, decode_messages, parse_message_id
from eventstore.broker.names import RETRY
from eventstore.broker.retrying import FAILURES, ORIGIN
from eventstore.client.window import Window
from eventstore.errors import InvalidArgument
from eventstore.fields import check_text
from eventstore.protocol.broker_requests import REASON_BYTES_MAX
from eventstore.protocol.message_answers import Messages

Mode = Literal["parallel", "sequential"]
MODES: Final = ("parallel", "sequential")

_OFFSET: Final = 2  # among the values of a `Message`
_WINDOW: Final = 11  # behind them
_PLACE: Final = 12
_LENGTH: Final = Struct("<8xI")


class Delivery(Message):
    """A message that a consumer was given, to be finished by `done` or `retry`; both are safe on any thread.

    One that comes again after a failure is as it was sent first: topic, queue, offset and id are those of the original.
    """

    __slots__ = ()

    @property
    def times_failed(self) -> int:
        """How often it was delivered in vain before."""
        return int(self.properties.get(FAILURES, "0")) if self._window.topic.startswith(RETRY) else 0

    @property
    def is_mine(self) -> bool:
        """Whether the consumer still reads the queue; if not, the message goes to another one as well."""
        return not self._window.closed

    def done(self) -> None:
        """The message was handled. Does nothing when it was finished before, or its queue is another member's by now."""
        self[_WINDOW].finish(self[_PLACE])  # type: ignore[misc] # behind what `Message` declares: built in C, see `deliveries`

    def retry(self, reason: str = "") -> None:
        """The message could not be handled: it comes again after a delay, or goes to the dead letters after the last one.

        It counts as finished when the server has stored that. `reason` (up to 4,096 bytes) travels with it.

        Raises:
            InvalidArgument: the reason is too long.
        """
        check_text("reason", reason, 0, REASON_BYTES_MAX)
        self._window.fail(self[_PLACE], reason)  # type: ignore[misc] # as above

    @property
    def _window(self) -> Window:
        return self[_WINDOW]  # type: ignore[misc,no-any-return] # as above


class RawBatch:
    """Whole message records of one queue, as they lie on the server's disk, to be finished together.

    `records`: the bytes; `count`: of how many messages; `next_offset`: the offset behind them.
    """

    __slots__ = ("_place", "_window", "count", "next_offset", "records")

    def __init__(self, window: Window, place: int, records: bytes | memoryview, count: int, next_offset: int) -> None:
        self._window = window
        self._place = place
        self.records = records
        self.count = count
        self.next_offset = next_offset

    @property
    def topic(self) -> str:
        """`retry:GROUP` where the messages come again after a failure."""
        return self._window.topic

    @property
    def queue(self) -> int:
        return self._window.queue

    @property
    def is_mine(self) -> bool:
        """As of a `Delivery`."""
        return not self._window.closed

    def messages(self) -> list[Message]:
        """The messages in it, in order."""
        return decode_messages(bytes(self.records), self.count)

    def done(self) -> None:
        """All of them were handled."""
        self._window.finish(self._place)

    def __repr__(self) -> str:
        return f"<RawBatch {self.count} messages of {self.topic}/{self.queue} in front of offset {self.next_offset}>"


Item: TypeAlias = Delivery | RawBatch


class Part(NamedTuple):
    """What an answer to a pull holds of one queue: `messages` messages, from the offset `start` to before `next_offset`."""

    window: Window
    start: int
    next_offset: int
    messages: int


Opened: TypeAlias = "Iterator[tuple[Window, list[Item], list[int]]]"
"""Of each queue what is handed out of it, and where each of that is to be finished."""


def place_of(item: Item) -> tuple[Window, int]:
    """The window, and what is to be finished in it."""
    if isinstance(item, RawBatch):
        return item._window, item._place
    return item._window, cast(int, item[_PLACE])  # type: ignore[misc] # see `Delivery`


def deliveries(parts: Sequence[Part], answer: Messages) -> Opened:
    """The messages of each part of an answer.

    Raises:
        ProtocolError: the answer does not hold together.
    """
    columns = decode_columns(cast(bytes, answer.records), answer.count)
    make = cast("Callable[..., Any]", tuple.__new__)
    at = 0
    for window, _, _, count in parts:
        own: list[Sequence[object]] = [column[at : at + count] for column in columns]
        at += count
        offsets = cast("list[int]", own[_OFFSET])
        if window.topic.startswith(RETRY):
            again = map(make, repeat(Message), zip(*own, strict=True))
            own = list(zip(*map(_original, again), strict=True))
        yield window, list(map(make, repeat(Delivery), zip(*own, repeat(window), offsets, strict=False))), offsets


def raw_batches(parts: Sequence[Part], answer: Messages) -> Opened:
    """As `deliveries`: one batch for each part, at the place where it begins."""
    records, at = memoryview(answer.records), 0
    left = answer.count
    for window, start, next_offset, count in parts:
        end = _end_of(records, at, count) if count < left else len(records)
        left -= count
        batch = RawBatch(window, start, records[at:end], count, next_offset)
        at = end
        yield window, [batch], [start]


def _end_of(records: memoryview, start: int, count: int) -> int:
    """Where `count` records end. (Nothing but a look at each says how long it is; the last part of an answer does without.)"""
    at, length_at = start, _LENGTH.unpack_from
    for _ in range(count):
        at += length_at(records, at)[0]
    return at


def _original(message: Message) -> Message:
    """A message of a retry topic as it was sent first."""
    properties = message.properties
    topic, queue, offset, message_id = (properties[name] for name in ORIGIN)
    node, position = parse_message_id(message_id)
    _, _, _, key, tag, time, body, raw, _, _, number = message
    return tuple.__new__(Message, (topic, int(queue), int(offset), key, tag, time, body, raw, position, node, number))


def check_mode(mode: object) -> None:
    """Raises InvalidArgument."""
    if mode not in MODES:
        raise InvalidArgument(f"mode is {mode!r:.80}; allowed are {' and '.join(MODES)}", field="mode", value=f"{mode!r:.80}")
