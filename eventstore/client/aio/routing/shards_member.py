"""A member of a group on each shard of a cluster, whose messages are handed out together.

Each shard assigns its own queues, so limits, order and retries hold within a shard, where all messages of a key are. What may
kill the process is handed out alone, of all shards (`turns`). A new shard is joined as soon as the router knows of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.member import Entered, NetworkMember, both_asked_for
from eventstore.client.aio.routing.router import Router
from eventstore.client.consumer.delivery import Delivery, DeliveryItem, RawBatch
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.stopping import ConsumerStopped
from eventstore.client.consumer.turns import Turns
from eventstore.client.limit import seconds_of, within
from eventstore.client.routing.merging import RETRY_S, Away
from eventstore.errors import (
    Closed,
    ConnectionLost,
    EventStoreError,
    PermissionDenied,
    UnknownGroup,
    UnknownTopic,
    copy_error,
)
from eventstore.protocol.group_requests import ShowGroup


class ShardsMember(Entered):
    """As `NetworkMember`. A shard that is away holds up its own queues alone, and the log names it."""

    def __init__(self, router: Router, options: MemberOptions) -> None:
        super().__init__()
        self.options = options
        self._from_start = replace(options, from_end=False)  # where all messages are new to the group
        self._router = router
        self._members: dict[int, NetworkMember] = {}
        self._turns = Turns()
        self._scopes: set[anyio.CancelScope] = set()
        self._left = False
        self._away = Away((), "messages")
        self._shards = set[int]()
        self._tasks: TaskGroup | None = None
        self._error: EventStoreError | None = None
        self._raw: bool | None = None
        self._asked = anyio.Event()  # for messages or batches: only then it is known which ones are to be fetched
        self._put, self._taken = anyio.create_memory_object_stream[Sequence[DeliveryItem]](0)
        self._page: Iterator[Delivery] = iter(())

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The assigned queues of all shards, as (topic, queue): a pair is there once for each shard that assigns it."""
        return [queue for member in self._members.values() for queue in member.assigned]

    @property
    def failed(self) -> bool:
        """Whether it was ended by an error of its own."""
        return self._error is not None

    @property
    def generation(self) -> int | None:
        """That of the only shard; None: each has a generation of its own."""
        members = list(self._members.values())
        return members[0].generation if len(members) == len(self._shards) == 1 else None

    async def _join(self, group: TaskGroup) -> None:
        shards = self._router.connections()
        self._tasks, self._shards = group, set(shards)
        self._away.follow(shards)
        new = await self._new_to_the_group(shards)  # before this member joins any
        for number, connection in shards.items():
            await group.start(self._consume, number, connection, self._from_start if number in new else self.options)
        self._router.followers.append(self)
        self.map_changed()  # of what was split meanwhile

    async def _new_to_the_group(self, shards: Mapping[int, NetworkConnection]) -> set[int]:
        """Returns the shards that were split off from one where the group is known, and where it is not known yet: all that is
        there is new to the group then, also if it begins at the end.
        """
        splits, new = self._router.table.known.splits, set[int]()
        if not self.options.from_end or not splits:
            return new
        known = {number for number, connection in shards.items() if await self._is_known(connection)}
        for split in splits:  # a shard is split off before it is split
            if split.parent in known | new and split.child not in known:
                new.add(split.child)
        return new

    async def _is_known(self, connection: NetworkConnection) -> bool:
        try:
            await connection.call(ShowGroup(self.options.group, 0))
        except (UnknownGroup, PermissionDenied):
            return False
        return True

    def map_changed(self) -> None:
        """Joins on the shards that splits have made, too."""
        shards = self._router.connections()
        self._away.follow(shards)
        for number in shards.keys() - self._shards:
            self._shards.add(number)
            if self._tasks is not None and not self._left:
                self._tasks.start_soon(self._consume, number, shards[number], self._from_start, True)

    async def _leave(self) -> None:
        with suppress(ValueError):
            self._router.followers.remove(self)
        self._put.close()
        self._taken.close()

    def _stop(self) -> None:
        """Has every shard's member commit and leave, which cancelling the group would prevent."""
        self._left = True
        for scope in self._scopes:
            scope.cancel()

    async def _consume(
        self,
        number: int,
        connection: NetworkConnection,
        options: MemberOptions,
        joined: bool = False,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hands over the messages of a shard until the consumer is left, or ends by an error. `joined`: the shard was split off
        while the group was there, and is waited for from the beginning.
        """
        while not self._left:
            try:
                async with NetworkMember(connection, options, self._turns) as member:
                    self._members[number] = member
                    self._away.found(number)
                    member.tell(partial(self._note, number))
                    if not joined:
                        joined = True
                        task_status.started()
                    await self._until_left(self._hand_over, member)
            except EventStoreError as error:
                if not joined:
                    raise
                self._lost(number, error)
                await self._until_left(anyio.sleep, RETRY_S)
            finally:
                self._members.pop(number, None)

    async def _until_left(self, work: Any, *arguments: Any) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self._left:
                    await work(*arguments)
            finally:
                self._scopes.discard(scope)

    async def _hand_over(self, member: NetworkMember) -> None:
        await self._asked.wait()
        while True:
            await self._put.send([await member.next(raw=True)] if self._raw else await member.some())

    def _note(self, number: int, error: EventStoreError | None) -> None:
        """Has the log say that a member waits for its shard, which it does by itself, or has reached it again."""
        if error is None:
            self._away.found(number)
        elif isinstance(error, ConnectionLost):
            with suppress(ConnectionLost):  # raised if all are away: they are waited for all the same
                self._away.lost(number, error)

    def _lost(self, number: int, error: EventStoreError) -> None:
        """Waits for a shard that is away, or lacks a topic that others have: it was split while that was created. Ends the
        consumer by any other error, or if all are away.
        """
        try:
            if not isinstance(error, ConnectionLost) and not (isinstance(error, UnknownTopic) and self._members):
                raise error
            self._away.lost(number, error)
        except EventStoreError as ending:
            self._error = self._error or ending
            self._stop()
            self._put.close()

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Returns the messages, one by one."""
        self._begin(raw=False)
        return self

    def _begin(self, *, raw: bool) -> None:
        if self._group is None:
            raise Closed("the consumer was closed" if self._tasks else "the consumer is not open; use `async with`")
        if self._raw is None:
            self._raw = raw
            self._asked.set()
        elif self._raw != raw:
            raise both_asked_for()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            if self.stopped:
                raise StopAsyncIteration
            for message in self._page:
                if message.is_mine:
                    self.last = message
                    return message
            try:
                self._page = iter(await self.some())
            except ConsumerStopped:
                raise StopAsyncIteration from None

    def batches(self) -> AsyncIterator[RawBatch]:
        """Returns the messages as raw batches."""
        self._begin(raw=True)
        return _Batches(self)

    async def some(self) -> Sequence[Delivery]:
        """Returns the messages of a shard that have arrived, at least one. Raises as `NetworkMember.next`."""
        self._begin(raw=False)
        return cast("Sequence[Delivery]", await self._received())

    async def _received(self) -> Sequence[DeliveryItem]:
        try:
            with within(seconds_of(None, self.timeout_s)):
                return await self._wait(self._taken.receive)
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise copy_error(self._error or Closed("the consumer was closed")) from None


class _Batches:
    def __init__(self, member: ShardsMember) -> None:
        self._member = member

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RawBatch:
        try:
            while True:
                for batch in cast("Sequence[RawBatch]", await self._member._received()):  # one
                    if batch.is_mine:
                        return batch
        except ConsumerStopped:
            raise StopAsyncIteration from None
