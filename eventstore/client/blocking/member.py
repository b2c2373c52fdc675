"""A member of a consumer group as the blocking consumer uses it: the async member, on an event loop in a thread.

A member has to send heartbeats while its user handles a message, so the async member's tasks run in another thread, on a
separate connection. This is the only module of the blocking client that imports anyio, when a
consumer is entered.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from eventstore.client.blocking.connection import Connection
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import ended_consumer
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.errors import Closed, copy_error
from eventstore.forks import of_parent, tell_of_forks

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from eventstore.client.aio.member import Member as AsyncMember
    from eventstore.client.aio.routing.shards_member import ShardsMember

T = TypeVar("T")


class Member:
    """Runs an async member in a thread while it is entered. Takes address and options of `connection`, but not its socket."""

    def __init__(self, connection: Connection, options: MemberOptions) -> None:
        self.options = options
        self._connection = connection
        self._stack = ExitStack()
        self._running: tuple[BlockingPortal, AsyncMember | ShardsMember] | None = None
        self._some: Iterator[Delivery] = iter(())
        self._last: Delivery | None = None  # handed out last
        self._future: Future[Any] | None = None
        self._waiting: int | None = None  # the thread that waits for it
        self._stopped = False
        self._not_open = Closed("the consumer is not open; use `with`")
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, where its thread does not exist: refuses to go on, and has nothing to leave."""
        if self._running is None:
            return
        self._not_open = of_parent("the consumer", "make another one here")
        portal, self._running = self._running[0], None
        with suppress(StopIteration, RuntimeError):  # it never waits; whoever ends the thread, a finalizer too, finds it ended
            portal.stop().send(None)
        self._some, self._stack = iter(()), ExitStack()
        if self._future is not None and self._waiting == threading.get_ident():  # in a signal's handler
            with suppress(InvalidStateError):
                self._future.set_exception(copy_error(self._not_open))

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The assigned queues, as (topic, queue)."""
        return self._running[1].assigned if self._running is not None else []

    @property
    def generation(self) -> int | None:
        """The generation of the assignment."""
        return self._running[1].generation if self._running is not None else None

    def __enter__(self) -> Self:
        from anyio.from_thread import start_blocking_portal

        if self._running is not None:
            raise Closed("a consumer is entered once; make another one")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            member = stack.enter_context(portal.wrap_async_context_manager(_open(self._connection, self.options)))
            self._stack = stack.pop_all()
        self._running = portal, member
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None and self._running is not None and not self._running[1].failed:
            ended_consumer(self._last, error)
        self._running = None
        self._some = iter(())
        self._stack.close()
        return None

    def deliveries(self) -> Iterator[Delivery]:
        """Returns the messages, one by one."""
        return _Deliveries(self)

    def next(self) -> Delivery:
        """Waits for the next message and returns it. Each crossing of threads fetches as many as have arrived."""
        while True:
            for message in self._some:
                if message.is_mine:
                    self._last = message
                    return message
            self._some = iter(self.some())

    def batches(self) -> Iterator[RawBatch]:
        """Returns the messages as raw batches."""
        while True:
            yield self._run(lambda member: anext(member.batches()))

    def some(self) -> Sequence[Delivery]:
        """Returns the messages that have arrived, at least one."""
        return self._run(lambda member: member.some())

    def _run(self, start: Callable[[AsyncMember | ShardsMember], Awaitable[T]]) -> T:
        """Runs a coroutine in the other thread and returns its result. If interrupted, cancels it: nothing is handed out."""
        if self._running is None:
            raise copy_error(self._not_open)
        portal, member = self._running
        future = self._future = portal.start_task_soon(start, member)
        try:
            self._waiting = threading.get_ident()
            if self._stopped:  # before there was a future to cancel
                future.cancel()
            result: T = future.result()
            return result
        except BaseException:
            future.cancel()
            raise
        finally:
            self._waiting = None

    def stop_waiting(self) -> None:
        """Ends waiting for messages, from another thread and for good: the thread that waits gets a CancelledError."""
        self._stopped = True
        if self._future is not None:
            self._future.cancel()


class _Deliveries:
    def __init__(self, member: Member) -> None:
        self._member = member

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        return self._member.next()


@asynccontextmanager
async def _open(connection: Connection, options: MemberOptions) -> AsyncIterator[AsyncMember | ShardsMember]:
    from eventstore.client.aio.connection import Connection as AsyncConnection
    from eventstore.client.aio.member import Member as AsyncMember
    from eventstore.client.aio.routing.router import is_entry, open_router
    from eventstore.client.aio.routing.shards_member import ShardsMember

    async with AsyncConnection(connection.addresses, connection.options) as own:
        if not is_entry(own):
            async with AsyncMember(own, options) as member:
                yield member
            return
        router = await open_router(own)
        try:
            async with ShardsMember(router, options) as found:
                yield found
        finally:
            router.close()
