"""Runs the timers of a log, or of several, in a server or worker, and answers the requests about them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import trio

from eventstore.chunks.files import Files
from eventstore.domain.domain import Domain
from eventstore.domain.reactions.reaction import SendCommand
from eventstore.domain.timers.timer_book import setting_of
from eventstore.domain.timers.timer_clock import TimerClock
from eventstore.domain.timers.timer_file import TimerFile
from eventstore.domain.timers.timers import ReservedRow, Timers, TimerStore, steady_us, wall_us
from eventstore.errors import CommandIdReused, EventStoreError, InvalidArgument
from eventstore.failures import text_of
from eventstore.fields import counted, shown
from eventstore.following.log import event_at
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Committed, NewEvent, fresh_command_id
from eventstore.protocol.timer_info import TimerEvent, TimerInfo
from eventstore.protocol.timer_requests import (
    TIMER_ROWS_MAX,
    ChangeTimer,
    ConfirmClock,
    ListTimers,
    RecordTimers,
    SetTimer,
)
from eventstore.records.raw_commit import CommitResult
from eventstore.records.timer_record import (
    CANCELLED,
    ENDED,
    MOVED,
    SET,
    TimerRecord,
    beside,
    json_bytes,
    set_data,
    timer_record,
    timers_id,
    when_fields,
)
from eventstore.server.broker.handlers import answers
from eventstore.server.own_commands import SetsTimer
from eventstore.server.requests.owned_slots import OwnedSlots

_PAUSE_S: Final = 5.0
_log = logging.getLogger(__name__)


class TimerRunner:
    """The timers of one log. `failure`: why none runs, until they do."""

    def __init__(self, store: TimerStore, timers: Timers) -> None:
        self.store = store
        self.timers = timers
        self._scope = trio.CancelScope()
        self.failure: str | None = None

    async def run(self) -> None:
        """Sends commands that are due until cancelled."""
        while True:
            with trio.CancelScope() as self._scope:
                try:
                    await self.timers.run()
                    self.failure = None
                    continue
                except Exception as error:
                    self.failure = text_of(error) or type(error).__name__
                    trace = None if isinstance(error, EventStoreError | OSError) else error
                    _log.error("timers are tried again in %g s: %s", _PAUSE_S, self.failure, exc_info=trace)
                await trio.sleep(_PAUSE_S)
            self.failure = None

    def begin_again(self) -> None:
        """Reads again what is pending: what is in memory may be another shard's by now."""
        self._scope.cancel()


def timer_runner(
    store: TimerStore,
    send: SendCommand,
    path: Path,
    *,
    files: Files | None = None,
    difference_us: Callable[[], int | None] = lambda: None,
    owns: Callable[[int], bool] | None = None,
    is_told: bool = False,
) -> TimerRunner:
    """Returns the timers of a log. `path`: of the file that keeps what is pending; the others: see `Timers`, `TimerClock`."""
    clock = TimerClock(wall_us, steady_us, difference_us)
    return TimerRunner(store, Timers(store, send, TimerFile(path, files), clock, owns, is_told=is_told))


class RunningTimers:
    """The timers of all logs that this process sends for, as those who look at them see them."""

    def __init__(self, runners: Sequence[TimerRunner] = ()) -> None:
        self.runners = runners

    @property
    def attention(self) -> str | None:
        """What an operator has to do about timers, if anything. Quotes no error of a handler."""
        for each in self.runners:
            if (failure := each.failure or each.timers.failure) is not None:
                return f"timers: {failure}"
        if self.parked:
            return f"{counted(self.parked, 'timer')} parked; `eventstore timers list` says why"
        return None

    @property
    def pending(self) -> int:
        return sum(len(each.timers.book) for each in self.runners)

    @property
    def parked(self) -> int:
        return sum(len(each.timers.book.parked) for each in self.runners)

    @property
    def held(self) -> bool:
        """Whether nothing is sent, because a clock cannot be trusted."""
        return any(each.timers.failure is not None for each in self.runners)

    @property
    def passed_over(self) -> int:
        return sum(each.timers.passed_over for each in self.runners)

    @property
    def late_us(self) -> int:
        """By how much the last command was late."""
        return max((each.timers.late_us for each in self.runners), default=0)

    @property
    def lag_us(self) -> int:
        """By how much the oldest due timer is late; 0 if none is."""
        oldest = [due_us for each in self.runners if (due_us := each.timers.book.oldest_due_us) is not None]
        return max(0, wall_us() - min(oldest)) if oldest else 0

    def ended(self, how: str) -> int:
        """How many commands have come to this end."""
        return sum(each.timers.fired[how] for each in self.runners)


