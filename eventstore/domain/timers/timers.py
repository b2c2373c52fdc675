"""Sends the commands of timers when they are due, and records in the store what came of each.

The log says which timers there are (see `TimerBook`); this follows it. A timer that is due is read from the log, its command is
sent under an id that follows from its setting, and the outcome is appended. After a crash in between it is sent again: a
command that was accepted answers with its first outcome, any other one is decided again. Nothing is sent before everything that
is in the log has been read, since it may say that a timer was cancelled, or has ended.

Commands to one aggregate are sent one after the other, in the order of their due times; at most `IN_HAND_MAX` at the same time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import anyio

from eventstore.commands import RawCommand
from eventstore.domain.reactions.reaction import SendCommand
from eventstore.domain.timers.timer_book import DueTimer, TimerBook
from eventstore.domain.timers.timer_clock import TimerClock
from eventstore.domain.timers.timer_file import TimerFile
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import (
    Closed,
    CommandIdReused,
    Diverged,
    Elsewhere,
    EventStoreError,
    InvalidArgument,
    Poisoned,
    Rejected,
)
from eventstore.failures import text_of
from eventstore.fields import encodable
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.follower import EventBatch, beside, follow
from eventstore.following.log import (
    PASSED_EVENTS,
    EventSubscription,
    Followable,
    confirmed,
    event_at,
    last_sequence,
    nothing_until,
    uuid_and_last_sequence,
)
from eventstore.import_marks import NO_REACTIONS, is_marked
from eventstore.model import Committed, Event, NewEvent
from eventstore.position import After
from eventstore.records.raw_commit import CommitResult
from eventstore.records.timer_record import (
    ENDED,
    TIMER_EVENTS,
    WHY_CHARACTERS_MAX,
    TimerRecord,
    command_id_of,
    ended_command_id,
    id_of,
    json_bytes,
    timer_record,
    timers_id,
)
from eventstore.records.timer_record import (
    beside as beside_owner,
)

IN_HAND_MAX: Final = 512
_IN_HAND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Data of events that are read before their commands are sent; one more may be there."""
_KEPT_MAX: Final = 10_000
_KEPT_BYTES_MAX: Final = 2_048
_EVENTS_MAX: Final = 1_024
PATIENCE_S: Final = 5.0
_LOOK_S: Final = 1.0
"""How often the clock is looked at while nothing is due, so that a step is noticed."""
_IDLE_S: Final = 10.0
_STAYS_S: Final = 10.0
_SAVE_S: Final = 60.0
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_ENDED_PER_APPEND_MAX: Final = 512
_log = logging.getLogger(__name__)


class ReservedRow(NamedTuple):
    """An event for a reserved id, and the id of its commit."""

    aggregate_id: str
    command_id: str
    event: NewEvent


