"""What a consumer hands out: messages to be finished by their handler, or raw batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

from eventstore.chunks.record import PREFIX
from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.published_event import not_json, published_event
from eventstore.client.consumer.reached import RecordMark, reached_by
from eventstore.fields import check_text
from eventstore.json_values import Json, parsed
from eventstore.model import Event
from eventstore.protocol.limits import REASON_BYTES_MAX
from eventstore.protocol.message_answers import Messages
from eventstore.records.consumer_groups import FAILURES, ORIGIN
from eventstore.records.message import Message, decode_columns, decode_messages, parse_message_id
from eventstore.records.topic_names import RETRY

_OFFSET: Final = 2  # among the values of a `Message`
_WINDOW: Final = 11  # after them
_PLACE: Final = 12
_LENGTH: Final = PREFIX.part("length")


class Delivery(Message):
    """A message handed out by a consumer, to be finished by `done` or `retry`; both are safe on any thread.

    A message that is redelivered after a failure looks like the first time: topic, queue, offset and id are the original's.
    In another process a pickled delivery is a `Message`: it is finished where it was received.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (tuple(self)[:_WINDOW],)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @property
    def times_failed(self) -> int:
        """The number of deliveries that failed before this one."""
        window = self._window
        before = int(self.properties.get(FAILURES, "0")) if window.topic.startswith(RETRY) else 0
        return before + window.attempts.get(self[_PLACE], 0)  # type: ignore[misc] # as in `done`

    @property
    def is_mine(self) -> bool:
        """Whether the consumer still reads the queue; if not, another one gets the message as well."""
        return not self._window.closed

    def json(self) -> Json:
        """`body` parsed as JSON.

        Raises:
            PayloadInvalid: it is empty, or not JSON; names topic, queue and offset.
        """
        try:
            return parsed(self.body)
        except (ValueError, RecursionError) as error:
            raise not_json(self, error) from None

    def event(self) -> Event:
        """The event that the message was made from (`eventstore serve --publish`), as it is in its store.

        Raises:
            PayloadInvalid: it was made from none, or the event's metadata (over 60 KiB) are not in the message.
        """
        return published_event(self)

    def done(self) -> None:
        """Marks the message as handled. Does nothing if it was finished before, or its queue moved to another member."""
        self[_WINDOW].finish(self[_PLACE])  # type: ignore[misc] # after the fields of `Message`: built in C, see `deliveries`

    def retry(self, reason: str = "") -> None:
        """Marks the message as failed: it is redelivered after a delay, or goes to the dead letters after the last one.

        It is finished when the server has stored the failure. `reason` (up to 4,096 bytes) is kept with the message.

        Raises:
            InvalidArgument: the reason is too long.
        """
        check_text("reason", reason, 0, REASON_BYTES_MAX)
        self._window.fail(self[_PLACE], reason)  # type: ignore[misc] # as above

    @property
    def _window(self) -> Window:
        return self[_WINDOW]  # type: ignore[misc,no-any-return] # as above


class RawBatch:
    """Whole message records of one queue, as stored on the server's disk, to be finished together.

    `records`: the bytes; `count`: the number of messages; `next_offset`: the offset after them.
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
        """`retry:GROUP` if the messages are redelivered after a failure."""
        return self._window.topic

    @property
    def queue(self) -> int:
        return self._window.queue

    @property
    def is_mine(self) -> bool:
        """As `Delivery.is_mine`."""
        return not self._window.closed

    def messages(self) -> list[Message]:
        """Returns the messages, in order."""
        return decode_messages(bytes(self.records), self.count)

    def done(self) -> None:
        """Marks all messages as handled."""
        self._window.finish(self._place)

    def __repr__(self) -> str:
        return f"<RawBatch {self.count} messages of {self.topic}/{self.queue} before offset {self.next_offset}>"


DeliveryItem: TypeAlias = Delivery | RawBatch


class PulledRange(NamedTuple):
    """The part of one queue in the answer to a pull: `messages` messages, from the offset `start` to before `next_offset`."""

    window: Window
    start: int
    next_offset: int
    messages: int


OpenedRanges: TypeAlias = "Iterator[tuple[Window, list[DeliveryItem], list[int], RecordMark]]"
"""For each range its items, the offset at which each is to be finished, and its last message."""


def place_of(item: DeliveryItem) -> tuple[Window, int]:
    """Returns the window of an item, and the offset to finish there."""
    if isinstance(item, RawBatch):
        return item._window, item._place
    return item._window, cast(int, item[_PLACE])  # type: ignore[misc] # see `Delivery`


def deliveries(ranges: Sequence[PulledRange], answer: Messages) -> OpenedRanges:
    """Returns the messages of each range of an answer.

    Raises:
        ProtocolError: the answer contradicts itself.
    """
    *columns, lengths = decode_columns(cast(bytes, answer.records), answer.count)
    make = cast("Callable[..., Any]", tuple.__new__)
    records, at, end = memoryview(answer.records), 0, 0
    for window, _, _, count in ranges:
        own: list[Sequence[object]] = [column[at : at + count] for column in columns]
        end += sum(cast("Sequence[int]", lengths[at : at + count]))
        at += count
        offsets = cast("list[int]", own[_OFFSET])
        if window.topic.startswith(RETRY):
            again = map(make, repeat(Message), zip(*own, strict=True))
            own = list(zip(*map(_original, again), strict=True))
        items = list(map(make, repeat(Delivery), zip(*own, repeat(window), offsets, strict=False)))
        yield window, items, offsets, reached_by(records[:end])


def raw_batches(ranges: Sequence[PulledRange], answer: Messages) -> OpenedRanges:
    """As `deliveries`: one batch for each range, finished at its first offset."""
    records, at = memoryview(answer.records), 0
    left = answer.count
    for window, start, next_offset, count in ranges:
        end = _end_of(records, at, count) if count < left else len(records)
        left -= count
        batch = RawBatch(window, start, records[at:end], count, next_offset)
        at = end
        yield window, [batch], [start], reached_by(records[:end])


def _end_of(records: memoryview, start: int, count: int) -> int:
    """Returns the end of `count` records, from their lengths. (The last range of an answer ends with it.)"""
    at, length_at = start, _LENGTH.unpack_from
    for _ in range(count):
        at += length_at(records, at)[0]
    return at


def _original(message: Message) -> Message:
    """Returns the original of a message in a retry topic."""
    properties = message.properties
    topic, queue, offset, message_id = (properties[name] for name in ORIGIN)
    node, position = parse_message_id(message_id)
    _, _, _, key, tag, time, body, raw, _, _, number = message
    return tuple.__new__(Message, (topic, int(queue), int(offset), key, tag, time, body, raw, position, node, number))