class AppendsTimers(Protocol):
    """The part of a store that takes events of timers."""

    def append_timers(self, rows: Sequence[ReservedRow], /) -> Awaitable[list[CommitResult]]: ...


class TimerSettings:
    """Takes timers at a server, whether it sends their commands or a worker does. `told`: what is told that one was set."""

    def __init__(self, store: AppendsTimers, domain: Domain, slots: OwnedSlots | None) -> None:
        self._store, self._domain, self._slots = store, domain, slots
        self.told: Callable[[], None] = lambda: None

    @answers(SetTimer)
    async def answer_set(self, request: SetTimer) -> TimerEvent:
        return await self.set(request)

    async def set(self, request: SetTimer) -> TimerEvent:
        """Sets a timer; durable on return. Raises as `check_handled`, and the errors of an append."""
        check_handled(self._domain, request)
        when = when_fields(request.after_us, request.at_us)
        fields = set_data(request.type, request.aggregate_id, request.payload, request.timer, when)
        event = _event(SET, beside(request.aggregate_id, fields), request.metadata)
        done = await _appended(self._store, ReservedRow(timers_id(request.aggregate_id), request.command_id, event))
        self.told()
        return TimerEvent(done.version, done.sequence)

    @answers(RecordTimers)
    async def record(self, request: RecordTimers) -> list[int]:
        if self._slots is not None:
            for aggregate_id, *_ in request.rows:
                self._slots.check(aggregate_id)
        rows = [
            ReservedRow(name, command_id, _event(type_, data, metadata))
            for name, command_id, type_, data, metadata in request.rows
        ]
        results = await self._store.append_timers(rows)
        for result in results:
            if isinstance(result, EventStoreError) and not isinstance(result, CommandIdReused):
                raise result
        return [result.sequence if isinstance(result, Committed) else 0 for result in results]


class ForwardedSettings:
    """Takes timers at a worker, and hands them to the store."""

    def __init__(self, set_timer: SetsTimer, domain: Domain) -> None:
        self._set_timer, self._domain = set_timer, domain

    @answers(SetTimer)
    async def set(self, request: SetTimer) -> TimerEvent:
        check_handled(self._domain, request)
        return await self._set_timer(request)


def check_handled(domain: Domain, request: SetTimer) -> None:
    """Raises as `Domain.decode` if a domain that has handlers has none for the command of a timer."""
    if domain.handlers:
        domain.decode(request.type, request.payload, request.aggregate_id)


