"""Consumers for code without an event loop: a member of a consumer group has to speak up while its user handles a message, so
an event loop runs in a thread beside it, on a connection of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from eventstore.client.address import Address
from eventstore.client.consumer import Consumer
from eventstore.client.delivery import Delivery, Mode, RawBatch, check_mode
from eventstore.client.options import Options
from eventstore.client.reader import Reader, check_interval
from eventstore.client.store import NetworkStore
from eventstore.errors import Closed

T = TypeVar("T")


class BlockingConsumer:
    """As `Consumer`: `for message in consumer`. Messages may be finished in any thread; one thread iterates."""

    def __init__(self, address: Address, options: Options, reader: Reader, mode: Mode, commit_interval: float) -> None:
        check_mode(mode)
        check_interval(commit_interval)
        self.member = reader.member
        self._open: Callable[[], AbstractAsyncContextManager[Consumer]] = lambda: _consumer(
            address, options, reader, mode, commit_interval
        )
        self._stack = ExitStack()
        self._running: tuple[BlockingPortal, Consumer] | None = None
        self._some: Iterator[Delivery] = iter(())

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The queues that this member reads now, as (topic, queue)."""
        return self._running[1].assigned if self._running is not None else []

    @property
    def generation(self) -> int | None:
        """As `Consumer.generation`."""
        return self._running[1].generation if self._running is not None else None

    def __enter__(self) -> Self:
        """Connects and joins the group. Raises as `Consumer`'s."""
        if self._running is not None:
            raise Closed("a consumer is entered once; make another one")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            consumer = stack.enter_context(portal.wrap_async_context_manager(self._open()))
            self._stack = stack.pop_all()
        self._running = portal, consumer
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commits what was finished, and leaves the group."""
        self._running = None
        self._some = iter(())
        self._stack.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        while True:
            for message in self._some:
                if message.is_mine:
                    return message
            self._some = iter(self._call(lambda consumer: consumer.some()))

    def batches(self) -> Iterator[RawBatch]:
        """As `Consumer.batches`."""
        while True:
            yield self._call(lambda consumer: anext(consumer.batches()))

    def _call(self, wait: Callable[[Consumer], Awaitable[T]]) -> T:
        """What a coroutine returns that runs in the thread beside. Interrupted, it is cancelled, and hands nothing out."""
        if self._running is None:
            raise Closed("the consumer is not open; use `with`")
        portal, consumer = self._running
        future = portal.start_task_soon(wait, consumer)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


@asynccontextmanager
async def _consumer(
    address: Address, options: Options, reader: Reader, mode: Mode, commit_interval: float
) -> AsyncIterator[Consumer]:
    async with (
        NetworkStore(str(address), options) as store,
        store.consumer(
            reader.group, reader.topics, mode=mode, member=reader.member, from_end=reader.from_end,
            commit_interval=commit_interval, hold_messages=reader.hold_messages, hold_bytes=reader.hold_bytes,
        ) as consumer,
    ):  # fmt: skip
        yield consumer
