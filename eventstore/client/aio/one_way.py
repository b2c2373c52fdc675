"""Sends messages whose sender does not wait, in a task of the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import in_time
from eventstore.client.connection_errors import outcome_unknown
from eventstore.client.limit import begin_unlimited, within
from eventstore.client.session.one_way_queue import OneWayCounts, OneWayQueue, tell
from eventstore.errors import Closed, EventStoreError, MessagesFailed, TimedOut, copy_error
from eventstore.protocol.broker_requests import WireMessage

_Put: TypeAlias = Callable[[list[WireMessage]], Awaitable[list[Any]]]


class NetworkOneWay:
    """The messages of one client, in the order in which they are sent. The task begins with the first."""

    def __init__(self, connection: NetworkConnection) -> None:
        self._connection = connection
        self._queue: OneWayQueue[_Put] = OneWayQueue()
        self._changed: anyio.Event | None = None
        self._runs = self._ends = False

    @property
    def counts(self) -> OneWayCounts:
        return self._queue.counts

    async def add(self, put: _Put, row: WireMessage, size_bytes: int) -> None:
        """Adds a message; waits while many wait. Raises Closed, TimedOut."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._connection.check_loop()
        self._queue.check_open()
        while not self._queue.has_room:
            await self._change()
            self._queue.check_open()
        tasks = self._connection.user_tasks
        if tasks is None:
            raise Closed("the client is not open")
        self._queue.add(put, row, size_bytes)
        if not self._runs:
            self._runs = True
            tasks.start_soon(self._run)
        self._wake()
        await anyio.lowlevel.cancel_shielded_checkpoint()  # the task may take it

    async def flush(self) -> None:
        """Returns once none waits. Raises MessagesFailed, TimedOut, Closed."""
        self._connection.check_loop()
        await self._drained()
        await anyio.lowlevel.checkpoint()
        if (report := self._queue.report()) is not None:
            raise report

    async def close(self, timeout: float | None, *, flushes: bool) -> MessagesFailed | None:
        """Takes no more, waits until none waits, and gives up the rest after `timeout` seconds, or at once without `flushes`.
        Returns what failed.
        """
        try:
            if flushes and self._queue.counts.waiting:
                with within(timeout):
                    await self._drained()
        except TimedOut:
            pass
        except BaseException as cancelled:
            tell(self._end(), cancelled)
            raise
        return self._end()

    def _end(self) -> MessagesFailed | None:
        self._ends = True
        self._wake()
        return self._queue.end()

    async def _drained(self) -> None:
        while self._queue.counts.waiting:
            await self._change()

    async def _run(self) -> None:
        begin_unlimited()
        try:
            await self._send()
        except BaseException as ending:  # of the event loop: nobody has closed the client
            tell(self._end(), ending)
            raise

    async def _send(self) -> None:
        while not self._ends:
            taken = self._queue.take()
            if taken is None:
                await self._change()
                continue
            put, rows = taken
            outcomes: list[Any] = [outcome_unknown()] * len(rows)
            try:
                outcomes = await put(rows)
            except EventStoreError as error:
                outcomes = [copy_error(error)] * len(rows)
            finally:
                self._queue.settled(outcomes)
                self._wake()

    async def _change(self) -> None:
        changed = self._changed = self._changed or anyio.Event()
        await in_time(changed.wait)

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
