"""Consumers: what the members of a consumer group are for their users. For trio and asyncio."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from eventstore.client.connection import Connection
from eventstore.client.delivery import Delivery, Item, Mode, RawBatch, check_mode
from eventstore.client.membership import Membership
from eventstore.client.reader import Reader, check_interval
from eventstore.errors import Closed, InvalidArgument, again

# A handler that never waits keeps the event loop busy, and the member silent, unless it is made to wait now and then.
BUSY_SECONDS_MAX: Final = 0.05


class Consumer:
    """The messages of the queues that this member of a group reads: `async for message in consumer`.

    Each is a `Delivery`, to be finished by its `done` or `retry`, in any order. What is not finished is delivered again, to
    this or another member. When the queues are shared out anew, messages of a queue that went to another member are no longer
    handed out, and finishing them does nothing. Any number of tasks may iterate over one consumer.
    """

    def __init__(self, connection: Connection, reader: Reader, mode: Mode, commit_interval: float) -> None:
        check_mode(mode)
        check_interval(commit_interval)
        self._membership = Membership(connection, reader, mode, commit_interval)
        self._sequential = mode == "sequential"
        self._tasks: TaskGroup | None = None
        self._waiting = 0
        self._iterated = False
        self._pause_at = 0.0

    @property
    def member(self) -> str:
        """The name of this member of the group."""
        return self._membership.consumption.reader.member

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The queues that this member reads now, as (topic, queue)."""
        return [(window.topic, window.queue) for window in self._membership.consumption.windows]

    @property
    def generation(self) -> int | None:
        """The number of the allocation in which `assigned` is this member's; it grows with each. None while it is no member."""
        return self._membership.consumption.generation

    async def __aenter__(self) -> Self:
        """Joins the group.

        Raises:
            UnknownTopic
            InvalidArgument: a name or a limit; or other members want other tags of a topic.
            ConnectionLost
        """
        if self._tasks is not None or self._membership.error is not None:
            raise Closed("a consumer is entered once; make another one")
        self._tasks = await anyio.create_task_group().__aenter__()
        try:
            await self._membership.join()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self._tasks.start_soon(self._membership.speak)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Commits what was finished, and leaves the group; what was not finished is delivered again, to any member."""
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        self._membership.close()
        tasks.cancel_scope.cancel()
        try:
            if error is None or isinstance(error, Exception):  # kept out of the task group, which would wrap it
                await tasks.__aexit__(None, None, None)
                return None
            return await tasks.__aexit__(kind, error, trace)
        finally:
            await self._membership.leave()

    def __aiter__(self) -> Self:
        self._start(raw=False)
        return self

    async def __anext__(self) -> Delivery:
        item = self._membership.consumption.turns.take() if time.monotonic() < self._pause_at else None
        return cast(Delivery, item if item is not None else await self._next(raw=False))

    def batches(self) -> Batches:
        """Whole records of one queue at a time, undecoded, to be finished batch by batch: `async for batch in …`.

        A consumer hands out either messages or batches.
        """
        self._start(raw=True)
        return Batches(self)

    async def some(self) -> Sequence[Delivery]:
        """One message or more, as many as there are by now, up to a page: for those who handle many at once."""
        item = await self._next(raw=False)
        return cast("Sequence[Delivery]", [item, *self._membership.consumption.turns.take_some()])

    async def _next(self, *, raw: bool) -> Item:
        self._start(raw)
        if time.monotonic() >= self._pause_at:
            await anyio.lowlevel.checkpoint()  # before something is taken: it would be lost where this is cancelled
            self._pause_at = time.monotonic() + BUSY_SECONDS_MAX
        membership = self._membership
        turns, ledger = membership.consumption.turns, membership.ledger
        self._waiting += 1
        ledger.turn_awaited = self._sequential
        try:
            while True:
                changed = membership.changed
                if membership.error is not None:
                    raise again(membership.error)
                item = turns.take()
                if item is not None:
                    return item
                await changed.wait()
        finally:
            self._waiting -= 1
            ledger.turn_awaited = self._sequential and self._waiting > 0

    def _start(self, raw: bool) -> None:
        """Begins to pull: with the first that is asked for, since only then it is known what is wanted."""
        membership = self._membership
        if membership.error is not None:
            raise again(membership.error)
        if self._tasks is None:
            raise Closed("the consumer is not open; use `async with`")
        if not self._iterated:
            self._iterated = True
            membership.consumption.raw = raw
            self._tasks.start_soon(membership.fetch)
        elif membership.consumption.raw != raw:
            raise InvalidArgument("a consumer hands out either messages or batches; make another one", field="batches")


class Batches:
    """What `Consumer.batches` returns."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RawBatch:
        return cast(RawBatch, await self._consumer._next(raw=True))
