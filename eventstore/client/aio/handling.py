"""Runs a handler on the messages of a consumer, in one task or in several. For trio and asyncio."""

from __future__ import annotations

import inspect
from typing import NoReturn

import anyio

from eventstore.client.aio.member import Member
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.handling import Handler, check_concurrency, handled, raised
from eventstore.errors import EventStoreError


async def run_handler(member: Member, handler: Handler, concurrency: int) -> NoReturn:
    """Handles messages until the consumer ends by an error, or the caller is cancelled: then handlers in flight are, too.

    Raises:
        InvalidArgument: the concurrency is out of range.
        EventStoreError: what ended the consumer; handlers in flight have ended before.
    """
    check_concurrency(concurrency)
    workers = _Workers(member, handler)
    async with anyio.create_task_group() as group:
        for _ in range(concurrency):
            group.start_soon(workers.work, group.cancel_scope)
    assert workers.ended_by is not None
    raise workers.ended_by


class _Workers:
    """Tasks that handle one message each at a time. `ended_by`: what ended them; a task group would wrap it."""

    def __init__(self, member: Member, handler: Handler) -> None:
        self.ended_by: BaseException | None = None
        self._member = member
        self._handler = handler

    async def work(self, scope: anyio.CancelScope) -> None:
        """Takes and handles messages."""
        while self.ended_by is None:
            try:
                message = await self._member.deliveries().__anext__()
            except EventStoreError as error:  # of the consumer: each task gets it once its handler has ended
                self.ended_by = self.ended_by or error
                return
            try:
                await self._handle(message)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # a KeyboardInterrupt, say
                self.ended_by = self.ended_by or error
                scope.cancel()

    async def _handle(self, message: Delivery) -> None:
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            raised(message, error)
        else:
            handled(message)
