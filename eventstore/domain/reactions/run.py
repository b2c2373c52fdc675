"""Runs one reaction: its events in batches, those of one aggregate in order, of different aggregates concurrently."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import anyio
import anyio.lowlevel

from eventstore.domain.handler import line_of, text_of
from eventstore.domain.reactions.feed import Feed
from eventstore.domain.reactions.marks import MarkKeeper
from eventstore.domain.reactions.reaction import Reaction, SendCommand
from eventstore.errors import Closed, EventStoreError, Poisoned, ProjectionFailed
from eventstore.failures import described, is_closing, is_fault
from eventstore.fields import encodable
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.parking import Parked, ParkedEvents
from eventstore.model import Event

_CONCURRENT_MAX: Final = 64
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_log = logging.getLogger(__name__)

RunState: TypeAlias = Literal["running", "stopped", "refused"]


@dataclass(slots=True)
class Status:
    """`stopped`: waits at an event, and is tried again; `refused`: its checkpoint does not fit the store. `error`: the last
    one, kept when it is over. `first`: the earliest event in its hands: sequence and time; None if it waits for events.
    """

    state: RunState = "running"
    error: str | None = None
    first: tuple[int, int] | None = None


class ReactionRun:
    """A reaction under way. `through`: all its events up to this sequence were handled or parked."""

    def __init__(
        self, reaction: Reaction, keeper: MarkKeeper, parked: ParkedEvents, send: SendCommand, events_max: int
    ) -> None:
        self.reaction = reaction
        self.status = Status()
        self.through = 0
        self.scope = anyio.CancelScope()
        self._keeper = keeper
        self.parked = parked
        self._send = send
        self._events_max = events_max
        self._retrying = anyio.Lock()

    async def begin(self) -> None:
        """Takes the checkpoint. Raises Diverged."""
        self.through = (await self._keeper.mark_of(self.reaction)).sequence
        self.status.state, self.status.first = "running", None

    async def follow(self, feed: Feed, until_caught_up: bool) -> None:
        """Handles events until cancelled, or until it has caught up.

        Raises:
            ProjectionFailed: its policy is to stop, or the event cannot be parked. It stands before the event.
        """
        while True:
            batch = await feed.after(self.through, self.reaction.event.name, self._events_max, once=until_caught_up)
            await anyio.lowlevel.checkpoint_if_cancelled()  # a replay meanwhile has set it elsewhere
            if batch.events:
                self.status.first = batch.events[0].sequence, batch.events[0].timestamp
                await self._handle(batch.events)
                await anyio.lowlevel.checkpoint_if_cancelled()
                self._keeper.keep(self.reaction.name, Checkpoint.at(batch.events[-1]))
                self.status.first = None
            self.through, self.status.state = batch.through, "running"
            if until_caught_up and feed.caught_up and self.through >= feed.position:
                return

    async def _handle(self, events: list[Event]) -> None:
        """Returns when all are handled or parked; raises the first error after the others are done."""
        by_aggregate: dict[str, list[Event]] = {}
        for event in events:
            by_aggregate.setdefault(event.aggregate_id, []).append(event)
        errors: list[EventStoreError] = []
        room = anyio.CapacityLimiter(_CONCURRENT_MAX)

        async def run(own: list[Event]) -> None:
            async with room:
                try:
                    for event in own:
                        await self._handle_event(event)
                except EventStoreError as error:
                    errors.append(error)

        async with anyio.create_task_group() as tasks:
            for own in by_aggregate.values():
                tasks.start_soon(run, own)
        if errors:
            raise errors[0]

    async def _handle_event(self, event: Event) -> None:
        if await self.parked.park_behind(event):
            return
        try:
            await self._attempt(event)
        except (Closed, Poisoned):  # the store is gone, not the event's fault
            raise
        except Exception as error:
            failed = self._failed(event, error)
            if self.reaction.on_failure == "stop":
                raise failed from error
            attempts = 1 if isinstance(error, EventStoreError) else self.reaction.attempts
            await self.parked.park(event, f"{type(error).__name__}: {_why(error)}", attempts)
            _log.warning("%s; the event is parked: `eventstore reactions show %s`", failed, self.reaction.name)

    async def _attempt(self, event: Event) -> None:
        """Raises the error of a refusal, or of the last attempt. After a retriable error it tries again without limit."""
        pause, failures = _PAUSE_S_MIN, 0
        while True:
            try:
                return await self._run(event)
            except Exception as error:
                self.status.error = str(self._failed(event, error))
                if not isinstance(error, EventStoreError):
                    failures += 1
                    if failures >= self.reaction.attempts:
                        raise
                elif not error.retriable:
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    async def _run(self, event: Event) -> None:
        """Calls the reaction's function. Whatever else than an Exception the function raises is its failure: RuntimeError."""
        try:
            await self.reaction.run(event, self._send)
        except Exception:
            raise
        except BaseException as error:
            if is_closing(error) or not is_fault(error) or await _is_cancellation(error):
                raise
            raise RuntimeError(f"it ended by {described(error)}") from error

    async def retry(self, aggregate_id: str | None, who: str, why: str, *, skip: bool = False) -> int:
        """Handles what is parked, of one aggregate or of all (see `ParkedEvents.settle`); returns how many are done."""
        done = await self.parked.settle(aggregate_id, self._retried, who, why, lambda: self._retrying, skip=skip)
        if done and not self.parked:
            self.status.error = None  # nothing is left of it
        return done

    async def _retried(self, parked: Parked) -> bool:
        event = await self.parked.event(parked)
        try:
            await self._run(event)
        except Exception as error:
            self.status.error = str(self._failed(event, error))
            return False
        return True

    def _failed(self, event: Event, error: Exception) -> ProjectionFailed:
        name = self.reaction.name
        return ProjectionFailed(
            f"reaction {name!r} failed at sequence {event.sequence}, aggregate {event.aggregate_id!r}, version "
            f"{event.version}, type {event.type!r}: {type(error).__name__}: {_why(error)}",
            reaction=name,
            aggregate_id=event.aggregate_id,
            version=event.version,
            sequence=event.sequence,
            error=type(error).__name__,
        )


async def _is_cancellation(error: BaseException) -> bool:
    """Whether the task is being cancelled. If this cannot be found out, the error must not be taken for a failure."""
    try:
        from eventstore.client.aio.cancellation import is_cancellation_of_group  # loads asyncio, which shards do without
    except Exception:  # the package was replaced, descriptors ran out, or the interpreter ends
        return True
    return await is_cancellation_of_group(error)


def _why(error: Exception) -> str:
    return text_of(error) if isinstance(error, EventStoreError) else encodable(text_of(error) + line_of(error))
