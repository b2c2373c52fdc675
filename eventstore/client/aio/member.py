"""A member of a consumer group as its consumer uses it: joins, hands out messages, and leaves. For trio and asyncio."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from eventstore.client.aio.background import Background
from eventstore.client.aio.cancellation import is_cancellation
from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import in_time
from eventstore.client.aio.members.member_tasks import MemberTasks
from eventstore.client.aio.this_loop import of_another_loop, this_loop
from eventstore.client.consumer.delivery import Delivery, DeliveryItem, RawBatch
from eventstore.client.consumer.handling import ended_consumer
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.stopping import ConsumerStopped
from eventstore.client.consumer.turns import Turns
from eventstore.client.limit import seconds_of, within
from eventstore.errors import Closed, EventStoreError, InvalidArgument, copy_error

T = TypeVar("T")
# A handler that never waits keeps the event loop busy, and the member silent, unless it is made to wait now and then.
BUSY_SECONDS_MAX: Final = 0.05


class Entered(ABC):
    """What a member of one shard or of several is as a context: entered once, with a task group while it is."""

    def __init__(self) -> None:
        self._background: Background | None = None
        self._group: TaskGroup | None = None
        self._was_entered = False
        self._loop_now: Callable[[], object] = lambda: None
        self._loop: object = None  # that it was entered in
        self.last: Delivery | None = None  # handed out last by an iteration; a run counts failures itself
        self.timeout_s: float | None = None  # to wait for a message
        self.stopped = False
        self._waits: set[anyio.CancelScope] = set()

    def stop(self) -> None:
        """Hands out nothing more: what waits for messages raises ConsumerStopped."""
        self.stopped = True
        for each in self._waits:
            each.cancel()

    async def _wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Waits for a message. Raises ConsumerStopped, TimedOut, Closed."""
        self._check_loop()
        if not self.stopped:
            with anyio.CancelScope() as scope:
                self._waits.add(scope)
                try:
                    return await in_time(wait)
                finally:
                    self._waits.discard(scope)
        raise ConsumerStopped

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether the member was ended by an error of its own."""

    @abstractmethod
    async def _join(self, group: TaskGroup) -> None:
        """Joins the group of consumers, and begins its tasks."""

    @abstractmethod
    def _stop(self) -> None:
        """Has the tasks end."""

    @abstractmethod
    async def _leave(self) -> None:
        """Leaves the group of consumers, once the tasks have ended."""

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise Closed("a consumer is entered once; make another one")
        self._was_entered = True
        here = this_loop()
        self._loop_now, self._loop = here.now, here.now()
        self._background = await Background(self._stop).begun()
        self._group = self._background.group
        try:
            await self._join(self._group)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    def _check_loop(self) -> None:
        if self._loop_now() is not self._loop:
            raise of_another_loop("the consumer")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._check_loop()
        background, self._background = self._background, None
        assert background is not None
        if error is not None and not self.failed and not is_cancellation(error):
            ended_consumer(self.last, error)
        try:
            await background.end()
        finally:
            self._group = None
            await self._leave()


class NetworkMember(Entered):
    """Runs the tasks of a member while it is entered."""

    def __init__(self, connection: NetworkConnection, options: MemberOptions, turns: Turns | None = None) -> None:
        """`turns`: of the members of the same consumer on all shards."""
        super().__init__()
        self.options = options
        self._turns = turns or Turns()
        self._tasks = MemberTasks(connection, options, self._turns)
        self._state = self._tasks.state
        self._in_order = self._state.ready.in_order
        self._waiting = 0
        self._fetching = False
        self._pause_at = 0.0

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The assigned queues, as (topic, queue)."""
        return [(window.topic, window.queue) for window in self._state.windows]

    @property
    def failed(self) -> bool:
        """Whether the member was ended by an error of its own."""
        return self._tasks.error is not None

    @property
    def generation(self) -> int | None:
        """The generation of the assignment."""
        return self._state.generation

    def tell(self, trouble: Callable[[EventStoreError | None], None]) -> None:
        """Calls it with each error after which the member tries again, and with None when it has succeeded."""

        def told(error: EventStoreError | None) -> None:
            trouble(error)
            self._turns.away(self._state.suspects, error is not None)

        self._tasks.trouble = told

    async def _join(self, group: TaskGroup) -> None:
        await self._tasks.join()
        group.start_soon(self._tasks.report)
        if self._in_order:
            group.start_soon(self._tasks.suspended.hand_out_again)

    def _stop(self) -> None:
        self._tasks.close()
        if self._group is not None:
            self._group.cancel_scope.cancel()

    async def _leave(self) -> None:
        await self._tasks.leave()

    def deliveries(self) -> AsyncIterator[Delivery]:
        """Returns the messages, one by one."""
        self._start(raw=False)
        return _Deliveries(self)

    def batches(self) -> AsyncIterator[RawBatch]:
        """Returns the messages as raw batches."""
        self._start(raw=True)
        return _Batches(self)

    async def some(self) -> Sequence[Delivery]:
        """Returns the messages that have arrived, at least one. Raises as `next`."""
        item = await self.next(raw=False)
        return cast("Sequence[Delivery]", [item, *self._state.ready.take_some()])

    async def next(self, *, raw: bool) -> DeliveryItem:
        """Waits for the next item and returns it. Raises ConsumerStopped; TimedOut: it can be called again."""
        with within(seconds_of(None, self.timeout_s)):
            return await self._next(raw=raw)

    async def _next(self, *, raw: bool) -> DeliveryItem:
        self._start(raw)
        if time.monotonic() >= self._pause_at:
            await anyio.lowlevel.checkpoint()  # before an item is taken: it would be lost if this were cancelled
            self._pause_at = time.monotonic() + BUSY_SECONDS_MAX
        tasks, ready, tracker = self._tasks, self._state.ready, self._tasks.tracker
        self._waiting += 1
        tracker.turn_awaited = self._in_order
        try:
            while True:
                changed = tasks.changed
                if tasks.error is not None:
                    raise copy_error(tasks.error)
                if self.stopped:
                    raise ConsumerStopped
                item = ready.take()
                if item is not None:
                    return item
                await self._wait(changed.wait)
        finally:
            self._waiting -= 1
            tracker.turn_awaited = self._in_order and self._waiting > 0

    def _start(self, raw: bool) -> None:
        """Begins to fetch, with the first use: only then it is known whether messages or batches are wanted."""
        if self._tasks.error is not None:
            raise copy_error(self._tasks.error)
        if self._group is None:
            raise Closed("the consumer is not open; use `async with`")
        if not self._fetching:
            self._fetching = True
            self._state.raw = raw
            self._group.start_soon(self._tasks.fetch)
        elif self._state.raw != raw:
            raise both_asked_for()


def both_asked_for() -> InvalidArgument:
    """Returns the error of one who asks a consumer for messages and for batches."""
    return InvalidArgument("a consumer hands out either messages or batches; make another one", field="batches")


class _Deliveries:
    def __init__(self, member: NetworkMember) -> None:
        self._member = member

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        member = self._member
        if member.stopped:
            raise StopAsyncIteration
        item = member._state.ready.take() if time.monotonic() < member._pause_at else None
        try:
            member.last = last = cast(Delivery, item if item is not None else await member.next(raw=False))
        except ConsumerStopped:
            raise StopAsyncIteration from None
        return last


class _Batches:
    def __init__(self, member: NetworkMember) -> None:
        self._member = member

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RawBatch:
        try:
            return cast(RawBatch, await self._member.next(raw=True))
        except ConsumerStopped:
            raise StopAsyncIteration from None
