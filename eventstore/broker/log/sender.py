"""The hot path of sending: turns messages into records of the front buffer and entries of the queues' tails.

A batch takes two passes, as for commits: the first message by message, since each takes the next offset of its queue; the
second turns the accepted ones into records column by column, in C loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count, repeat
from operator import add as concat
from typing import Final, TypeAlias, cast

import msgpack

from eventstore.broker.log.queue import QueueLog
from eventstore.broker.topics import Topic
from eventstore.checksum import crc32c
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import MARK, THROUGH_CRC, TRAILER, TRAILER_MARK
from eventstore.errors import EventStoreError, InvalidArgument, Poisoned, UnknownQueue, UnknownTopic, copy_error
from eventstore.fields import check_text, shown
from eventstore.records import state_record
from eventstore.records.message import (
    AFTER_CRC,
    BODY_BYTES_MAX,
    FIXED_BYTES,
    HEADER_BYTES,
    TEXT_BYTES_MAX,
    RawMessage,
    check_properties,
    position_of,
    text_hash,
)
from eventstore.records.state_record import QueueKey

SendOutcome: TypeAlias = tuple[int, int, int] | EventStoreError
"""(queue, queue offset, position), or the error for which the message was refused."""

_Row: TypeAlias = tuple[int, int, int, int, int, int, bytes]
"""Length of the record, queue offset, position, queue, tag hash, key hash, the five values."""

_TAGS_KEPT_MAX: Final = 10_000
_pack: Final = msgpack.Packer().pack


class Sender:
    """Sends messages.

    Attributes:
        failed: the error for which no more messages are accepted; None if they are.
        changed_queues: the queues that got messages since the engine last took this set.
    """

    def __init__(
        self,
        front: FrontBuffer,
        queues: dict[QueueKey, QueueLog],
        *,
        epoch: int,
        node: int,
        last_time: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.failed: EventStoreError | None = None
        self.refused = 0
        self.last_time = last_time
        self.changed_queues: set[QueueKey] = set()
        self._front = front
        self._queues = queues
        self._epoch = epoch
        self._node = node
        self._clock = clock
        self._round_robin: dict[int, int] = {}
        self._tag_hashes: dict[str | None, int] = {None: 0}

    def append_batch(self, topic: Topic, messages: Sequence[RawMessage], *, own: bool = False) -> list[SendOutcome]:
        """Gives each valid message its queue, offset and position, in order. An invalid message is refused alone.

        A key always leads to the same queue as long as the open queues stay the same; messages without a key go to the open
        queues in turn. `own`: the broker itself sends, and properties are not checked.
        """
        if self.failed is not None:
            raise copy_error(self.failed)
        self.last_time = max(self.last_time, int(self._clock() * 1_000_000))
        logs = [self._queues.get((topic.id, number)) for number in topic.open]
        if None in logs:
            raise UnknownTopic(f"topic {topic.name!r} was deleted", topic=topic.name)
        outcomes: list[SendOutcome] = []
        rows: list[_Row] = []
        try:
            try:
                self._accept(topic, cast("list[QueueLog]", logs), messages, own, outcomes, rows)
            finally:  # an accepted message is in a tail already, and must get its record
                self._frame(topic.id, rows)
        except BaseException as error:
            self.failed = Poisoned(f"a send was interrupted ({error!r}); restart the broker. Acknowledged messages are safe")
            raise
        return outcomes

    def _accept(
        self,
        topic: Topic,
        logs: list[QueueLog],
        messages: Sequence[RawMessage],
        own: bool,
        outcomes: list[SendOutcome],
        rows: list[_Row],
    ) -> None:
        name, topic_id, front = topic.name, topic.id, self._front
        turn, end, limit, base = self._round_robin.get(topic_id, 0), 0, -1, 0
        used: set[QueueLog] = set()
        for body, key, tag, properties, queue in messages:
            try:
                if body.__class__ is not bytes or len(body) > BODY_BYTES_MAX:
                    raise _bad_body(body)
                key_hash = 0 if key is None else _key_hash(key)
                tag_hash = self._tag_hashes.get(tag)
                if tag_hash is None:
                    tag_hash = self._new_tag(tag)
                if properties is not None and not own:
                    properties = check_properties(properties)
                if queue is not None:
                    log = self._chosen(topic, queue)
                elif key is None:
                    log = logs[turn % len(logs)]
                    turn += 1
                else:
                    log = logs[key_hash % len(logs)]
            except EventStoreError as error:
                self.refused += 1
                outcomes.append(error.with_traceback(None))
                continue
            values: bytes = _pack((tag, key, name, body, properties))[1:]
            length = FIXED_BYTES + len(values)
            if end + length > limit:
                if rows:
                    self._frame(topic_id, rows)
                self._make_room(length)
                end, limit, base = front.end, front.limit, position_of(front.chunk, 0)
            tail, position = log.tail, base + end
            offset, number = tail.base + len(tail.positions), log.key[1]
            tail.lengths.append(length)
            tail.tags.append(tag_hash)
            tail.keys.append(key_hash)
            tail.positions.append(position)  # last, because readers go by it
            rows.append((length, offset, position, number, tag_hash, key_hash, values))
            outcomes.append((number, offset, position))
            used.add(log)
            end += length
        self._round_robin[topic_id] = turn
        for log in used:
            self.changed_queues.add(log.key)

    def _frame(self, topic_id: int, rows: list[_Row]) -> None:
        """Turns accepted messages into records of the current chunk, which has room for them."""
        if not rows:
            return
        front = self._front
        lengths, offsets, positions, queues, tags, keys, values = zip(*rows, strict=True)
        rows.clear()
        headers = map(
            AFTER_CRC.pack,
            repeat(front.witness()),
            lengths,
            repeat(front.durable),
            count(front.next_sequence),
            repeat(self._epoch),
            repeat(1),
            repeat(self.last_time),
            offsets,
            positions,
            repeat(topic_id),
            queues,
            repeat(self._node),
            tags,
            keys,
        )
        trailers = map(TRAILER.struct.pack, repeat(TRAILER_MARK), lengths)
        rests = list(map(b"".join, zip(headers, values, trailers, strict=False)))
        crcs = list(map(crc32c, rests))
        starts = map(THROUGH_CRC.pack, repeat(MARK), repeat(HEADER_BYTES - 2), crcs)
        front.extend(list(map(concat, starts, rests)), sum(crcs), sum(lengths), len(lengths))

    def begin_chunk(self) -> None:
        """Begins a new chunk with its state record alone, which is how an epoch begins."""
        self._front.begin_chunk()
        self._make_room(0)

    def _make_room(self, length: int) -> None:
        """Begins a new chunk if the record does not fit into the current one. A chunk begins with a state record."""
        front = self._front
        if front.begins_chunk(length):
            front.begin_chunk()
        if front.end == RECORDS_FROM:
            body = state_record.encode_body([(key, log.next_offset) for key, log in list(self._queues.items())])
            raw, crc = state_record.frame(
                body,
                witness=front.witness(),
                durable=front.durable,
                number=front.next_sequence,
                epoch=self._epoch,
                time=self.last_time,
                position=position_of(front.chunk, front.end),
                node=self._node,
            )
            front.extend([raw], crc, len(raw), 0)

    def _chosen(self, topic: Topic, queue: object) -> QueueLog:
        if queue.__class__ is int and queue in topic.open:
            return self._queues[topic.id, queue]
        raise UnknownQueue(
            f"topic {topic.name!r} has no queue {shown(queue)} that takes messages; open are {', '.join(map(str, topic.open))}",
            topic=topic.name,
            queue=queue if isinstance(queue, int) else None,
        )

    def _new_tag(self, tag: object) -> int:
        text = check_text("tag", tag)
        if "|" in text or text != text.strip() or text == "*":
            raise InvalidArgument(
                f"tag is {shown(tag)}; a tag has no | in it, no spaces around it, and is not *", field="tag", value=shown(tag)
            )
        if len(self._tag_hashes) > _TAGS_KEPT_MAX:
            self._tag_hashes = {None: 0}
        return self._tag_hashes.setdefault(text, text_hash(text))


def _key_hash(key: object) -> int:
    try:
        raw = key.encode()  # type: ignore[attr-defined] # other types are refused below
        if 0 < len(raw) <= TEXT_BYTES_MAX:
            return crc32c(raw)
    except (UnicodeEncodeError, AttributeError):
        pass
    return crc32c(check_text("key", key).encode())  # says what is wrong


def _bad_body(body: object) -> InvalidArgument:
    if not isinstance(body, bytes):
        return InvalidArgument(f"body must be bytes, not {shown(body)}", field="body")
    return InvalidArgument(
        f"body has {len(body)} bytes, allowed are {BODY_BYTES_MAX}", field="body", limit=BODY_BYTES_MAX, value=len(body)
    )
