"""Moves failed messages to the retry topic or the dead letters of their group, and replays dead letters.

A failure that is reported twice is stored once: stored failures are remembered until the group's committed offset passes them
(`FailedOffsets`), and of two simultaneous reports the second waits for the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import trio

from eventstore.broker.administration import Administration
from eventstore.broker.groups.failed_offsets import FailedOffsets, GroupQueueKey
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.message_lookups import MessageLookups
from eventstore.broker.retry_policy import DEAD_QUEUES, failed, failures_of, replayed
from eventstore.broker.topics import Topic, Topics
from eventstore.errors import EventStoreError, InvalidArgument, Overloaded, UnknownTopic, copy_error
from eventstore.fields import counted
from eventstore.records.message import RawMessage, decode_messages
from eventstore.records.topic_names import dead_topic, retry_topic

_SENT_TOGETHER_BYTES: Final = 8 * 1024 * 1024  # held in memory at once, however many messages fail
SendOwn: TypeAlias = Callable[[str, Sequence[RawMessage]], Awaitable[list[SendOutcome]]]
_Place: TypeAlias = tuple[GroupQueueKey, int]
_Failed: TypeAlias = tuple[_Place, RawMessage]


class FailedMessages:
    """The failed messages of all groups."""

    def __init__(
        self,
        groups: Groups,
        topics: Topics,
        lookups: MessageLookups,
        administration: Administration,
        stored: FailedOffsets,
        send: SendOwn,
        save_offsets: Callable[[], Awaitable[None]],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._lookups = lookups
        self._administration = administration
        self._stored = stored
        self._send = send
        self._save_offsets = save_offsets
        self._underway: dict[_Place, trio.Event] = {}

    async def fail(
        self, group: str, member: str, generation: int, places: Sequence[tuple[str, int, int]], reason: str = ""
    ) -> list[bool]:
        """Stores messages (topic, queue, offset) that the member could not handle, for retry or as dead letters.

        Returns whether each is dead. Durable on return; the member commits the offsets after them next. A failure that the
        group has reported before, and not committed yet, is not stored again.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue
            InvalidArgument: `field` is "offset": the queue does not hold the message; its chunk may have been deleted.
            Overloaded: the retry topic would exceed the limit of topics or queues; nothing is lost.
            Rebalanced: not all of these queues are assigned to the member in this generation.
        """
        while True:
            self._groups.check_reads(group, member, generation, [place[:2] for place in places])
            keys = [((group, self._topics.get(topic).id, queue), offset) for topic, queue, offset in places]
            busy = next((self._underway[key] for key in keys if key in self._underway), None)
            if busy is None:
                break
            await busy.wait()
        done = trio.Event()
        self._underway.update(dict.fromkeys(keys, done))
        try:
            return await self._fail(group, keys, places, reason)
        finally:
            for key in set(keys):
                del self._underway[key]
            done.set()

    async def fail_in_place(
        self, group: str, member: str, generation: int, places: Sequence[tuple[str, int, int, int]], reason: str = ""
    ) -> list[float | None]:
        """Counts failures of messages that the member keeps, to try again in order: topic, queue, offset, and its attempts
        since it joined. Returns for each the seconds to wait before the next attempt; None: it has become a dead letter.

        Attempts of earlier members count too, so a message that ends its consumers is dead at last. Durable on return. The same
        report again changes nothing.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue
            InvalidArgument: `field` is "offset": the queue does not hold the message; its chunk may have been deleted.
            Overloaded: too many messages of a queue have failed in place, or the retry topic would exceed a limit.
            Rebalanced: not all of these queues are assigned to the member in this generation.
        """
        reader = self._groups.check_reads(group, member, generation, [place[:2] for place in places])
        policy, attempts = self._groups.policy(group), self._groups.offsets.attempts
        delays: list[float | None] = []
        for topic, queue, offset, count in places:
            record = await self._record(topic, queue, offset)
            place = topic, queue, offset
            before = reader.attempts_before.get(place, attempts.of(group, *place))
            known = attempts.killed(group, *place) or attempts.raise_to(group, *place, before + count)
            reader.attempts_before[place] = before
            failures = failures_of(decode_messages(record, 1)[0]) + known
            dead = policy.is_dead(failures)
            if dead:
                await self.fail(group, member, generation, [(topic, queue, offset)], reason)
            delays.append(None if dead else policy.delays_s[policy.queue_after(failures)])
        counted = {place: before for place, before in reader.attempts_before.items() if attempts.of(group, *place)}
        reader.attempts_before = counted  # without messages that the group has committed
        await self._save_offsets()
        return delays

    async def _record(self, topic: str, queue: int, offset: int) -> bytes:
        record = await self._lookups.message(topic, queue, offset)
        if record is None:
            raise InvalidArgument(f"queue {queue} of {topic!r} holds no message {offset}", field="offset", value=offset)
        return record

    async def _fail(
        self, group: str, keys: Sequence[_Place], places: Sequence[tuple[str, int, int]], reason: str
    ) -> list[bool]:
        verdicts: dict[_Place, bool] = {}
        retry: list[_Failed] = []
        dead: list[_Failed] = []
        size = 0
        for key, (topic, queue, offset) in zip(keys, places, strict=True):
            known = self._stored.verdict(*key)
            if known is not None:
                verdicts[key] = known
            if key in verdicts:
                continue
            record = await self._record(topic, queue, offset)
            attempts = self._groups.offsets.attempts
            more = max(1, attempts.of(group, topic, queue, offset) + attempts.killed(group, topic, queue, offset))
            verdicts[key], again_ = failed(decode_messages(record, 1)[0], reason, self._groups.policy(group), more)
            (dead if verdicts[key] else retry).append((key, again_))
            size += len(record)
            if size >= _SENT_TOGETHER_BYTES:
                await self._store(group, retry, dead)
                retry, dead, size = [], [], 0
        await self._store(group, retry, dead)
        return [verdicts[key] for key in keys]

    async def _store(self, group: str, retry: list[_Failed], dead: list[_Failed]) -> None:
        policy = self._groups.policy(group)
        for topic, queues, messages, is_dead in (
            (retry_topic(group), policy.queues, retry, False),
            (policy.dead_topic(group), DEAD_QUEUES, dead, True),
        ):
            forgotten = self._stored.forgotten
            outcomes = await self._send_again(topic, queues, [message for _, message in messages])
            for ((queue, offset), _), outcome in zip(messages, outcomes, strict=True):
                if not isinstance(outcome, EventStoreError) and self._stored.forgotten == forgotten:
                    self._stored.remember(queue, offset, dead=is_dead)
            _raise_first(outcomes)

    async def replay(self, group: str, offsets: Sequence[int]) -> int:
        """Delivers dead letters (offsets in `dead:GROUP`) to the group again, as if they had never failed. Returns how many.

        They are marked as replayed, durably: after the delivery, so that a crash between leaves none marked that was not sent.

        Raises:
            UnknownGroup
            Overloaded: too many messages to retry, or too many ranges of replayed letters.
            InvalidArgument: a dead letter does not exist; earlier ones may have been replayed already.
        """
        self._groups.get(group)
        found: list[RawMessage] = []
        size = sent = 0
        dead = self._topics.by_name.get(dead_topic(group))
        if dead is not None:
            self._with_replayed(group, dead, offsets)  # refused before any is sent
        for place, offset in enumerate(offsets, 1):
            record = await self._lookups.message(dead.name, 0, offset) if dead is not None else None
            if record is None:
                raise InvalidArgument(
                    f"group {group!r} has no dead letter {offset}; list them to see which there are",
                    field="offsets",
                    value=offset,
                )
            found.append(replayed(decode_messages(record, 1)[0]))
            size += len(record)
            if size >= _SENT_TOGETHER_BYTES or place == len(offsets):
                _raise_first(await self._send_again(retry_topic(group), max(1, self._groups.policy(group).queues), found))
                found, size = [], 0
                if dead is not None:
                    self._groups.offsets.replayed.keep(group, dead.id, self._with_replayed(group, dead, offsets[sent:place]))
                    await self._save_offsets()
                    sent = place
        return len(offsets)

    def _with_replayed(self, group: str, dead: Topic, offsets: Sequence[int]) -> list[tuple[int, int]]:
        replayed = self._groups.offsets.replayed
        return replayed.with_more(group, dead.id, offsets, self._groups.offsets.first_of(dead.name, 0))

    def replayed(self, group: str) -> list[tuple[int, int]]:
        """Returns the offsets of dead letters that were replayed, as ranges from the first to before the end.

        Raises UnknownGroup.
        """
        self._groups.get(group)
        dead = self._topics.by_name.get(dead_topic(group))
        return [] if dead is None else self._groups.offsets.replayed.ranges(group, dead.id)

    async def _send_again(self, topic: str, queues: int, messages: list[RawMessage]) -> list[SendOutcome]:
        if not messages:
            return []
        while True:
            try:
                await self._administration.ensure_topic(topic, queues)
            except InvalidArgument as error:  # the client would not retry a request that is refused as invalid
                raise Overloaded(
                    f"{topic} with {counted(queues, 'queue')} cannot be created: {error.message}; delete unused topics",
                    topic=topic,
                    queues=queues,
                ) from error
            try:
                return await self._send(topic, messages)
            except UnknownTopic:  # the topic was deleted while this waited for room, as when dead letters are purged
                continue


def _raise_first(outcomes: Sequence[SendOutcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, EventStoreError):
            raise copy_error(outcome)
