"""The processor: runs commands on aggregates in memory and hands their changes on. It never waits for the disk.

What cannot go on now (the aggregate is not in memory, an async handler is running) holds its own lane alone. A held lane's
commands stay in it; the processor goes on with others and comes back when the lane is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Final, cast

from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.driver import Driver
from eventstore_mailbox.entry import FAILED, SURE, UNCHANGED, AnyEntry
from eventstore_mailbox.hottest import Hottest
from eventstore_mailbox.lane import DRAINING, FREE, HANDLING, RESTORING, TAKEN, Lane
from eventstore_mailbox.lanes import Lanes
from eventstore_mailbox.options import Options
from eventstore_mailbox.plain import PLAIN, PlainEntry
from eventstore_mailbox.ports import AnyPorts
from eventstore_mailbox.restores import Restores

SAMPLE: Final = 64
"""One command in so many is counted for the busiest aggregates, with this weight."""


class Processor:
    """One for all mailboxes of a thread, which it serves in turns; to each mailbox it is the only one."""

    def __init__(self, ports: AnyPorts, options: Options, lanes: Lanes, driver: Driver) -> None:
        self.active: deque[CommandMailbox] = deque()
        self.dirty: dict[CommandMailbox, None] = {}
        self.restores = Restores(options, driver)
        self.busiest = Hottest(32)
        self.complete: Callable[[Lane], None] = lambda lane: None
        self._ports = ports
        self._handle = ports.handle
        self._clock = ports.clock
        self._slow_s = options.slow_handler_s
        self._lanes = lanes
        self._driver = driver

    def schedule(self, mailbox: CommandMailbox) -> None:
        if not mailbox.scheduled:
            mailbox.scheduled = True
            self.active.append(mailbox)

    def resume(self, lane: Lane) -> None:
        """Precondition: the lane is free."""
        lane.mailbox.resumed.append(lane)
        self.schedule(lane.mailbox)

    def run(self, until: float) -> None:
        """Serves the mailboxes until there is nothing left to do, or the time is over; at least one command."""
        active = self.active
        while active:
            mailbox = active[0]
            self.dirty[mailbox] = None
            now = self._serve_lanes(mailbox, until)
            if now < until or not mailbox.resumed:
                now = self._serve_arrivals(mailbox, now, until)
            if mailbox.resumed or mailbox.arrivals:
                active.rotate(-1)
            else:
                mailbox.scheduled = False
                active.popleft()
            if now >= until:
                return

    def _serve_lanes(self, mailbox: CommandMailbox, until: float) -> float:
        now, resumed, step = self._clock(), mailbox.resumed, self._step
        while resumed:
            lane = resumed[0]
            while lane.hold == FREE and (entry := lane.cursor) is not None:
                if entry.status in TAKEN:
                    lane.cursor = entry.next
                    continue
                now = step(lane, entry, now)
                if now >= until:
                    return now
            resumed.popleft()
        return now

    def _serve_arrivals(self, mailbox: CommandMailbox, now: float, until: float) -> float:
        arrivals, step, before = mailbox.arrivals, self._step, len(mailbox.arrivals)
        while arrivals:
            entry = arrivals.popleft()
            lane = entry.lane
            if lane.cursor is entry and lane.hold == FREE:  # else it waits in its lane
                now = step(lane, entry, now)
                if now >= until:
                    break
        mailbox.consume_offset += before - len(arrivals)
        return now

    def _step(self, lane: Lane, entry: AnyEntry, now: float) -> float:
        """Runs one command; returns the time after it. Precondition: the lane is free, the entry its next."""
        aggregate = lane.aggregate
        if aggregate is None or entry.command is PLAIN:
            self._step_without_aggregate(lane, entry)
            return self._clock()
        lane.touched = True
        lane.cursor = entry.next
        mailbox = lane.mailbox
        try:
            change = self._handle(entry.command, aggregate)
            if change is None:
                self._without_change(lane, entry, UNCHANGED, None)
            elif type(change) is CoroutineType:
                lane.hold = HANDLING
                self._driver.handle(lane, entry, cast("Coroutine[object, object, object]", change))
            else:
                mailbox.events.add(lane, entry, change)
        except BaseException as error:  # not even a handler's SystemExit may end the process
            self._raised(lane, entry, error)
        after = self._clock()
        mailbox.handled = handled = mailbox.handled + 1
        mailbox.wait_s += now - entry.accepted
        mailbox.handle_s += (took := after - now)
        if took > self._slow_s:
            mailbox.slow += 1
            self._ports.on_slow(entry, took)
        if not handled % SAMPLE:
            self.busiest.add(entry.aggregate_id, SAMPLE)
        return after

    def _step_without_aggregate(self, lane: Lane, entry: AnyEntry) -> None:
        plain = entry.command is PLAIN
        if lane.passing or (lane.flying and (not plain or lane.mark == lane.mailbox.events.front.number)):
            lane.hold = DRAINING  # a plain append names a version of its own: it follows nothing in its batch
        elif plain:
            lane.aggregate = None  # it will not know of this change
            lane.cursor = entry.next
            assert isinstance(entry, PlainEntry)
            try:
                lane.mailbox.events.add(lane, entry, entry.change)
            except Exception as error:
                self._settled(lane, entry, FAILED, error)
        else:
            lane.hold = RESTORING
            self.restores.request(lane)

    def _without_change(self, lane: Lane, entry: AnyEntry, status: int, result: object) -> None:
        """The store cannot tell whether this rests on an old state, as it does of a change: where others write to it, the
        command is handled once more on what it has by then."""
        if self._ports.refresh is None or entry.status == SURE:
            self._settled(lane, entry, status, result)
        else:
            lane.doubted, lane.aggregate = lane.aggregate, None
            lane.cursor = entry
            self._step_without_aggregate(lane, entry)

    def _settled(self, lane: Lane, entry: AnyEntry, status: int, result: object) -> None:
        """Without a change: it is answered once all before it is."""
        entry.status = status
        entry.result = result
        if lane.first is entry:
            self.complete(lane)

    def _raised(self, lane: Lane, entry: AnyEntry, error: BaseException) -> None:
        try:
            untouched = self._ports.untouched(lane.aggregate)
        except Exception as second:
            self._ports.on_error("untouched", second)
            untouched = False
        if not untouched:
            lane.aggregate = None
        lane.hold = FREE
        self._without_change(lane, entry, FAILED, error)

    # -- what took time -----------------------------------------------------------------------------------------------

    def handled(self, lane: Lane, entry: AnyEntry, change: object, error: BaseException | None) -> None:
        """An async handler ended. If its lane was set back meanwhile, what it did does not count."""
        lane.hold = FREE
        if lane.aggregate is not None:
            try:
                if error is not None:
                    self._raised(lane, entry, error)
                elif change is None:
                    self._without_change(lane, entry, UNCHANGED, None)
                else:
                    lane.mailbox.events.add(lane, entry, change)
            except Exception as raised:
                self._raised(lane, entry, raised)
        if lane.hold == FREE:
            self.resume(lane)

    def restored(self, lane: Lane, aggregate: object) -> None:
        self.restores.ended(lane)
        lane.hold = FREE
        if self._ports.refresh is not None and lane.cursor is not None:
            lane.cursor.status = SURE
        self._lanes.keep(lane, aggregate)
        self.resume(lane)

    def unrestorable(self, lane: Lane, error: BaseException) -> None:
        """The command that needed the aggregate fails; the next one tries again."""
        self.restores.ended(lane)
        lane.hold = FREE
        entry = lane.cursor
        assert entry is not None
        lane.cursor = entry.next
        self._settled(lane, entry, FAILED, error)
        self.resume(lane)