class TimerOperators:
    """Answers the requests of operators, where timers run."""

    def __init__(self, running: RunningTimers) -> None:
        self._running = running

    @answers(ListTimers, size=TIMER_ROWS_MAX * 1_024)
    async def list_all(self, request: ListTimers) -> list[TimerInfo]:
        found, skip = list[TimerInfo](), request.skip
        for runner in self._running.runners:
            await runner.timers.wait_for_end()
            places = await _earliest(runner, skip) if request.owner is None else await _places_of(runner, request.owner)
            for place in places[skip:]:
                timer = await _timer(runner, place)
                if timer is not None:
                    found.append(timer.info)
                if len(found) == TIMER_ROWS_MAX:
                    return found
            skip = max(0, skip - len(places))
        return found

    @answers(ChangeTimer)
    async def change(self, request: ChangeTimer) -> TimerEvent:
        runner, timer = await self._find(request.aggregate_id, request.timer)
        fields: dict[str, Any] = {**timer.said.reference, "who": request.who, "why": request.why}
        type_, metadata = CANCELLED, None
        if request.how != "cancel":
            fields["at_us"] = wall_us() if request.at_us is None else request.at_us
            type_ = MOVED
            if timer.said.of:  # what was parked is set again
                type_, metadata = SET, timer.command.event.metadata
                fields |= {each: timer.command.fields[each] for each in ("type", "aggregate_id", "payload")}
        event = _event(type_, beside(request.aggregate_id, fields), metadata)
        done = await _appended(runner.store, ReservedRow(timers_id(request.aggregate_id), fresh_command_id(), event))
        runner.timers.hint()
        who = f"{request.who}: {request.why}"
        _log.warning("timer %s of %s: %s by %s", ascii(request.timer), ascii(request.aggregate_id), request.how, ascii(who))
        return TimerEvent(done.version, done.sequence)

    async def _find(self, owner: str, named: str) -> tuple[TimerRunner, _Timer]:
        for runner in self._running.runners:
            await runner.timers.wait_for_end()
            place = runner.timers.book.find(owner, named)
            timer = None if place is None else await _timer(runner, place)
            if timer is not None:
                return runner, timer
        raise InvalidArgument(
            f"{shown(owner)} has no timer {shown(named)} that is pending or parked; `eventstore timers list` shows what is",
            field="timer",
            value=shown(named),
        )

    @answers(ConfirmClock)
    async def confirm(self, request: ConfirmClock) -> None:
        for each in self._running.runners:
            each.timers.clock.confirm()
        _log.warning("the clock is confirmed by %s", ascii(f"{request.who}: {request.why}"))


async def _earliest(runner: TimerRunner, skip: int) -> list[int]:
    """Returns the events that say of timers that they are parked, or when they are due, the earliest first: as many as are
    asked for. On a thread, as there may be a million.
    """
    book = runner.timers.book
    parked = sorted(book.parked.values())
    pending = await trio.to_thread.run_sync(nsmallest, skip + TIMER_ROWS_MAX, book.values())
    return parked + [setting_of(each) for each in pending]


async def _places_of(runner: TimerRunner, owner: str) -> list[int]:
    """Returns these events of one aggregate."""
    found: dict[int, int] = {}
    for name in (owner, timers_id(owner)):
        async for event in runner.store.read(name):
            if event.type in (SET, MOVED, ENDED):
                try:
                    record = timer_record(event)
                except InvalidArgument:  # passed over, as by the timers themselves
                    continue
                (named,) = record.reference.values()
                if runner.timers.book.find(owner, named) == event.sequence:
                    found[event.sequence] = record.due_us
    return sorted(found, key=found.__getitem__)


async def _timer(runner: TimerRunner, place: int) -> _Timer | None:
    """Returns what the log says of a timer. `place`: of the event that says when it is due, or that it is parked."""
    event = await event_at(runner.store, place)
    if event is None:
        return None
    said = timer_record(event)
    of_command = int(said.fields["command"]) if said.of else runner.timers.book.command_of(place)
    found = event if of_command == place else await event_at(runner.store, of_command)
    return None if found is None else _Timer(said, timer_record(found))


class _Timer(NamedTuple):
    """`said`: when it is due, or that it is parked; `command`: what was to be sent."""

    said: TimerRecord
    command: TimerRecord

    @property
    def info(self) -> TimerInfo:
        said, command = self.said, self.command.fields
        due_us = said.fields["due_us"] if said.of else said.due_us
        why = str(said.fields.get("why", "")) if said.of else None
        (timer,) = said.reference.values()
        return TimerInfo(said.owner, timer, due_us, command["type"], command["aggregate_id"], why)


async def _appended(store: AppendsTimers, row: ReservedRow) -> Committed:
    """Appends an event of a timer; durable on return. Raises the errors of `append`."""
    (done,) = await store.append_timers([row])
    if isinstance(done, EventStoreError):
        raise done
    return done


def _event(type_: str, data: bytes | dict[str, Any], metadata: bytes | None) -> NewEvent:
    encoded, format_ = data if isinstance(data, bytes) else json_bytes(data), DATA_IS_JSON
    return tuple.__new__(NewEvent, (format_ if metadata is None else format_ | METADATA_IS_JSON, type_, encoded, metadata))
