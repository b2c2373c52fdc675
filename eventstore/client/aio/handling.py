"""Runs a handler on the messages of a consumer, in one task or in several. For trio and asyncio."""

from __future__ import annotations

import inspect

import anyio
import anyio.lowlevel

from eventstore.client.aio.cancellation import is_cancellation_of_group
from eventstore.client.aio.member import NetworkMember
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.handling import MessageHandler, check_concurrency, handled, raised
from eventstore.errors import EventStoreError
from eventstore.failures import ends_process, is_closing


async def run_handler(member: NetworkMember, handler: MessageHandler, concurrency: int) -> None:
    """Handles messages until the consumer is stopped, or ends by an error, or the caller is cancelled: then handlers in flight
    are, too.

    Raises:
        InvalidArgument: the concurrency is out of range.
        EventStoreError: what ended the consumer; handlers in flight have ended before.
    """
    check_concurrency(concurrency)
    workers = _Workers(member, handler)
    async with anyio.create_task_group() as group:
        for _ in range(concurrency):
            group.start_soon(workers.work, group.cancel_scope)
    if workers.ended_by is not None:
        raise workers.ended_by


class _Workers:
    """Tasks that handle one message each at a time. `ended_by`: what ended them; a task group would wrap it."""

    def __init__(self, member: NetworkMember, handler: MessageHandler) -> None:
        self.ended_by: BaseException | None = None
        self._member = member
        self._handler = handler

    async def work(self, scope: anyio.CancelScope) -> None:
        """Takes and handles messages."""
        while self.ended_by is None:
            try:
                message = await self._member.deliveries().__anext__()
                self._member.last = None
            except StopAsyncIteration:
                return
            except EventStoreError as error:  # of the consumer: each task gets it once its handler has ended
                self.ended_by = self.ended_by or error
                return
            except anyio.get_cancelled_exc_class() as error:
                if await is_cancellation_of_group(error):
                    raise
                continue  # the last handler had its own task cancelled, and returned
            try:
                await self._handle(message)
            except BaseException as error:
                if await is_cancellation_of_group(error):
                    await anyio.lowlevel.checkpoint_if_cancelled()  # raises it as the event loop does: `error` may be a group
                self.ended_by = self.ended_by or error
                scope.cancel()

    async def _handle(self, message: Delivery) -> None:
        """Raises a cancellation of this task or its closing, and what is to end the process."""
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            if is_closing(error) or await is_cancellation_of_group(error):
                raise
            raised(message, error)
            if ends_process(error):
                raise
        else:
            handled(message)
