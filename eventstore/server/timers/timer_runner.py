"""Runs the timers of a log in a server or worker, and answers the requests about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from eventstore.commands import RawCommand
from eventstore.domain.domain import Domain
from eventstore.domain.timers.setting import told_of_settings
from eventstore.domain.timers.timer_clock import TimerClock
from eventstore.domain.timers.timer_file import TimerFile
from eventstore.domain.timers.timers import ReservedRow, Timers, TimerStore, steady_us, wall_us
from eventstore.errors import CommandIdReused, EventStoreError, InvalidArgument
from eventstore.failures import text_of
from eventstore.fields import shown
from eventstore.following.log import event_at
from eventstore.model import Committed, fresh_command_id
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.timer_info import TimerEvent, TimerInfo
from eventstore.protocol.timer_requests import (
    TIMER_ROWS_MAX,
    ChangeTimer,
    ConfirmClock,
    EndTimers,
    ListTimers,
    SetTimer,
)
from eventstore.records.timer_record import (
    CANCELLED,
    ENDED,
    MOVED,
    SET,
    TimerRecord,
    beside,
    set_data,
    timer_record,
    timers_id,
    when_fields,
)
from eventstore.server.broker.handlers import answers, routes_of
from eventstore.server.feature import Feature, Route
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate
from eventstore.server.own_commands import AppendsTimers, OwnCommands, appended, timer_event
from eventstore.server.requests.leadership import Leadership
from eventstore.server.requests.owned_slots import OwnedSlots
from eventstore.store.embedded import EmbeddedStore

_PAUSE_S: Final = 5.0
_log = logging.getLogger(__name__)


def timers_of(
    store: EmbeddedStore, own: OwnCommands, path: Path, slots: OwnedSlots | None, leads: Leadership | None
) -> TimerRunner:
    """Returns the timers of a server. `path`: of the file that keeps what is pending."""
    clock = TimerClock(wall_us, steady_us) if leads is None else TimerClock(wall_us, steady_us, leads.clock_difference_us)
    file = TimerFile(path)
    if slots is None:
        timers = Timers(store, own.send, file, clock, is_told=True)
    else:
        timers = Timers(store, own.send, file, clock, slots.owns, is_told=True)
    own.hint = timers.hint
    told_of_settings.add(timers)
    return TimerRunner(store, timers)


def timer_settings(
    gate: Gate, nursery: trio.Nursery, store: EmbeddedStore, domain: Domain, own: OwnCommands, slots: OwnedSlots | None
) -> Feature:
    """Returns what takes timers at a server, whether it runs them or a worker does."""

    def check(command: RawCommand) -> None:
        if domain.handlers:
            domain.decode(command.type, command.payload, command.aggregate_id)

    def owns(aggregate_id: str) -> None:
        if slots is not None:
            slots.check(aggregate_id)

    handlers = TimerHandlers(store, check, lambda: own.hint(), owns)
    return Feature(routes=routes_of(handlers, gate, DeferredReplies(gate, nursery)))


def timer_operators(gate: Gate, nursery: trio.Nursery, store: TimerStore, runner: TimerRunner) -> dict[type[Request], Route]:
    """Returns the routes of the requests of operators."""
    return routes_of(TimerOperators(store, runner), gate, DeferredReplies(gate, nursery))


class TimerRunner:
    """`failure`: why no timer runs, until they do."""

    def __init__(self, store: TimerStore, timers: Timers) -> None:
        self.timers = timers
        self._store = store
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

    @property
    def attention(self) -> str | None:
        """What an operator has to do about timers, if anything."""
        if (failure := self.failure or self.timers.failure) is not None:
            return f"timers: {failure}"
        parked = len(self.timers.book.parked)
        return f"{parked} timers are parked; `eventstore timers list` says why" if parked else None

    def lag_us(self) -> int:
        """Returns by how much the oldest due timer is late; 0 if none is."""
        oldest = self.timers.book.oldest_due_us
        return 0 if oldest is None else max(0, time.time_ns() // 1_000 - oldest)


class TimerHandlers:
    """Answers the requests of a store about timers; of a server, whether it runs them or not."""

    def __init__(
        self,
        store: AppendsTimers,
        check: Callable[[RawCommand], object],
        hint: Callable[[], None],
        owns: Callable[[str], object],
    ) -> None:
        """`check`: raises if no handler takes a command. `owns`: raises Elsewhere for an aggregate of another shard."""
        self._store, self._check, self._hint, self._owns = store, check, hint, owns

    @answers(SetTimer)
    async def set(self, request: SetTimer) -> TimerEvent:
        self._check(RawCommand(request.type, request.aggregate_id, request.payload))
        when = when_fields(request.after_us, request.at_us)
        fields = set_data(request.type, request.aggregate_id, request.payload, request.timer, when)
        event = timer_event(SET, beside(request.aggregate_id, fields), request.metadata)
        done = await appended(self._store, ReservedRow(timers_id(request.aggregate_id), request.command_id, event))
        self._hint()
        return TimerEvent(done.version, done.sequence)

    @answers(EndTimers)
    async def end(self, request: EndTimers) -> list[int]:
        for aggregate_id, _, _ in request.rows:
            self._owns(aggregate_id)
        rows = [ReservedRow(name, command_id, timer_event(ENDED, data, None)) for name, command_id, data in request.rows]
        results = await self._store.append_timers(rows)
        for each in results:
            if isinstance(each, EventStoreError) and not isinstance(each, CommandIdReused):
                raise each
        return [each.sequence if isinstance(each, Committed) else 0 for each in results]


class TimerOperators:
    """Answers the requests of operators, where timers run."""

    def __init__(self, store: TimerStore, runner: TimerRunner) -> None:
        self._store, self._runner = store, runner

    @property
    def _timers(self) -> Timers:
        return self._runner.timers

    @answers(ListTimers, size=TIMER_ROWS_MAX * 1_024)
    async def list_all(self, request: ListTimers) -> list[TimerInfo]:
        book, found, skip = self._timers.book, list[TimerInfo](), request.skip
        for place in chain(sorted(book.parked.values()), book.settings()):
            if request.owner is None and skip:  # those of one aggregate are known once they are read
                skip -= 1
                continue
            timer = await self._timer(place)
            if timer is None or request.owner not in (None, timer.said.owner):
                continue
            if skip:
                skip -= 1
                continue
            found.append(timer.info)
            if len(found) == TIMER_ROWS_MAX:
                break
        return found

    @answers(ChangeTimer)
    async def change(self, request: ChangeTimer) -> TimerEvent:
        owner, place = request.aggregate_id, self._timers.book.find(request.aggregate_id, request.timer)
        timer = None if place is None else await self._timer(place)
        if timer is None:
            raise InvalidArgument(
                f"{shown(owner)} has no timer {shown(request.timer)} that is pending or parked; `eventstore timers list` shows "
                "what is",
                field="timer",
                value=shown(request.timer),
            )
        info, command = timer.info, timer.command
        if request.type not in (None, info.command):
            raise InvalidArgument(
                f"the command of timer {shown(request.timer)} is of type {shown(info.command)}, not {shown(request.type)}",
                field="type",
                value=shown(info.command),
            )
        fields: dict[str, Any] = {**timer.said.reference, "who": request.who, "why": request.why}
        type_, metadata = CANCELLED, None
        if request.how != "cancel":
            fields["at_us"] = time.time_ns() // 1_000 if request.at_us is None else request.at_us
            type_ = MOVED
            if timer.said.of:  # what was parked is set again
                type_, metadata = SET, command.event.metadata
                fields |= {each: command.fields[each] for each in ("type", "aggregate_id", "payload")}
        event = timer_event(type_, beside(owner, fields), metadata)
        done = await appended(self._store, ReservedRow(timers_id(owner), fresh_command_id(), event))
        self._timers.hint()
        who = f"{request.who}: {request.why}"
        _log.warning("timer %s of %s: %s by %s", ascii(request.timer), ascii(owner), request.how, ascii(who))
        return TimerEvent(done.version, done.sequence)

    @answers(ConfirmClock)
    async def confirm(self, request: ConfirmClock) -> None:
        self._timers.clock.confirm()
        _log.warning("the clock is confirmed by %s", ascii(f"{request.who}: {request.why}"))

    async def _timer(self, place: int) -> _Timer | None:
        """Returns what the log says of a timer. `place`: of the event that says when it is due, or that it is parked."""
        event = await event_at(self._store, place)
        said = None if event is None else timer_record(event)
        if said is None:
            return None
        of_command = int(said.fields["command"]) if said.of else self._timers.book.command_of(place)
        found = event if of_command == place else await event_at(self._store, of_command)
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
