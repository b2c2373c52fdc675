"""A member of a group on each of several shards, whose messages are handed out together.

Each shard assigns its own queues, so limits, order and retries hold within a shard, where all messages of a key are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from eventstore.client.aio.connection import Connection
from eventstore.client.aio.member import Entered, Member
from eventstore.client.aio.routing.router import Router
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.routing.merging import RETRY_S, Away
from eventstore.errors import Closed, ConnectionLost, EventStoreError, InvalidArgument, copy_error


class ShardsMember(Entered):
    """As `Member`. A shard that is away holds up its own queues alone, and the log names it."""

    def __init__(self, router: Router, options: MemberOptions) -> None:
        super().__init__()
        self.options = options
        self._router = router
        self._members: dict[int, Member] = {}
        self._scopes: set[anyio.CancelScope] = set()
        self._left = False
        self._error: EventStoreError | None = None
        self._put, self._taken = anyio.create_memory_object_stream[Sequence[Delivery]](0)
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
        """None: each shard has a generation of its own."""
        return None

    async def _join(self, group: TaskGroup) -> None:
        shards = self._router.connections()
        away = Away(shards, "messages")
        for number, connection in shards.items():
            await group.start(self._consume, number, connection, away)

    async def _leave(self) -> None:
        self._put.close()
        self._taken.close()

    def _stop(self, group: TaskGroup | None = None) -> None:
        """Has every shard's member commit and leave, which cancelling the group would prevent."""
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
                    member.tell(partial(self._note, number, away))
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

    def _note(self, number: int, away: Away, error: EventStoreError | None) -> None:
        """Has the log say that a member waits for its shard, which it does by itself, or has reached it again."""
        if error is None:
            away.found(number)
        elif isinstance(error, ConnectionLost):
            with suppress(ConnectionLost):  # raised if all are away: they are waited for all the same
                away.lost(number, error)

    def _lost(self, number: int, away: Away, error: EventStoreError) -> None:
        """Waits for a shard that is away; ends the consumer by any other error, or if all are away."""
        try:
            if not isinstance(error, ConnectionLost):
                raise error
            away.lost(number, error)
        except EventStoreError as ending:
            self._error = self._error or ending
            self._stop()
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


def shards_member(router: Router, options: MemberOptions) -> Member | ShardsMember:
    """Returns a member of the group on all shards."""
    return ShardsMember(router, options) if router.has_several else Member(router.only("a broker"), options)