class TimerStore(Followable, Protocol):
    """The part of a store that timers need: embedded, or a client."""

    def subscribe(
        self, after: After = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> EventSubscription: ...

    def read(self, aggregate_id: str) -> AsyncIterator[Event]: ...

    async def append_timers(self, rows: Sequence[ReservedRow]) -> list[CommitResult]:
        """Appends events on reserved ids; returns what became of each, once they are durable."""
        ...


class _Fired(NamedTuple):
    """A timer that is due, as the log has it: its setting, and the event with its command."""

    timer: DueTimer
    setting: TimerRecord
    command: TimerRecord

    @property
    def size(self) -> int:
        return len(self.command.event.data)


class Timers:
    """The timers of one log. Its figures may be read on any thread.

    Attributes:
        fired: commands that were sent to their end, by what came of them.
        late_us: by how much the last one was late when it was sent.
        passed_over: malformed events of timers in the log.
        failure: why none is sent; None if they are.
    """

    def __init__(
        self,
        store: TimerStore,
        send: SendCommand,
        file: TimerFile,
        clock: TimerClock,
        owns: Callable[[int], bool] | None = None,
        *,
        is_told: bool = False,
    ) -> None:
        """`owns`: whether this log has a slot; None: it has all. `is_told`: who sets a timer calls `hint`, so that the
        log is not followed while none is pending, but looked at now and then.
        """
        self.book = TimerBook()
        self.clock = clock
        self.fired = {"accepted": 0, "unchanged": 0, "rejected": 0, "parked": 0}
        self.late_us = 0
        self.passed_over = 0
        self.failure: str | None = None
        self.caught_up = False
        self._store, self._send, self._file, self._owns = store, send, file, owns
        self._kept: dict[int, TimerRecord] = {}  # the latest settings, by sequence: most are due soon
        self._lanes: dict[str, deque[_Fired]] = {}
        self._lane_bytes, self._lighter = 0, anyio.Event()
        self._ended: list[tuple[ReservedRow, str]] = []  # with what came of each
        self._appending = anyio.Event()
        self._woken, self._news = anyio.Event(), anyio.Event()
        self._uuid = ""
        self._place = Checkpoint(0)
        self._saved_at = 0
        self._resumed = False
        self._is_told, self._hinted, self._hinted_at, self._thread = is_told, anyio.Event(), -math.inf, 0

    async def run(self) -> None:
        """Sends what is due until cancelled, or until the store may be another one than before. Raises the errors of the store:
        what is pending then is read again by the next call.
        """
        self._kept, self._lanes, self._lane_bytes, self._ended = {}, {}, 0, []
        self.caught_up, self._thread = False, threading.get_ident()
        await self._load()
        while True:
            self._resumed = False
            try:
                await beside(self._fire, self._follow)
            finally:
                self.caught_up = False
                await self._save()
            if self._resumed:
                return
            with anyio.move_on_after(_IDLE_S):
                await self._hinted.wait()
            self._hinted = anyio.Event()

    async def _follow(self) -> None:
        subscription = self._store.subscribe(self.book.through, types=TIMER_EVENTS)

        async def take(batch: EventBatch) -> bool:
            self._take(batch)
            return not subscription.resumptions

        await follow(subscription, take, _EVENTS_MAX)
        self._resumed = True
        self._woken.set()

    def hint(self) -> None:
        """Says that a timer may have been set. What runs in another thread is told by others."""
        if threading.get_ident() == self._thread:
            self._hinted_at = time.monotonic()
            self._hinted.set()

    @property
    def _idles(self) -> bool:
        """Whether the log need not be followed: nothing is pending, and who sets a timer says so."""
        if not self._is_told or not self.caught_up or self.book or self._lanes:
            return False
        return time.monotonic() > self._hinted_at + _STAYS_S

    async def _load(self) -> None:
        """Takes the book from the file, if it is of this history."""
        self._uuid, _ = await uuid_and_last_sequence(self._store)
        self.book, self._place = await on_worker_thread(self._read_file)
        try:
            place = await confirmed(self._store, "the file of timers", self._place, "it is made again")
        except Diverged:
            place = None
        if place is None:
            self.book, self._place = TimerBook(), Checkpoint(0)
        self._saved_at = self._place.sequence

    def _read_file(self) -> tuple[TimerBook, Checkpoint]:
        """Returns what the file has, without what belongs to slots that are another shard's by now. Blocks."""
        book, place = self._file.load(self._uuid)
        if self._owns is not None:
            book.keep_slots(self._owns)
        return book, place

    def _take(self, batch: EventBatch) -> None:
        for event in batch.events:
            try:
                record = timer_record(event)
            except InvalidArgument as error:
                self.passed_over += 1
                _log.warning("ignores an event of a timer at sequence %d: %s", event.sequence, error.message)
                continue
            if is_marked(event, NO_REACTIONS):
                continue
            self.book.take(record)
            if record.due_us and len(event.data) + len(event.metadata or b"") <= _KEPT_BYTES_MAX:
                if len(self._kept) >= _KEPT_MAX:
                    del self._kept[next(iter(self._kept))]
                self._kept[event.sequence] = record
        if batch.events:
            self._place = Checkpoint.at(batch.events[-1])
        self.book.through = max(self.book.through, batch.position)
        if batch.caught_up:
            self.caught_up = True
        self._woken.set()
        self._news.set()
        self._news = anyio.Event()

    async def wait_for_end(self) -> None:
        """Waits until the book has everything that is in the log now; not for longer than `PATIENCE_S`."""
        with anyio.move_on_after(PATIENCE_S):
            end = await last_sequence(self._store)
            while True:
                news = self._news
                if await nothing_until(self._store, self.book.through, TIMER_EVENTS) >= end:
                    return
                self.hint()
                await news.wait()

    # ---- on disk

    async def _save(self) -> None:
        place, book = self._place, self.book
        through = book.through
        if place.sequence == self._saved_at and through < self._saved_at + PASSED_EVENTS:
            return
        rows, parked = book.copied(), dict(book.parked)  # as of the place, whatever is taken meanwhile
        with anyio.CancelScope(shield=True):
            try:
                if through > place.sequence and (event := await event_at(self._store, through)) is not None:
                    place = Checkpoint.at(event)
                await on_worker_thread(self._file.save, self._uuid, place, rows, parked)
                self._saved_at = place.sequence
            except OSError as error:  # a start takes longer then
                _log.warning("the file of timers cannot be written: %s", error)

    async def _keep_saving(self) -> None:
        while True:
            await anyio.sleep(_SAVE_S)
            await self._save()

    # ---- what is due

    async def _fire(self) -> None:
        """Sends what is due until the log is not to be followed any more. Raises the first error of what it runs."""
        errors: list[Exception] = []

        async def kept(run: Callable[..., Awaitable[None]], *arguments: object) -> None:
            try:
                await run(*arguments)
            except Exception as error:  # raised outside the task group, which would wrap it in an ExceptionGroup
                errors.append(error)
                tasks.cancel_scope.cancel()

        async def fire() -> None:
            while not self._resumed and not self._idles:
                now_us = self.clock.now_us()
                self.failure = self.clock.held
                due: list[DueTimer] = []
                if self.caught_up and self.failure is None and self.book.in_hand < IN_HAND_MAX:
                    due = self.book.due(now_us, IN_HAND_MAX - self.book.in_hand)
                for timer in due:
                    fired = await self._read(timer)
                    if fired is None:
                        continue
                    target = fired.command.fields["aggregate_id"]
                    if target in self._lanes:
                        self._lanes[target].append(fired)
                    else:
                        self._lanes[target] = deque([fired])
                        tasks.start_soon(kept, self._run_lane, target)
                if not due:
                    await self._wait(now_us)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kept, self._append_ended)
            tasks.start_soon(kept, self._keep_saving)
            await kept(fire)
            tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]

    async def _wait(self, now_us: int) -> None:
        """Waits until something may be due, or the clock is to be looked at."""
        seconds, next_us = _LOOK_S, self.book.next_due_us
        if next_us is not None and self.caught_up and self.failure is None and self.book.in_hand < IN_HAND_MAX:
            seconds = min(seconds, max(0.0, (next_us - now_us) / 1e6))
        self._woken = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._woken.wait()

    async def _read(self, timer: DueTimer) -> _Fired | None:
        """Returns a timer with what the log says of it, once there is room for it; None if another shard hands it out: it was
        split meanwhile.
        """
        while self._lane_bytes >= _IN_HAND_BYTES_MAX:
            self._lighter = anyio.Event()
            await self._lighter.wait()
        setting = await self._record(timer.setting)
        command = setting if timer.command == timer.setting else await self._record(timer.command)
        if setting is None or command is None:
            return None
        fired = _Fired(timer, setting, command)
        self._lane_bytes += fired.size
        return fired

    async def _record(self, sequence: int) -> TimerRecord | None:
        kept = self._kept.pop(sequence, None)
        if kept is not None:
            return kept
        event = await event_at(self._store, sequence)
        return None if event is None else timer_record(event)

    async def _run_lane(self, target: str) -> None:
        """Sends the commands to one aggregate, until there are no more."""
        lane = self._lanes[target]
        while lane:
            fired = lane.popleft()
            if (outcome := await self._offer(fired)) is not None:
                self._end(fired, *outcome)
            self._lane_bytes -= fired.size
            self._lighter.set()
        del self._lanes[target]

    async def _offer(self, fired: _Fired) -> tuple[str, str | None] | None:
        """Sends a command until it has an outcome; returns that, and why it was refused. None if it had none before its timer
        was cancelled or changed.
        """
        fields, event, pause = fired.command.fields, fired.setting.event, _PAUSE_S_MIN
        command = RawCommand(fields["type"], fields["aggregate_id"], json_bytes(fields["payload"]))
        setting = id_of(event)
        caused = {"correlation_id": event.correlation_id, "causation_id": command_id_of(setting).partition("/")[2]}
        while self.book.is_pending(fired.timer):
            try:
                self.late_us = max(0, self.clock.now_us() - fired.timer.due_us)
                made = await self._send(command, command_id_of(setting), metadata=caused)
                return "unchanged" if made is None else "accepted", None
            except Rejected as error:
                return "rejected", _why(error)
            except (Closed, Poisoned):  # the store is gone
                raise
            except Exception as error:
                if not isinstance(error, EventStoreError) or not error.retriable:
                    _log.warning("timer %s is parked: %s", setting, _why(error))
                    return "parked", _why(error)
            await anyio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)
        return None

    def _end(self, fired: _Fired, how: str, why: str | None) -> None:
        """Has what came of a timer recorded."""
        event, owner = fired.setting.event, fired.setting.owner
        fields: dict[str, Any] = {
            **fired.setting.reference,
            "of": event.sequence,
            "command": fired.timer.command,
            "due_us": fired.timer.due_us,
            "how": how,
        }
        if why is not None:
            fields["why"] = why
        new = NewEvent(ENDED, beside_owner(owner, fields))
        self._ended.append((ReservedRow(timers_id(owner), ended_command_id(id_of(event)), new), how))
        self._appending.set()

    async def _append_ended(self) -> None:
        """Appends outcomes, those that came meanwhile together; again after errors that pass."""
        pause = _PAUSE_S_MIN
        while True:
            await self._appending.wait()
            self._appending = anyio.Event()
            while batch := self._ended[:_ENDED_PER_APPEND_MAX]:
                try:
                    results = await self._store.append_timers([row for row, _ in batch])
                except EventStoreError as error:  # of a client: some may be stored, and are duplicates then
                    if not error.retriable:
                        raise
                    results = [error] * len(batch)
                del self._ended[: len(batch)]
                for (row, how), result in zip(batch, results, strict=True):
                    if isinstance(result, Committed | Elsewhere | CommandIdReused):  # by who was here before, or is elsewhere
                        self.fired[how] += 1
                    elif result.retriable:
                        self._ended.append((row, how))
                    else:
                        raise result
                if all(isinstance(result, Committed) for result in results):
                    pause = _PAUSE_S_MIN
                    continue
                await anyio.sleep(pause)
                pause = min(2 * pause, _PAUSE_S_MAX)


def _why(error: Exception) -> str:
    return encodable(f"{type(error).__name__}: {text_of(error)}")[:WHY_CHARACTERS_MAX]


def steady_us() -> int:
    """Returns microseconds of a clock that nobody sets, and that counts while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def wall_us() -> int:
    return time.time_ns() // 1_000
