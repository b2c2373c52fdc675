"""The broker's topics, groups and messages, to look at and administer.

A call that changes something, and would change it again if it were repeated, is not sent again: if the connection is lost
before the answer, it fails with ConnectionLost, and `outcome` is "unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import limited
from eventstore.client.limit import seconds_of, within
from eventstore.client.session.broker_calls import (
    Pulled,
    dead_letters_request,
    message_of,
    messages_of,
    offset_request,
    pull_request,
    pulled_of,
    reset_request,
    retries_of,
    set_retries_request,
)
from eventstore.errors import UnknownTopic
from eventstore.fields import check_int
from eventstore.protocol import broker_requests as requests
from eventstore.protocol import group_requests
from eventstore.protocol.broker_info import (
    ChunkInfo,
    DepartedMember,
    GroupInfo,
    GroupProgress,
    GroupQueue,
    MemberInfo,
    MessageInHand,
    QueueInfo,
    ReplayedRange,
    ResetQueue,
    TopicInfo,
)
from eventstore.protocol.broker_requests import WireWant
from eventstore.protocol.limits import FOUND_MESSAGES_MAX, INT64_MAX, PAGE_BYTES_MAX
from eventstore.records.consumer_groups import Retries
from eventstore.records.message import Message


class NetworkBroker:
    """The broker of the server this client is connected to. For names of topics and groups see `create_topic`."""

    def __init__(self, connection: NetworkConnection) -> None:
        self._call = connection.call
        self._timeout = connection.options.timeout
        self._connection = connection

    @property
    def connections(self) -> int:
        """How many connections there have been. After another one, the log may be another, of an older copy that was restored:
        see whether the last message that you pulled is still there, with `message_at`."""
        return self._connection.session.connections

    # ---- topics

    @limited
    async def create_topic(
        self, topic: str, queues: int | None = None, *, if_missing: bool = False, timeout: float | None = None
    ) -> bool:
        """Creates a topic with this number of queues (1 to 256; by default the server's setting).

        Returns whether it is new: with `if_missing` an existing topic is not an error.

        Raises:
            InvalidArgument: the name is not allowed, or taken; names of topics and groups have 1 to 127 of the characters
                A-Z a-z 0-9 . _ -, not beginning with a dot.
            ConnectionLost: `outcome` is "unknown" if it may have been created.
        """
        return await self._call(requests.CreateTopic(topic, queues, if_missing), resend=if_missing)

    @limited
    async def topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        """Lists all topics, also those of retries and dead letters; of several shards, with the queues of all."""
        return await self._call(requests.ListTopics())

    @limited
    async def queues(self, topic: str, *, timeout: float | None = None) -> list[QueueInfo]:
        """Lists the queues of a topic, on each shard: state, offsets, rates of writes and reads. Raises UnknownTopic."""
        return await self._call(requests.ShowTopic(topic))

    @limited
    async def delete_topic(self, topic: str, *, ignore_unconsumed: bool = False, timeout: float | None = None) -> None:
        """Deletes a topic; its messages are deleted with the chunks they are in.

        Raises:
            UnknownTopic
            Unconsumed: a group still has messages to consume, and `ignore_unconsumed` is False.
            ConnectionLost: as of `create_topic`.
        """
        await self._call(requests.DeleteTopic(topic, ignore_unconsumed))

    @limited
    async def add_queues(self, topic: str, count: int, *, timeout: float | None = None) -> list[int]:
        """Adds queues to a topic and returns their numbers. Keys are spread over all queues from then on.

        Raises:
            UnknownTopic
            InvalidArgument: a topic has up to 256 queues.
            ConnectionLost: as of `create_topic`.
        """
        return await self._call(requests.AddQueues(topic, count))

    @limited
    async def close_queue(self, topic: str, queue: int, *, timeout: float | None = None) -> None:
        """Closes a queue for new messages, that of this number on each shard; those in it can be consumed.

        Raises:
            UnknownTopic, UnknownQueue
        """
        await self._call(requests.CloseQueue(topic, queue))

    @limited
    async def remove_queue(self, topic: str, queue: int, *, timeout: float | None = None) -> None:
        """Removes a closed queue.

        Raises:
            UnknownTopic, UnknownQueue
            InvalidArgument: it was not closed.
            Unconsumed: a group still has messages to consume in it.
            ConnectionLost: as of `create_topic`.
        """
        await self._call(requests.RemoveQueue(topic, queue))

    @limited
    async def chunks(self, after: int = 0, *, timeout: float | None = None) -> list[ChunkInfo]:
        """Lists the message chunks after number `after`, the oldest first, up to 1,000; of several shards, those of each, from
        the first one on.
        """
        return await self._call(requests.ListChunks(after))

    # ---- groups

    @limited
    async def groups(self, *, timeout: float | None = None) -> list[GroupInfo]:
        """Lists all consumer groups. Of several shards, a member is one on each; `generation` is the largest of theirs."""
        return await self._call(group_requests.ListGroups())

    @limited
    async def group(self, group: str, *, timeout: float | None = None) -> GroupProgress:
        """Returns a group's offset in each of its queues, and the member that reads it. Raises UnknownGroup."""
        found: list[GroupQueue] = []
        while True:
            page = await self._call(group_requests.ShowGroup(group, len(found)))
            found += page.queues
            if len(found) >= page.total or not page.queues:
                return GroupProgress(group, page.generation, tuple(found))

    @limited
    async def members(self, group: str, *, timeout: float | None = None) -> list[MemberInfo]:
        """Lists the members of a group; of several shards, with the queues of all, and `silent_ms` at the one that heard last.

        Raises:
            UnknownGroup
        """
        return await self._call(group_requests.ListMembers(group))

    @limited
    async def departures(self, group: str, *, timeout: float | None = None) -> list[DepartedMember]:
        """Lists up to 16 members of a group that are gone and have not joined again, the latest first; `how`: "left", it said
        so; "expired", its heartbeats ended; "lost", the broker was started since. Of several shards, as the one that saw it
        last has it.

        Raises:
            UnknownGroup
        """
        return await self._call(group_requests.ListDepartures(group))

    @limited
    async def in_hand(self, group: str | None = None, *, timeout: float | None = None) -> list[MessageInHand]:
        """Returns the message that a member of the group has had in hand for the longest, if any has one.

        Without a group, that of each of up to 1,000 groups, the longest first. The server looks once a second.

        Raises:
            UnknownGroup
        """
        return await self._call(group_requests.ListInHand(group))

    @limited
    async def delete_group(self, group: str, *, timeout: float | None = None) -> None:
        """Deletes a group, with its offsets, its messages to retry, and its dead letters.

        Raises:
            UnknownGroup
            InvalidArgument: it has members.
            ConnectionLost: as of `create_topic`.
        """
        await self._call(group_requests.DeleteGroup(group))

    @limited
    async def retries(self, group: str, *, timeout: float | None = None) -> Retries:
        """Returns the group's retry policy: its own, or the server's. Raises UnknownGroup."""
        return retries_of(await self._call(group_requests.ShowRetries(group)))

    @limited
    async def set_retries(self, group: str, retries: Retries | None, *, timeout: float | None = None) -> None:
        """Gives the group its own retry policy, or with None the server's again. Creates the group if it is new.

        It is used from the next failure on; messages that wait for a retry wait for the new delays.

        Raises:
            UnknownGroup: there is no such group, and nothing to give it.
            InvalidArgument: a name or a limit: 1 to 1,000 attempts, up to 64 delays of up to a day, at least one of them if
                there is more than one attempt.
        """
        await self._call(set_retries_request(group, retries))

    @limited
    async def forget_topic(self, group: str, topic: str, *, timeout: float | None = None) -> None:
        """Deletes a group's offsets in a topic that it no longer reads; they would hold back the deletion of messages forever.

        Raises:
            UnknownGroup
            InvalidArgument: a member reads it.
        """
        await self._call(group_requests.ForgetTopic(group, topic))

    @limited
    async def reset(
        self, group: str, topic: str, to: str | int | datetime, *, queue: int | None = None, timeout: float | None = None
    ) -> list[ResetQueue]:
        """Sets a group's offset in one queue of a topic, or in all: "start", "end", an offset, or the first message at a time
        (an aware datetime) or later. Members continue from there. Of several shards, in all queues of each, not to an offset.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue, InvalidArgument
        """
        return await self._call(reset_request(group, topic, to, queue))

    @limited
    async def dead_letters(
        self, group: str, offset: int = 0, limit: int = 64, *, timeout: float | None = None
    ) -> list[Message]:
        """Returns the group's dead letters from an offset on, up to `limit` (10,000 at most) and 8 MiB.

        `body`, `key` and `tag` are those that were sent; the properties `:origin-topic`, `:origin-queue`, `:origin-offset`,
        `:origin-id`, `:failures` and `:reason` say where the message was, how often it failed, and why. `replay` takes the
        `queue_offset`.
        """
        try:
            return messages_of(await self._call(dead_letters_request(group, offset, limit)))
        except UnknownTopic:  # it is created with the first one
            return []

    @limited
    async def replay(self, group: str, offsets: Sequence[int], *, timeout: float | None = None) -> int:
        """Delivers dead letters (1 to 256, by their offsets) to the group again, as if they had never failed. Returns how many.

        They stay among the dead letters, and `replayed` says which ones were. One that is replayed twice is delivered twice.

        Raises:
            UnknownGroup
            InvalidArgument: there is no such dead letter.
            Overloaded: those that were replayed are 1,000 ranges of offsets.
            ConnectionLost: as of `create_topic`.
        """
        return await self._call(group_requests.ReplayDead(group, tuple(offsets)))

    @limited
    async def replayed(self, group: str, *, timeout: float | None = None) -> list[ReplayedRange]:
        """Returns which of the group's dead letters were replayed, as ranges of offsets. Raises UnknownGroup."""
        return await self._call(group_requests.ListReplayed(group))

    # ---- messages

    @limited
    async def message(self, message_id: str, *, timeout: float | None = None) -> Message | None:
        """Returns the message with this id, or None if the broker does not have it (any more). Raises InvalidArgument."""
        return message_of(await self._call(requests.FindMessage(message_id)))

    @limited
    async def message_at(self, topic: str, queue: int, offset: int, *, timeout: float | None = None) -> Message | None:
        """Returns the message at this offset, or None. Raises UnknownTopic, UnknownQueue."""
        return message_of(await self._call(requests.ReadMessage(topic, queue, offset)))

    @limited
    async def messages_of_key(self, topic: str, key: str, limit: int = 64, *, timeout: float | None = None) -> list[Message]:
        """Returns the last messages of a topic with this key, newest first: `limit` (1,000 at most). Raises UnknownTopic."""
        check_int("limit", limit, 1, FOUND_MESSAGES_MAX)
        found: list[Message] = []
        before = INT64_MAX
        while before and (not found or len(found) < limit):
            page = await self._call(requests.FindKey(topic, key, limit - len(found), PAGE_BYTES_MAX, before))
            found += messages_of(page)
            before = page.next or 0
        return found

    @limited
    async def offset_at(self, topic: str, queue: int, time: int | datetime, *, timeout: float | None = None) -> int:
        """Returns the first offset of a queue whose message is of this time (microseconds since 1970, or an aware datetime) or
        later; the queue's end if there is none. Raises UnknownTopic, UnknownQueue.
        """
        return await self._call(offset_request(topic, queue, time))

    async def pull(
        self,
        wants: Sequence[WireWant],
        limit: int = 64,
        *,
        size_bytes: int | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> Pulled:
        """Returns the next messages of some queues (topic, queue, offset, tags or None), without a group: commits nothing.

        Returns up to `limit` messages (10,000 at most) of about `size_bytes` (8 MiB at most), or fewer: pull until there are
        none. A busy queue may take a whole answer, so begin with another one the next time. If there are none, waits up to
        `wait` seconds (60 at most) for one.

        Raises:
            UnknownTopic, UnknownQueue, InvalidArgument
        """
        request = pull_request(wants, limit, size_bytes, wait)
        with within(seconds_of(timeout, None if self._timeout is None else self._timeout + wait)):
            return pulled_of(request, await self._call(request))
