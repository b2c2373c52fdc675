"""The brokers of several shards, as one: each topic and group is on every shard.

What is about a topic or a group is asked of all shards, one after the other; where a change fails on one, repeat the call. A
shard is asked for the map after a change: it does not answer one of topics while it is being split, so that names the new
shards that may lack it. An offset and a dead letter mean something on their shard only: what takes one is for the broker of
that shard, `store.shards[number].broker`, unless there is only one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from eventstore.client.aio.broker import NetworkBroker
from eventstore.client.aio.limited import limited
from eventstore.client.aio.routing.router import Router
from eventstore.client.connection_errors import timed_out_after
from eventstore.errors import EventStoreError, InvalidArgument, TimedOut, Unconsumed, UnknownGroup, UnknownQueue, UnknownTopic
from eventstore.protocol.broker_info import (
    ChunkInfo,
    GroupInfo,
    GroupProgress,
    MemberInfo,
    MessageInHand,
    QueueInfo,
    ResetQueue,
    TopicInfo,
)
from eventstore.protocol.requests import Map
from eventstore.records.consumer_groups import Retries
from eventstore.records.message import Message

OF_A_SHARD: Final = ("dead_letters", "replay", "message_at", "offset_at", "pull")
"""The methods that name what is on one shard."""


class ShardsBroker(NetworkBroker):
    """Administers topics and groups on all shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        for name in OF_A_SHARD:
            setattr(self, name, partial(self._of_only, name))

    @property
    def _by_shard(self) -> dict[int, NetworkBroker]:
        return {number: NetworkBroker(shard) for number, shard in self._router.connections().items()}

    @property
    def connections(self) -> int:
        """As `NetworkBroker.connections`, of all shards together."""
        return sum(each.connections for each in self._by_shard.values())

    @property
    def _first(self) -> NetworkBroker:
        return next(iter(self._by_shard.values()))

    async def _of_only(self, name: str, *arguments: Any, **options: Any) -> Any:
        first, *others = self._by_shard.values()
        if others:
            raise self._about_one(name, f"`broker.{name}`")
        return await getattr(first, name)(*arguments, **options)

    def _about_one(self, name: str, what: str) -> InvalidArgument:
        shards = len(self._by_shard)
        return InvalidArgument(
            f"{what} is about one shard, and this cluster has {shards}, each with its own queues, offsets and dead "
            f"letters: call `store.shards[N].broker.{name}` with N from 0 to {shards - 1}, or connect to a shard (`eventstore "
            "cluster status` shows their addresses)",
            field="shard",
        )

    # ---- topics

    @limited
    async def create_topic(
        self, topic: str, queues: int | None = None, *, if_missing: bool = False, timeout: float | None = None
    ) -> bool:
        """As `NetworkBroker.create_topic`; each shard has this number of queues."""
        # an earlier call may have failed after some of them
        new = any((await self._everywhere(lambda each: each.create_topic(topic, queues, if_missing=True))).values())
        if not new and not if_missing:
            await self._first.create_topic(topic, queues)  # says that it exists
        return new

    @limited
    async def topics(self, *, timeout: float | None = None) -> list[TopicInfo]:
        """Lists all topics, with the queues of all shards."""
        found: dict[str, TopicInfo] = {}
        for each in self._by_shard.values():
            for name, queues, open_queues in await each.topics():
                before = found.get(name, TopicInfo(name, 0, 0))
                found[name] = TopicInfo(name, before.queues + queues, before.open_queues + open_queues)
        return list(found.values())

    @limited
    async def queues(self, topic: str, *, timeout: float | None = None) -> list[QueueInfo]:
        """As `NetworkBroker.queues`, those of each shard."""
        found = await self._wherever(lambda each: each.queues(topic), UnknownTopic)
        return [queue._replace(shard=number) for number, queues in found for queue in queues]

    @limited
    async def delete_topic(self, topic: str, *, ignore_unconsumed: bool = False, timeout: float | None = None) -> None:
        """As `NetworkBroker.delete_topic`. All shards are asked what is unconsumed before the first one deletes."""
        if not ignore_unconsumed:
            for number, each in self._by_shard.items():
                await _check_consumed(number, each, topic)
        await self._wherever(
            lambda each: each.delete_topic(topic, ignore_unconsumed=ignore_unconsumed), UnknownTopic, changes=True
        )

    @limited
    async def add_queues(self, topic: str, count: int, *, timeout: float | None = None) -> list[int]:
        """As `NetworkBroker.add_queues`, on each shard. One that an earlier call reached before it failed gets fewer."""
        ends = [await _end(each, topic) for each in self._by_shard.values()]
        wanted = max(*ends, min(ends) + count)

        async def add(broker: NetworkBroker) -> list[int]:
            end = await _end(broker, topic)
            return await broker.add_queues(topic, wanted - end) if end < wanted else []

        added = await self._everywhere(add)
        return sorted({number for numbers in added.values() for number in numbers})

    @limited
    async def close_queue(self, topic: str, queue: int, *, timeout: float | None = None) -> None:
        """As `NetworkBroker.close_queue`: the queue of this number on each shard."""
        await self._wherever(lambda each: each.close_queue(topic, queue), UnknownQueue, changes=True)

    @limited
    async def remove_queue(self, topic: str, queue: int, *, timeout: float | None = None) -> None:
        """As `NetworkBroker.remove_queue`: the queue of this number on each shard, if all of them are consumed."""
        for number, each in self._by_shard.items():
            await _check_consumed(number, each, topic, queue)
        await self._wherever(lambda each: each.remove_queue(topic, queue), UnknownQueue, changes=True)

    @limited
    async def chunks(self, after: int = 0, *, timeout: float | None = None) -> list[ChunkInfo]:
        """As `NetworkBroker.chunks`, those of each shard; `after` a number only if there is one shard."""
        if after and len(self._by_shard) > 1:
            raise self._about_one("chunks", "the number of a chunk")
        found = await self._of_each(lambda each: each.chunks(after))
        return [chunk._replace(shard=number if len(found) > 1 else None) for number, rows in found.items() for chunk in rows]

    # ---- groups

    @limited
    async def groups(self, *, timeout: float | None = None) -> list[GroupInfo]:
        """Lists all consumer groups. A member is one on every shard; `generation` is the largest of theirs."""
        found: dict[str, GroupInfo] = {}
        for each in self._by_shard.values():
            for name, generation, members in await each.groups():
                before = found.get(name, GroupInfo(name, 0, 0))
                found[name] = GroupInfo(name, max(before.generation, generation), max(before.members, members))
        return list(found.values())

    @limited
    async def group(self, group: str, *, timeout: float | None = None) -> GroupProgress:
        """As `NetworkBroker.group`, in the queues of each shard; `generation` as in `groups`."""
        found = await self._wherever(lambda each: each.group(group), UnknownGroup)
        queues = tuple(queue._replace(shard=number) for number, progress in found for queue in progress.queues)
        return GroupProgress(group, max(progress.generation for _, progress in found), queues)

    @limited
    async def members(self, group: str, *, timeout: float | None = None) -> list[MemberInfo]:
        """As `NetworkBroker.members`: the queues that each reads on all shards, and the shard that heard of it last."""
        found: dict[str, MemberInfo] = {}
        for _, members in await self._wherever(lambda each: each.members(group), UnknownGroup):
            for name, silent_ms, queues in members:
                before = found.get(name, MemberInfo(name, silent_ms, 0))
                found[name] = MemberInfo(name, min(before.silent_ms, silent_ms), before.queues + queues)
        return list(found.values())

    @limited
    async def in_hand(self, group: str | None = None, *, timeout: float | None = None) -> list[MessageInHand]:
        """As `NetworkBroker.in_hand`, over all shards."""
        found: dict[str, MessageInHand] = {}
        for number, held in await self._wherever(lambda each: each.in_hand(group), UnknownGroup):
            for each in held:
                if each.group not in found or each.held_ms > found[each.group].held_ms:
                    found[each.group] = each._replace(shard=number)
        return sorted(found.values(), key=lambda each: -each.held_ms)

    @limited
    async def delete_group(self, group: str, *, timeout: float | None = None) -> None:
        """As `NetworkBroker.delete_group`."""
        await self._wherever(lambda each: each.delete_group(group), UnknownGroup, changes=True)

    @limited
    async def retries(self, group: str, *, timeout: float | None = None) -> Retries:
        """As `NetworkBroker.retries`."""
        return await self._first.retries(group)

    @limited
    async def set_retries(self, group: str, retries: Retries | None, *, timeout: float | None = None) -> None:
        """As `NetworkBroker.set_retries`."""
        await self._everywhere(lambda each: each.set_retries(group, retries))

    @limited
    async def forget_topic(self, group: str, topic: str, *, timeout: float | None = None) -> None:
        """As `NetworkBroker.forget_topic`."""
        await self._wherever(lambda each: each.forget_topic(group, topic), UnknownGroup, changes=True)

    @limited
    async def reset(
        self, group: str, topic: str, to: str | int | datetime, *, queue: int | None = None, timeout: float | None = None
    ) -> list[ResetQueue]:
        """As `NetworkBroker.reset`, in all queues of each shard: to the start, the end, or a time."""
        if (queue is not None or to.__class__ is int) and len(self._by_shard) > 1:
            raise self._about_one("reset", "a reset of a queue, or to an offset,")
        found = await self._wherever(
            lambda each: each.reset(group, topic, to, queue=queue), UnknownGroup, UnknownTopic, changes=True
        )
        return [each._replace(shard=number) for number, queues in found for each in queues]

    # ---- messages

    @limited
    async def message(self, message_id: str, *, timeout: float | None = None) -> Message | None:
        """As `NetworkBroker.message`, on whichever shard it is."""
        for each in self._by_shard.values():
            found = await each.message(message_id)
            if found is not None:
                return found
        return None

    @limited
    async def messages_of_key(self, topic: str, key: str, limit: int = 64, *, timeout: float | None = None) -> list[Message]:
        """As `NetworkBroker.messages_of_key`, by their timestamps: before a split another shard had the key."""
        pages = await self._wherever(lambda each: each.messages_of_key(topic, key, limit), UnknownTopic)
        found = [message for _, page in pages for message in page]
        return sorted(found, key=lambda each: each.timestamp, reverse=True)[:limit]

    async def _wherever(
        self, call: Callable[[NetworkBroker], Any], *unknown: type[EventStoreError], changes: bool = False
    ) -> list[tuple[int | None, Any]]:
        """Makes the call at each shard that has what it names, and returns what each answered; its number: None of an only one.

        An earlier call may have failed after some shards; a topic of retries or dead letters is only where one was. Raises
        `unknown` if no shard has it. `changes`: see `_everywhere`.
        """

        async def made(broker: NetworkBroker) -> Any:
            try:
                return await call(broker)
            except unknown as error:
                return error

        all_made = self._everywhere if changes else self._of_each
        answers = await all_made(made)
        found = {number: each for number, each in answers.items() if not isinstance(each, EventStoreError)}
        if not found:
            raise next(iter(answers.values()))
        return [(number if len(answers) > 1 else None, each) for number, each in found.items()]

    async def _of_each(self, ask: Callable[[NetworkBroker], Any]) -> dict[int, Any]:
        return {number: await ask(each) for number, each in self._by_shard.items()}

    async def _everywhere(self, change: Callable[[NetworkBroker], Any]) -> dict[int, Any]:
        """Makes a change on each shard, and on those that are split off meanwhile. Returns what they answered."""
        found: dict[int, Any] = {}
        while missing := {number: each for number, each in self._router.connections().items() if number not in found}:
            for number, shard in missing.items():
                try:
                    found[number] = await change(NetworkBroker(shard))
                    self._router.learn(await shard.call(Map()))
                except TimedOut as over:
                    raise timed_out_after(over, changed=bool(found)) from None
        return found


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
