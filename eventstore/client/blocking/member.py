"""A member of a consumer group as the blocking consumer uses it: the async member, on an event loop in a thread.

A member has to send heartbeats while its user handles a message, so the async member's tasks run in another thread, on a
separate connection. This is the only module of the blocking client that imports anyio, when a
consumer is entered.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import ended_consumer
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.errors import Closed, copy_error
from eventstore.forks import of_parent, tell_of_forks

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from eventstore.client.aio.member import NetworkMember as AsyncMember
    from eventstore.client.aio.routing.shards_member import ShardsMember

T = TypeVar("T")
_BEGIN_S_MAX: Final = 1.0  # for a thread whose start was interrupted; it may be that it does not begin


class BlockingMember:
    """Runs an async member in a thread while it is entered. Takes address and options of `connection`, but not its socket."""

    def __init__(self, connection: BlockingConnection, options: MemberOptions) -> None:
        self.options = options
        self._connection = connection
        self._thread: _MemberThread | None = None
        self._running: tuple[BlockingPortal, AsyncMember | ShardsMember] | None = None
        self._some: Iterator[Delivery] = iter(())
        self._last: Delivery | None = None  # handed out last by an iteration; a run counts failures itself
        self._future: Future[Any] | None = None
        self._waiting: int | None = None  # the thread that waits for it
        self._stopped = False
        self._not_open = Closed("the consumer is not open; use `with`")
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, where its thread does not exist: refuses to go on, and has nothing to leave."""
        thread, self._thread, self._running = self._thread, None, None
        if thread is None:
            return
        self._not_open = of_parent("the consumer", "make another one here")
        self._some = iter(())
        thread.forked(copy_error(self._not_open))
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
        if self._running is not None:
            raise Closed("a consumer is entered once; make another one")
        self._thread = thread = _MemberThread(self._connection, self.options)
        self._running = thread.enter()
        if self._thread is None:  # this is a child: its parent forked in a signal's handler, after the member had joined
            self._running = None
            raise copy_error(self._not_open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            if error is not None and self._running is not None and not self._running[1].failed:
                ended_consumer(self._last, error)
            self._running = None
            self._some = iter(())
        finally:
            if self._thread is not None:
                self._thread.leave()
                self._thread = None
        return None

    def deliveries(self) -> Iterator[Delivery]:
        """Returns the messages, one by one."""
        return _Deliveries(self)

    def next(self) -> Delivery:
        """Waits for the next message and returns it. Each crossing of threads fetches as many as have arrived."""
        while True:
            for message in self._some:
                if message.is_mine:
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
    def __init__(self, member: BlockingMember) -> None:
        self._member = member

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        self._member._last = message = self._member.next()
        return message


class _MemberThread:
    """A thread with an event loop, in which a member is entered and left.

    An exception of a signal handler, at any point, has the member leave. (anyio's own thread with a portal would be waited for
    without end if it were interrupted while it begins.)
    """

    def __init__(self, connection: BlockingConnection, options: MemberOptions) -> None:
        self._connection = connection
        self._options = options
        self._entered = Future[tuple["BlockingPortal", "AsyncMember | ShardsMember"]]()
        self._end: Callable[[], object] | None = None
        self._has_begun, self._has_ended, self._is_left = threading.Event(), Future[None](), False
        self._waiting: int | None = None  # the thread that waits for it
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"consumer {options.member}", daemon=True)

    def enter(self) -> tuple[BlockingPortal, AsyncMember | ShardsMember]:
        """Returns the member once it has joined, and what runs calls in its thread. Raises what joining raises."""
        self._waiting = threading.get_ident()
        try:
            self._thread.start()
            return self._entered.result()
        except BaseException:
            self._leave()
            raise
        finally:
            self._waiting = None

    def forked(self, error: BaseException) -> None:
        """In a child, where there is nothing to leave: a join that waits raises the error, and a leave that waits returns."""
        self._end = lambda: None
        if self._waiting == threading.get_ident():  # in a signal's handler
            with suppress(InvalidStateError):
                self._entered.set_exception(error)
            with suppress(InvalidStateError):
                self._has_ended.set_result(None)

    def leave(self) -> None:
        """Returns once the member has left."""
        self._leave()
        if self._error is not None:
            raise self._error

    def _leave(self) -> None:
        self._waiting = threading.get_ident()
        try:
            self._end_and_wait()
        finally:  # again, if that was interrupted: it takes no longer than a member has to leave
            self._end_and_wait()

    def _end_and_wait(self) -> None:
        self._is_left = True
        if self._end is not None:
            self._end()
        if self._has_begun.wait(_BEGIN_S_MAX):
            self._has_ended.result()  # `join` takes a thread for ended once it was interrupted (Python 3.11)

    def _run(self) -> None:
        import anyio

        self._has_begun.set()
        try:
            anyio.run(self._enter_and_leave, backend="asyncio")
        except BaseException as error:
            self._failed(error)
        finally:
            self._has_ended.set_result(None)

    def _failed(self, error: BaseException) -> None:
        if self._entered.done():
            self._error = error
        else:
            self._entered.set_exception(error)

    async def _enter_and_leave(self) -> None:
        import anyio
        from anyio.from_thread import BlockingPortal

        ended, scope = anyio.Event(), anyio.CancelScope()

        def end() -> None:
            ended.set()
            if not self._entered.done():
                scope.cancel()

        def end_soon() -> None:
            with suppress(RuntimeError):  # it has ended
                portal.start_task_soon(end)

        async with BlockingPortal() as portal:
            self._end = end_soon
            if self._is_left:
                return
            try:
                with scope:
                    async with _open(self._connection, self._options) as member:
                        self._entered.set_result((portal, member))
                        await ended.wait()
            except BaseException as error:  # raised from here, the portal would wrap it in a group
                self._failed(error)


@asynccontextmanager
async def _open(connection: BlockingConnection, options: MemberOptions) -> AsyncIterator[AsyncMember | ShardsMember]:
    from eventstore.client.aio.connection import NetworkConnection as AsyncConnection
    from eventstore.client.aio.member import NetworkMember as AsyncMember
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
