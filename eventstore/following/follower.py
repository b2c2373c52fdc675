"""`Follower`: what follows a log, batch by batch, through failures; and the batches.

The events that arrive while one batch is handled are the next batch. So no event waits for a batch to fill, and the cost of a
batch (a transaction, a sync) is shared by all its events.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import anyio

from eventstore.failures import text_of
from eventstore.following.log import PASSED_EVENTS, EventSubscription
from eventstore.model import CaughtUp, Event
from eventstore.protocol.reaction_info import ReactionInfo
from eventstore.records.event_page import commit_end

FollowerState: TypeAlias = Literal["running", "stopped", "refused"]


class Follower:
    """How far something is that follows a log, and what keeps it.

    `through`: all its events up to this sequence are done. `state`: `stopped`: it waits at an event, and tries again;
    `refused`: its checkpoint does not fit the log. `error`: the last one, kept when it is over. `first`: sequence and time of
    the earliest event that it has in its hands.
    """

    def __init__(self, pause_s: float, pause_s_max: float) -> None:
        """The pauses between two attempts, from the first to the longest; each is twice the one before."""
        self.through = 0
        self.state: FollowerState = "running"
        self.error: str | None = None
        self.first: tuple[int, int] | None = None
        self._news: anyio.Event | None = None
        self._pauses_s = pause_s, pause_s_max
        self._pause_s = pause_s
        self._attempt: anyio.CancelScope | None = None

    async def run(self, follow: Callable[[], Awaitable[None]], failed: Callable[[Exception], object]) -> None:
        """Calls `follow` until it returns; after an error again, after a pause. `failed` is told each error, and raises those
        that end it.
        """
        while True:
            with anyio.CancelScope() as self._attempt:
                try:
                    return await follow()
                except Exception as error:
                    failed(error)
                await anyio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, self._pauses_s[1])

    def reached(self, through: int) -> None:
        """Notes that everything up to this sequence is done."""
        self.through, self.state, self.first = through, "running", None
        self._pause_s = self._pauses_s[0]
        if self._news is not None:
            self._news.set()
            self._news = None

    @property
    def news(self) -> anyio.Event:
        """What is set when it moves next."""
        if self._news is None:
            self._news = anyio.Event()
        return self._news

    def failed(self, error: Exception, *, refused: bool = False) -> str:
        """Notes why it cannot go on, and returns that."""
        self.state, self.error = "refused" if refused else "stopped", text_of(error) or type(error).__name__
        return self.error

    def set_to(self, through: int) -> None:
        """Continues after another event, at once: what it is doing is cancelled."""
        self.reached(through)
        self.error = None
        if self._attempt is not None:
            self._attempt.cancel()

    def progress(self, name: str, event: str, end: int, parked: int, through: int | None = None) -> ReactionInfo:
        """Returns how far it is in a log that ends at this sequence. `through`: if there is nothing for it up to there."""
        position, age = self.through if through is None else through, 0
        if self.first is not None:
            position, age = self.first[0] - 1, max(0, time.time_ns() // 1_000 - self.first[1])
        return ReactionInfo(name, event, self.state, position, max(0, end - position), age, parked, self.error)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order. `position`: all matching events up to this sequence are in this or an earlier batch. `caught_up`: there
    were no more at that moment.
    """

    events: list[Event]
    position: int
    caught_up: bool


def whole_commits(events: Sequence[Event]) -> int:
    """Returns how many of the events belong to commits that end among them."""
    whole = len(events)
    while whole and events[whole - 1].commit_continues:
        if whole < len(events) and events[whole].sequence > commit_end(events[whole - 1]):
            break  # a filter has left out the rest
        whole -= 1
    return whole


HandleBatch: TypeAlias = Callable[[EventBatch], Awaitable[bool]]
"""Handles a batch; returns False to stop."""


async def follow(subscription: EventSubscription, handle: HandleBatch, events_max: int) -> None:
    """Passes all events of the subscription to `handle`, in batches of at most `events_max` events, one after the other.

    Returns when `handle` returns False or the subscription ends; raises the errors of both.
    """
    reader = _Reader(events_max)

    async def handled() -> None:
        while (batch := await reader.next()) is not None:
            if not await handle(batch):
                break

    await beside(handled, partial(reader.run, subscription))


async def beside(run: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]]) -> None:
    """Runs both until `run` returns. Raises the first error of either, outside the task group, which would wrap it in an
    ExceptionGroup.
    """
    errors: list[Exception] = []

    async def kept(task: Callable[[], Awaitable[object]]) -> None:
        try:
            await task()
        except Exception as error:
            errors.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept, other)
        await kept(run)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]


class _Reader:
    """Buffer between the task that reads the subscription and the one that handles batches."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._events: list[Event] = []
        self._position = 0
        self._caught_up = self._passed = False
        self._ended = False
        self._error: Exception | None = None
        self._filled = anyio.Event()
        self._emptied = anyio.Event()

    async def run(self, subscription: EventSubscription) -> None:
        try:
            async with subscription:
                subscription.on_passed = self._pass
                async for item in subscription:
                    if isinstance(item, CaughtUp):
                        self._position, self._caught_up = max(self._position, item.sequence), True
                    else:
                        self._events.append(item)
                        self._position = item.sequence
                    self._filled.set()
                    if len(self._events) >= self._events_max:
                        self._emptied = anyio.Event()
                        await self._emptied.wait()
        except Exception as error:
            self._error = error
        self._ended = True
        self._filled.set()

    def _pass(self, sequence: int) -> None:
        if sequence >= self._position + PASSED_EVENTS:
            self._position, self._passed = sequence, True
            self._filled.set()

    async def next(self) -> EventBatch | None:
        """Returns all buffered events, waiting for the first, or until many were left out; None at the end of the
        subscription. A batch ends with a commit, also a joint one: it may have more than `events_max` events then.
        """
        while True:
            await self._filled.wait()
            whole = whole_commits(self._events)
            events, rest = self._events[:whole], self._events[whole:]
            if events or (not rest and (self._caught_up or self._passed)):
                batch = EventBatch(events, events[-1].sequence if rest else self._position, self._caught_up and not rest)
                self._events, self._caught_up, self._passed = rest, self._caught_up and bool(rest), False
                self._await_more()
                return batch
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._await_more()

    def _await_more(self) -> None:
        if not self._ended:
            self._filled = anyio.Event()
        self._emptied.set()
