"""The brokers of several shards, as one: each topic and group is on every shard.

What changes a topic or a group is done on all shards, one after the other; where one fails, repeat the call. What names a
queue, an offset or a message is for the broker of a shard: `store.shards[number].broker`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from eventstore.client.aio.broker import NetworkBroker
from eventstore.client.aio.routing.router import Router
from eventstore.client.session.broker_info import GroupInfo, TopicInfo
from eventstore.errors import EventStoreError, InvalidArgument, Unconsumed, UnknownGroup, UnknownTopic
from eventstore.records.consumer_groups import Retries

OF_A_SHARD: Final = (
    "queues", "add_queues", "close_queue", "remove_queue", "chunks", "group", "members", "reset", "dead_letters", "replay",
    "message", "message_at", "messages_of_key", "offset_at", "pull",
)  # fmt: skip
"""The methods that name, or show, what is on one shard."""


async def _check_consumed(broker: NetworkBroker, topic: str) -> None:
    """Raises Unconsumed as the shard itself would."""
    for name, _, _ in await broker.groups():
        with suppress(UnknownGroup):  # deleted meanwhile
            for each in (await broker.group(name)).queues:
                if each.topic == topic and each.offset < each.end:
                    raise Unconsumed(
                        f"group {name!r} has messages to consume in queue {each.queue} of {topic!r}",
                        topic=topic, queue=each.queue, group=name,
                    )  # fmt: skip


class ShardsBroker(NetworkBroker):
    """Administers topics and groups on all shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._brokers: Sequence[NetworkBroker] = [NetworkBroker(shard) for shard in router.connections().values()]
        for name in OF_A_SHARD:
            setattr(self, name, partial(self._refuse, name))

    async def _refuse(self, name: str, *_: Any, **__: Any) -> Any:
        shards = len(self._brokers)
        raise InvalidArgument(
            f"`broker.{name}` is about one shard, and this cluster has {shards}, each with its own queues, offsets and dead "
            f"letters: call `store.shards[N].broker.{name}` with N from 0 to {shards - 1}, or connect to a shard (`eventstore "
            "cluster status` shows their addresses)",
            field="shard",
        )

    async def create_topic(self, topic: str, queues: int | None = None, *, if_missing: bool = False) -> bool:
        """As `NetworkBroker.create_topic`; each shard has this number of queues."""
        new = False
        for each in self._brokers:  # an earlier call may have failed after some of them
            new |= await each.create_topic(topic, queues, if_missing=True)
        if not new and not if_missing:
            await self._brokers[0].create_topic(topic, queues)  # says that it exists
        return new

    async def topics(self) -> list[TopicInfo]:
        """Lists all topics, with the queues of all shards."""
        found: dict[str, TopicInfo] = {}
        for each in self._brokers:
            for name, queues, open_queues in await each.topics():
                before = found.get(name, TopicInfo(name, 0, 0))
                found[name] = TopicInfo(name, before.queues + queues, before.open_queues + open_queues)
        return list(found.values())

    async def delete_topic(self, topic: str, *, ignore_unconsumed: bool = False) -> None:
        """As `NetworkBroker.delete_topic`. All shards are asked what is unconsumed before the first one deletes."""
        if not ignore_unconsumed:
            for each in self._brokers:
                await _check_consumed(each, topic)
        await self._delete(lambda each: each.delete_topic(topic, ignore_unconsumed=ignore_unconsumed), UnknownTopic)

    async def groups(self) -> list[GroupInfo]:
        """Lists all consumer groups. A member is one on every shard; `generation` is the largest of theirs."""
        found: dict[str, GroupInfo] = {}
        for each in self._brokers:
            for name, generation, members in await each.groups():
                before = found.get(name, GroupInfo(name, 0, 0))
                found[name] = GroupInfo(name, max(before.generation, generation), max(before.members, members))
        return list(found.values())

    async def delete_group(self, group: str) -> None:
        """As `NetworkBroker.delete_group`."""
        await self._delete(lambda each: each.delete_group(group), UnknownGroup)

    async def _delete(self, delete: Callable[[NetworkBroker], Any], unknown: type[EventStoreError]) -> None:
        """Deletes it wherever it is: an earlier call may have failed after some shards. Raises `unknown` if it is nowhere."""
        missing: list[EventStoreError] = []
        for each in self._brokers:
            try:
                await delete(each)
            except unknown as error:
                missing.append(error)
        if len(missing) == len(self._brokers):
            raise missing[0]

    async def retries(self, group: str) -> Retries:
        """As `NetworkBroker.retries`."""
        return await self._brokers[0].retries(group)

    async def set_retries(self, group: str, retries: Retries | None) -> None:
        """As `NetworkBroker.set_retries`."""
        for each in self._brokers:
            await each.set_retries(group, retries)

    async def forget_topic(self, group: str, topic: str) -> None:
        """As `NetworkBroker.forget_topic`."""
        for each in self._brokers:
            await each.forget_topic(group, topic)
