"""A member of a consumer group as the blocking consumer uses it: the async member, on an event loop in a thread.

A member has to send heartbeats while its user handles a message, so the async member's tasks run in another thread, on a
separate connection. This is the only module of the blocking client that imports anyio, when a
consumer is entered.

The handler of a signal may raise, or fork, within any line of a call. So the thread of the user waits for the other one by a
`_Latch` alone, and whatever it finds after a wait holds in a child as well.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeAlias, TypeVar

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import ended_consumer
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.errors import Closed, copy_error
from eventstore.forks import of_parent, tell_of_forks

if TYPE_CHECKING:
    from anyio import CancelScope

    from eventstore.client.aio.member import NetworkMember as AsyncMember
    from eventstore.client.aio.routing.shards_member import ShardsMember

    Member: TypeAlias = AsyncMember | ShardsMember

T = TypeVar("T")
_BEGIN_S_MAX: Final = 1.0  # for a thread whose start was interrupted; it may be that it does not begin


class BlockingMember:
    """Runs an async member in a thread while it is entered. Takes address and options of `connection`, but not its socket."""

    def __init__(self, connection: BlockingConnection, options: MemberOptions) -> None:
        self.options = options
        self._connection = connection
        self._thread: _MemberThread | None = None
        self._running: Member | None = None
        self._some: Iterator[Delivery] = iter(())
        self._last: Delivery | None = None  # handed out last by an iteration; a run counts failures itself
        self._not_open = Closed("the consumer is not open; use `with`")
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, where its thread does not exist: refuses to go on, and has nothing to leave."""
        thread, self._thread, self._running = self._thread, None, None
        if thread is None:
            return
        self._not_open = of_parent("the consumer", "make another one here")
        self._some = iter(())
        thread.forked(self._not_open)

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The assigned queues, as (topic, queue)."""
        member = self._running
        return member.assigned if member is not None else []

    @property
    def generation(self) -> int | None:
        """The generation of the assignment."""
        member = self._running
        return member.generation if member is not None else None

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
        member, thread = self._running, self._thread
        try:
            if error is not None and member is not None and not member.failed:
                ended_consumer(self._last, error)
            self._running = None
            self._some = iter(())
        finally:
            if thread is not None:
                thread.leave()
                self._thread = None  # not before: a fork is told to it
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

    def _run(self, start: Callable[[Member], Awaitable[T]]) -> T:
        """Runs a coroutine in the other thread and returns its result. If interrupted, cancels it: nothing is handed out."""
        thread, member = self._thread, self._running
        if thread is None or member is None:
            raise copy_error(self._not_open)
        return thread.run(lambda: start(member))

    def stop_waiting(self) -> None:
        """Ends waiting for messages, from another thread and for good: the thread that waits gets a CancelledError."""
        thread = self._thread
        if thread is not None:
            thread.stop_waiting()


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
        self._begun, self._settled, self._ended = _Latch(), _Latch(), _Latch()  # settled: it has joined, or never will
        self._is_left = self._is_stopped = False
        self._call_soon: Callable[[Callable[[], object]], object] | None = None
        self._end: Callable[[], object] = lambda: None
        self._begin: Callable[[_Call[Any]], object] = lambda call: None
        self._call: _Call[Any] | None = None  # the last
        self._member: Member | None = None
        self._refusal: BaseException | None = None  # why it does not join, or does not go on in this process
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"consumer {options.member}", daemon=True)

    def enter(self) -> Member:
        """Returns the member once it has joined. Raises what joining raises."""
        try:
            if self._refusal is None:
                start_new_thread(self._start, ())
            self._settled.wait()
            if self._refusal is not None:
                raise self._refusal
            assert self._member is not None
            return self._member
        except BaseException:
            self._leave()
            raise

    def forked(self, error: Closed) -> None:
        """In a child, where there is nothing to leave: a join or call under way raises the error, and a leave returns."""
        self._refusal, self._call_soon = copy_error(error), None
        for each in (self._begun, self._settled, self._ended):
            each.set()
        if self._call is not None:
            self._call.end(copy_error(error))

    def leave(self) -> None:
        """Returns once the member has left."""
        self._leave()
        if self._error is not None:
            raise self._error

    def run(self, start: Callable[[], Awaitable[T]]) -> T:
        """Runs a coroutine in the thread and returns its result."""
        self._call = call = _Call(start)
        try:
            if self._ended.is_set:
                call.end(self._refusal or Closed("the consumer is not open; use `with`"))
            if self._is_stopped:
                call.end(CancelledError())
            self._soon(lambda: self._begin(call))
            return call.result()
        except BaseException as error:  # of the call, or of a signal's handler
            call.end(error)
            self._soon(call.cancel)
            raise

    def stop_waiting(self) -> None:
        """Has the call under way, and all that follow, raise CancelledError."""
        self._is_stopped = True
        if self._call is not None:
            self._call.end(CancelledError())

    def _soon(self, act: Callable[[], object]) -> None:
        """Has it called in the thread, if it still runs: then nothing waits that `_run` would not end."""
        call_soon = self._call_soon
        if call_soon is not None:
            with suppress(RuntimeError):  # it has ended
                call_soon(act)

    def _leave(self) -> None:
        try:
            self._end_and_wait()
        finally:  # again, if that was interrupted: it takes no longer than a member has to leave
            self._end_and_wait()

    def _end_and_wait(self) -> None:
        self._is_left = True
        self._soon(self._end)
        if self._begun.wait(_BEGIN_S_MAX):
            self._ended.wait()  # `join` takes a thread for ended once it was interrupted (Python 3.11)

    def _start(self) -> None:
        """Starts the thread, from one of its own: `start` waits for it, which a child of the caller's would do without end."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._failed(error)
            self._begun.set()
            self._ended.set()

    def _run(self) -> None:
        self._begun.set()
        try:
            if self._refusal is None:  # else this is a child, whose fork came between the look at that and the start
                import anyio

                anyio.run(self._enter_and_leave, backend="asyncio")
        except BaseException as error:
            self._failed(error)
        finally:
            self._settled.set()
            self._ended.set()
            if self._call is not None:
                self._call.end(Closed("the consumer was closed"))

    def _failed(self, error: BaseException) -> None:
        if self._settled.is_set:
            self._error = error
        else:
            self._refusal = error
            self._settled.set()

    async def _enter_and_leave(self) -> None:
        import asyncio

        import anyio

        loop = asyncio.get_running_loop()
        ended, scope = anyio.Event(), anyio.CancelScope()

        def end() -> None:
            ended.set()
            if not self._settled.is_set:
                scope.cancel()

        def begin(call: _Call[Any]) -> None:
            try:
                calls.start_soon(call.run)
            except RuntimeError as error:  # the task group has ended
                call.end(error)

        async with anyio.create_task_group() as calls:
            self._end, self._begin = end, begin
            self._call_soon = partial(loop.call_soon_threadsafe, context=copy_context())  # in which anyio knows its loop
            if self._is_left:
                return
            try:
                with scope:
                    async with _open(self._connection, self._options) as self._member:
                        self._settled.set()
                        await ended.wait()
            except BaseException as error:  # raised from here, the task group would wrap it
                self._failed(error)


