"""A member of a consumer group as the blocking consumer uses it: the async member, in the event loop of `loop_thread`.

A member has to send heartbeats while its user handles a message, so the async member's tasks run in another thread, on a
separate connection.

The handler of a signal may raise or fork within any line of a call. If it raises, the member leaves. In a child it is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.loop_thread import Hosted, RunningCall, loop_thread
from eventstore.client.blocking.termination import no_longer_at_sigterm, stop_at_sigterm
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import ended_consumer
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.stopping import ConsumerStopped
from eventstore.client.limit import seconds_of, within
from eventstore.client.routing.table import is_entry
from eventstore.errors import Closed, EventStoreError, copy_error
from eventstore.forks import of_parent, tell_of_forks

if TYPE_CHECKING:
    from eventstore.client.aio.member import NetworkMember as AsyncMember
    from eventstore.client.aio.routing import ShardsMember

    Member: TypeAlias = AsyncMember | ShardsMember

T = TypeVar("T")


class BlockingMember:
    """Runs an async member while it is entered. Takes address and options of `connection`, but not its socket."""

    def __init__(self, connection: BlockingConnection, options: MemberOptions) -> None:
        self.options = options
        self._connection = connection
        self._hosted: Hosted[Member] | None = None
        self._running: Member | None = None
        self._some: Iterator[Delivery] = iter(())
        self._last: Delivery | None = None  # handed out last by an iteration; a run counts failures itself
        self._call: RunningCall[Any] | None = None  # the last
        self._stopped = False
        self.timeout_s: float | None = None  # to wait for a message
        self._not_open = Closed("the consumer is not open; use `with`")
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, where nothing runs it: refuses to go on, and has nothing to leave."""
        no_longer_at_sigterm(self)
        if self._hosted is not None:
            self._not_open = _of_parent()
        self._hosted, self._running, self._some = None, None, iter(())

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
        self._hosted = hosted = Hosted(loop_thread(), partial(_open, self._connection, self.options))
        try:
            self._running = self._result(RunningCall(hosted.thread, hosted.value))
        except BaseException:
            _leave(hosted)
            raise
        if hosted.thread.is_of_parent:  # forked in a signal's handler, after the member had joined
            self._running = None
            raise _of_parent()
        stop_at_sigterm(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        member, hosted = self._running, self._hosted
        try:
            if error is not None and member is not None and not member.failed:
                ended_consumer(self._last, error)
            self._running = None
            self._some = iter(())
        finally:
            if hosted is not None:
                _leave(hosted)
                no_longer_at_sigterm(self)
                self._hosted = None  # not before: a fork is told to it
                if self._call is not None:
                    self._call.end(Closed("the consumer was closed"))
        return None

    def deliveries(self) -> Iterator[Delivery]:
        """Returns the messages, one by one."""
        return _Deliveries(self)

    def next(self) -> Delivery:
        """Waits for the next message and returns it. Each crossing of threads fetches as many as have arrived.

        Raises ConsumerStopped; TimedOut: it can be called again.
        """
        while not self._stopped:
            for message in self._some:
                if message.is_mine:
                    return message
            self._some = iter(self.some())
        raise ConsumerStopped

    def batches(self) -> Iterator[RawBatch]:
        """Returns the messages as raw batches."""
        return _Batches(self)

    def batch(self) -> RawBatch:
        """Waits for the next raw batch and returns it. Raises as `next`."""
        return self._run(lambda member: anext(member.batches()))

    def some(self) -> Sequence[Delivery]:
        """Returns the messages that have arrived, at least one. Raises as `next`."""
        return self._run(lambda member: member.some())

    def _run(self, start: Callable[[Member], Awaitable[T]]) -> T:
        """Runs a coroutine in the event loop and returns its result. If interrupted, cancels it: nothing is handed out."""
        hosted, member = self._hosted, self._running
        if hosted is None or member is None:
            raise copy_error(self._not_open)
        with within(seconds_of(None, self.timeout_s)):
            call: RunningCall[T] = RunningCall(hosted.thread, lambda: start(member))
            self._call = call
            if self._stopped:
                call.end(ConsumerStopped())
            return self._result(call)

    def _result(self, call: RunningCall[T]) -> T:
        try:
            return call.result()
        except EventStoreError:
            if call.thread.is_of_parent:
                raise _of_parent() from None
            raise

    def stop(self) -> None:
        """Hands out nothing more: the thread that waits for messages, or is to, raises ConsumerStopped. Takes no lock."""
        self._stopped = True
        if self._call is not None:
            self._call.end(ConsumerStopped())


def _of_parent() -> Closed:
    return of_parent("the consumer", "make another one here")


def _leave(hosted: Hosted[Any]) -> None:
    """Returns once the member has left, in a child at once."""
    try:
        hosted.thread.run(hosted.leave)
    except EventStoreError:
        if not hosted.thread.is_of_parent:
            raise
    except BaseException:
        _leave(hosted)  # again: it takes no longer than a member has to leave
        raise


class _Deliveries:
    def __init__(self, member: BlockingMember) -> None:
        self._member = member

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        try:
            self._member._last = message = self._member.next()
        except ConsumerStopped:
            raise StopIteration from None
        return message


class _Batches:
    def __init__(self, member: BlockingMember) -> None:
        self._member = member

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RawBatch:
        try:
            return self._member.batch()
        except ConsumerStopped:
            raise StopIteration from None


@asynccontextmanager
async def _open(connection: BlockingConnection, options: MemberOptions) -> AsyncIterator[Member]:
    from eventstore.client.aio.connection import NetworkConnection as AsyncConnection
    from eventstore.client.aio.member import NetworkMember as AsyncMember
    from eventstore.client.aio.routing import ShardsMember, open_router

    async with AsyncConnection(connection.addresses, connection.options) as own:
        if not is_entry(own.welcome, own.addresses):
            async with AsyncMember(own, options) as member:
                yield member
            return
        router = await open_router(own)
        try:
            async with ShardsMember(router, options) as found:
                yield found
        finally:
            router.close()
