"""A member of a group on each of several shards, whose messages are handed out together.

Each shard assigns its own queues, so limits, order and retries hold within a shard, where all messages of a key are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from eventstore.client.aio.connection import Connection
from eventstore.client.aio.member import Member
from eventstore.client.aio.routing.router import Router
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import ended_consumer
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.routing.merging import RETRY_S, Away
from eventstore.errors import Closed, ConnectionLost, EventStoreError, InvalidArgument, copy_error


class ShardsMember:
    """As `Member`. A shard that is away holds up its own queues alone, and the log says so."""

    def __init__(self, router: Router, options: MemberOptions) -> None:
        self.options = options
        self._router = router
        self._members: dict[int, Member] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._group: TaskGroup | None = None
        self._left = False
        self._error: EventStoreError | None = None
        self._put, self._taken = anyio.create_memory_object_stream[Sequence[Delivery]](0)
        self._page: Iterator[Delivery] = iter(())
        self._last: Delivery | None = None  # handed out last by an iteration

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
        """None: each shard has a generation of its own."""
        return None

    async def __aenter__(self) -> Self:
        if self._group is not None or self._left:
            raise Closed("a consumer is entered once; make another one")
        shards = self._router.several()
        away = Away(len(shards))
        self._group = await anyio.create_task_group().__aenter__()
        try:
            for number, connection in shards.items():
                await self._group.start(self._consume, number, connection, away)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        group, self._group = self._group, None
        assert group is not None
        if not self.failed:
            ended_consumer(self._last, error)
        self._leave()
        try:
            if error is None or isinstance(error, Exception):  # kept out of the task group, which would wrap it
                await group.__aexit__(None, None, None)
                return None
            return await group.__aexit__(kind, error, trace)
        finally:
            self._put.close()
            self._taken.close()

    def _leave(self) -> None:
        """Has every shard's member commit and leave."""
        self._left = True
        for scope in self._scopes:
            scope.cancel()

    async def _consume(
        self, number: int, connection: Connection, away: Away, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Hands over the messages of a shard until the consumer is left, or ends by an error."""
        joined = False
        while not self._left:
            try:
                async with Member(connection, self.options) as member:
                    self._members[number] = member
                    away.found(number)
                    if not joined:
                        joined = True
                        task_status.started()
                    await self._until_left(self._hand_over, member)
            except EventStoreError as error:
                if not joined:
                    raise
                self._lost(number, away, error)
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

    async def _hand_over(self, member: Member) -> None:
        while True:
            await self._put.send(await member.some())

    def _lost(self, number: int, away: Away, error: EventStoreError) -> None:
        """Waits for a shard that is away; ends the consumer by any other error, or if all are away."""
        try:
            if not isinstance(error, ConnectionLost):
                raise error
            away.lost(number, error)
        except EventStoreError as ending:
            self._error = self._error or ending
            self._leave()
            self._put.close()

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Returns the messages, one by one."""
        if self._group is None:
            raise Closed("the consumer is not open; use `async with`")
        return self

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            for message in self._page:
                if message.is_mine:
                    self._last = message
                    return message
            self._page = iter(await self.some())

    def batches(self) -> AsyncIterator[RawBatch]:
        """Raises InvalidArgument: batches are of one shard."""
        raise InvalidArgument("batches are of one shard: use the consumer of each of `store.shards`", field="batches")

    async def some(self) -> Sequence[Delivery]:
        """Returns the messages of a shard that have arrived, at least one."""
        try:
            return await self._taken.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise copy_error(self._error or Closed("the consumer is not open; use `async with`")) from None


def shards_member(router: Router, options: MemberOptions) -> ShardsMember:
    """Returns a member of the group on all shards."""
    return ShardsMember(router, options)