class _Call(Generic[T]):
    """A coroutine that runs in the thread of a member, and for whose end another thread waits."""

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._ended = _Latch()
        self._scope: CancelScope | None = None
        self._error: BaseException | None = None
        self._result: T

    async def run(self) -> None:
        """Runs it, unless it has ended before."""
        import anyio

        try:
            with anyio.CancelScope() as self._scope:
                if not self._ended.is_set:
                    self._result = await self._start()
                    self._ended.set()
        except BaseException as error:
            self.end(error)
            if not isinstance(error, Exception):
                raise

    def cancel(self) -> None:
        """Cancels it, from its event loop."""
        if self._scope is not None:
            self._scope.cancel()

    def end(self, error: BaseException) -> None:
        """Has the thread that waits for it raise the error, whatever its result."""
        self._error = error
        self._ended.set()

    def result(self) -> T:
        """Returns its result once it has ended."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result


class _Latch:
    """An event for which one thread waits, and which may be set by another, by a signal's handler, or in a child of the thread.

    A `threading.Event` has a lock that another thread may hold at a fork, and in a child forgets those who wait.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._changed: SimpleQueue[None] = SimpleQueue()  # of C

    def set(self) -> None:
        self.is_set = True
        self._changed.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns whether it was set within the time."""
        with suppress(Empty):
            while not self.is_set:
                self._changed.get(timeout=timeout_s)
        return self.is_set


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
