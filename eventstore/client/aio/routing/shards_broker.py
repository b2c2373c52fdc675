"""The brokers of several shards, as one: each topic and group is on every shard.

A request is asked of all shards, and their answers are merged, as it declares (`eventstore.protocol.across`). The calls here
make several requests. An offset and a dead letter mean something on their shard only: what takes one is for the broker of
that shard, `store.shards[number].broker`, unless there is only one.
"""

from __future__ import annotations

from contextlib import suppress

from eventstore.client.aio.broker import NetworkBroker
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import limited
from eventstore.client.aio.routing.across import ask_each, check_one
from eventstore.client.aio.routing.router import Router
from eventstore.errors import Unconsumed, UnknownGroup, UnknownTopic
from eventstore.protocol.across import Across, Answers, rows_of_each
from eventstore.protocol.broker_info import GroupProgress
from eventstore.records.message import Message


class ShardsBroker(NetworkBroker):
    """Administers topics and groups on all shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._call = router.call_across
        self._timeout = router.entry.options.timeout

    @property
    def _by_shard(self) -> dict[int, NetworkBroker]:
        return {number: NetworkBroker(shard) for number, shard in self._router.connections().items()}

    @property
    def connections(self) -> int:
        """As `NetworkBroker.connections`, of all shards together."""
        return sum(each.connections for each in self._by_shard.values())

    @limited
    async def create_topic(
        self, topic: str, queues: int | None = None, *, if_missing: bool = False, timeout: float | None = None
    ) -> bool:
        """As `NetworkBroker.create_topic`; each shard has this number of queues."""
        new = await super().create_topic(topic, queues, if_missing=True)  # an earlier call may have failed after some of them
        if not new and not if_missing:
            await next(iter(self._by_shard.values())).create_topic(topic, queues)  # says that it exists
        return new

    @limited
    async def delete_topic(self, topic: str, *, ignore_unconsumed: bool = False, timeout: float | None = None) -> None:
        """As `NetworkBroker.delete_topic`. All shards are asked what is unconsumed before the first one deletes."""
        if not ignore_unconsumed:
            for number, each in self._by_shard.items():
                await _check_consumed(number, each, topic)
        await super().delete_topic(topic, ignore_unconsumed=ignore_unconsumed)

    @limited
    async def add_queues(self, topic: str, count: int, *, timeout: float | None = None) -> list[int]:
        """As `NetworkBroker.add_queues`, on each shard. One that an earlier call reached before it failed gets fewer."""
        ends = [await _end(each, topic) for each in self._by_shard.values()]
        wanted = max(*ends, min(ends) + count)

        async def add(shard: NetworkConnection) -> list[int]:
            broker = NetworkBroker(shard)
            end = await _end(broker, topic)
            return await broker.add_queues(topic, wanted - end) if end < wanted else []

        added: list[int] = await ask_each(self._router, Across(_numbers), add, changes=True)
        return added

    @limited
    async def remove_queue(self, topic: str, queue: int, *, timeout: float | None = None) -> None:
        """As `NetworkBroker.remove_queue`: the queue of this number on each shard, if all of them are consumed."""
        for number, each in self._by_shard.items():
            await _check_consumed(number, each, topic, queue)
        await super().remove_queue(topic, queue)

    @limited
    async def group(self, group: str, *, timeout: float | None = None) -> GroupProgress:
        """As `NetworkBroker.group`, in the queues of each shard; `generation` as in `groups`."""
        found: GroupProgress = await ask_each(
            self._router, Across(_progress, (UnknownGroup,)), lambda shard: NetworkBroker(shard).group(group)
        )
        return found

    @limited
    async def dead_letters(
        self, group: str, offset: int = 0, limit: int = 64, *, timeout: float | None = None
    ) -> list[Message]:
        """As `NetworkBroker.dead_letters`, of an only shard."""
        check_one(self._router, "`broker.dead_letters`", "dead_letters")
        return await super().dead_letters(group, offset, limit)

    @limited
    async def messages_of_key(self, topic: str, key: str, limit: int = 64, *, timeout: float | None = None) -> list[Message]:
        """As `NetworkBroker.messages_of_key`, by their timestamps: before a split another shard had the key."""
        found: list[Message] = await ask_each(
            self._router,
            Across(_newest, (UnknownTopic,)),
            lambda shard: NetworkBroker(shard).messages_of_key(topic, key, limit),
        )
        return found[:limit]


def _numbers(answers: Answers) -> list[int]:
    return sorted({number for numbers in answers.values() for number in numbers})


def _progress(answers: Answers) -> GroupProgress:
    first = next(iter(answers.values()))
    queues = rows_of_each().merge({shard: progress.queues for shard, progress in answers.items()})
    return GroupProgress(first.name, max(progress.generation for progress in answers.values()), tuple(queues))


def _newest(answers: Answers) -> list[Message]:
    found = [message for messages in answers.values() for message in messages]
    return sorted(found, key=lambda each: each.timestamp, reverse=True)


async def _end(broker: NetworkBroker, topic: str) -> int:
    """Returns the number of the next queue."""
    return 1 + max((each.queue for each in await broker.queues(topic)), default=-1)


async def _check_consumed(shard: int, broker: NetworkBroker, topic: str, queue: int | None = None) -> None:
    """Raises Unconsumed as the shard itself would, and names it."""
    for name, _, _ in await broker.groups():
        with suppress(UnknownGroup):  # deleted meanwhile
            for each in (await broker.group(name)).queues:
                if each.topic == topic and queue in (None, each.queue) and each.offset < each.end:
                    raise Unconsumed(
                        f"group {name!r} has messages to consume in queue {each.queue} of {topic!r} on shard {shard}",
                        topic=topic,
                        queue=each.queue,
                        group=name,
                        shard=shard,
                    )
