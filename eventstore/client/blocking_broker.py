"""The broker's topics, groups and messages, to be looked at and administered without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from eventstore.broker.message import Message
from eventstore.client import questions
from eventstore.client.broker_facts import (
    ChunkFacts,
    GroupFacts,
    GroupProgress,
    GroupQueue,
    MemberFacts,
    QueueFacts,
    ResetQueue,
    TopicFacts,
)
from eventstore.client.calls import Call, Flag
from eventstore.client.exchange import Exchange
from eventstore.client.questions import Pulled, Question
from eventstore.protocol.broker_requests import WireWant

A = TypeVar("A")


class BlockingBroker:
    """The broker of the server that a blocking client is connected to. Topics and groups are named, see `create_topic`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _ask(self, question: Question[A]) -> A:
        call = Call(question.request, Flag(), resend=question.resend)
        self._exchange.start(call)
        self._exchange.finish(call.done)
        return question.read(call)

    def create_topic(self, topic: str, queues: int | None = None, *, if_missing: bool = False) -> bool:
        """A new topic with so many queues (1 to 256; None: as many as the server is set to). Whether it is new: with
        `if_missing` one that is there already is as good.

        Raises:
            InvalidArgument: the name is not allowed, or taken; names of topics and groups have 1 to 127 of the characters
                A-Z a-z 0-9 . _ -, not beginning with a dot.
            ConnectionLost: `outcome` says "unknown" where it may have been created.
        """
        return self._ask(questions.create_topic(topic, queues, if_missing))

    def topics(self) -> list[TopicFacts]:
        """All topics, also those of retries and dead letters."""
        return self._ask(questions.topics())

    def queues(self, topic: str) -> list[QueueFacts]:
        """The queues of a topic: state, what each holds, and how much is written and read. Raises UnknownTopic."""
        return self._ask(questions.queues(topic))

    def delete_topic(self, topic: str, *, ignore_unconsumed: bool = False) -> None:
        """Deletes a topic; its messages go with the chunks they are in.

        Raises:
            UnknownTopic
            Unconsumed: a group still has messages to consume, and they are not to be ignored.
            ConnectionLost: as of `create_topic`.
        """
        self._ask(questions.delete_topic(topic, ignore_unconsumed))

    def add_queues(self, topic: str, count: int) -> list[int]:
        """More queues; the numbers of the new ones. Keys lead to other queues from then on.

        Raises:
            UnknownTopic
            InvalidArgument: a topic has up to 256 queues.
            ConnectionLost: as of `create_topic`.
        """
        return self._ask(questions.add_queues(topic, count))

    def close_queue(self, topic: str, queue: int) -> None:
        """The queue takes no more messages; what is in it can be consumed. Raises UnknownTopic, UnknownQueue."""
        self._ask(questions.close_queue(topic, queue))

    def remove_queue(self, topic: str, queue: int) -> None:
        """Removes a queue that was closed.

        Raises:
            UnknownTopic, UnknownQueue
            InvalidArgument: it was not closed.
            Unconsumed: a group still has messages to consume in it.
            ConnectionLost: as of `create_topic`.
        """
        self._ask(questions.remove_queue(topic, queue))

    def chunks(self, after: int = 0) -> list[ChunkFacts]:
        """The message chunks behind number `after`, the oldest first, up to 10,000."""
        return self._ask(questions.chunks(after))

    def groups(self) -> list[GroupFacts]:
        """All consumer groups."""
        return self._ask(questions.groups())

    def group(self, group: str) -> GroupProgress:
        """How far a group is in each of its queues, and who reads it. Raises UnknownGroup."""
        found: list[GroupQueue] = []
        while True:
            generation, total, rows = self._ask(questions.progress(group, len(found)))
            found += rows
            if len(found) >= total or not rows:
                return GroupProgress(group, generation, tuple(found))

    def members(self, group: str) -> list[MemberFacts]:
        """The members of a group. Raises UnknownGroup."""
        return self._ask(questions.members(group))

    def delete_group(self, group: str) -> None:
        """Forgets a group, with its offsets, what it was to retry, and its dead letters.

        Raises:
            UnknownGroup
            InvalidArgument: it has members.
            ConnectionLost: as of `create_topic`.
        """
        self._ask(questions.delete_group(group))

    def forget_topic(self, group: str, topic: str) -> None:
        """Forgets how far a group is in a topic that it no longer reads: it would hold back the deletion of messages for ever.

        Raises:
            UnknownGroup
            InvalidArgument: a member reads it.
        """
        self._ask(questions.forget_topic(group, topic))

    def reset(self, group: str, topic: str, to: str | int | datetime, *, queue: int | None = None) -> list[ResetQueue]:
        """Sets a group's offset in one queue of a topic, or in all: "start", "end", an offset, or the first message of a time
        (an aware datetime) or later. Members that read go on from there.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue, InvalidArgument
        """
        return self._ask(questions.reset(group, topic, to, queue))

    def dead_letters(self, group: str, offset: int = 0, limit: int = 64) -> list[Message]:
        """The group's dead letters from an offset on, up to `limit` (10,000 at most) and 8 MiB; none where it has none.

        What was sent is in `body`, `key` and `tag`; the properties `:origin-topic`, `:origin-queue`, `:origin-offset`,
        `:origin-id`, `:failures` and `:reason` say the rest. `queue_offset` is what `replay` wants.
        """
        return self._ask(questions.dead_letters(group, offset, limit))

    def replay(self, group: str, offsets: Sequence[int]) -> int:
        """Delivers dead letters (1 to 256, by their offsets) to the group again, as if they had never failed; how many.

        They stay among the dead letters, and nothing marks them there: who replays one twice has it delivered twice.

        Raises:
            UnknownGroup
            InvalidArgument: there is no such dead letter.
            ConnectionLost: as of `create_topic`.
        """
        return self._ask(questions.replay(group, offsets))

    def message(self, message_id: str) -> Message | None:
        """The message with this id, or None where the broker has none (any more). Raises InvalidArgument."""
        return self._ask(questions.message(message_id))

    def message_at(self, topic: str, queue: int, offset: int) -> Message | None:
        """The message at this place, or None. Raises UnknownTopic, UnknownQueue."""
        return self._ask(questions.message_at(topic, queue, offset))

    def messages_of_key(self, topic: str, key: str, limit: int = 64) -> list[Message]:
        """The last messages of a topic with this key, the newest first, up to `limit` (1,000 at most). Raises UnknownTopic."""
        return self._ask(questions.messages_of_key(topic, key, limit))

    def offset_at(self, topic: str, queue: int, time: int | datetime) -> int:
        """The first offset of a queue whose message is of this time (microseconds since 1970, or an aware datetime) or
        later; its end where there is none. Raises UnknownTopic, UnknownQueue.
        """
        return self._ask(questions.offset_at(topic, queue, time))

    def pull(self, wants: Sequence[WireWant], limit: int = 64, *, size_bytes: int | None = None, wait: float = 0.0) -> Pulled:
        """The next messages of some queues (topic, queue, offset, tags or None), without a group: nothing is committed.

        Up to `limit` (10,000 at most), and about `size_bytes` (8 MiB at most), or fewer: go on until there are none. A busy
        queue may take a whole answer, so begin with another one the next time. Where there are none, waits up to `wait`
        seconds (60 at most) for one.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument
        """
        return self._ask(questions.pull(wants, limit, size_bytes, wait))
