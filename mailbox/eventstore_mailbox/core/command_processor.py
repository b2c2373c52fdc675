"""Runs commands on aggregates in memory and hands their changes to the event mailbox. It never waits for the disk.

A command that cannot run now (the aggregate is not in memory, an async handler is running) blocks only its own lane. Later
commands of that lane wait in it; the processor continues with other lanes and comes back when the lane is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import CoroutineType
from typing import Final, cast

from eventstore_mailbox.core.append_call import PlainEntry
from eventstore_mailbox.core.joint_commands import PART, JointCommands
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import AnyPorts, Driver
from eventstore_mailbox.core.repeats import LOOKED_UP_AT_ONCE, Repeats
from eventstore_mailbox.core.resident_lanes import ResidentLanes
from eventstore_mailbox.core.restore_queue import RestoreQueue
from eventstore_mailbox.core.state import (
    AGGREGATE_NEEDED,
    CHANGES_IN_FLIGHT,
    DONE,
    DUPLICATE,
    FAILED,
    HANDLER_ENDS,
    HANDLER_STARTS,
    HANDLING,
    LOOK_UP_ENDS,
    MAYBE_REPEATED,
    NEW,
    PLAIN,
    QUEUE_TRANSITIONS,
    READY,
    REFRESHED,
    RESTORE_ENDS,
    RESTORING,
    UNCHANGED,
    WAITING,
    AggregateQueue,
    AnyEntry,
    CommandMailbox,
)
from eventstore_mailbox.errors import ChangesFirst
from eventstore_mailbox.top_k import TopK

SAMPLE: Final = 64
"""One command of this many is counted for the busiest aggregates, with this weight."""


class CommandProcessor:
    """Serves all mailboxes of a thread in turn; a mailbox has no other processor.

    Attributes:
        dirty: mailboxes that may have a draft to persist.
        complete: is called with a lane whose first entry is final.
        joint: the commands about several aggregates.
    """

    def __init__(self, ports: AnyPorts, options: Options, lanes: ResidentLanes, driver: Driver) -> None:
        self.active: deque[CommandMailbox] = deque()
        self.dirty: dict[CommandMailbox, None] = {}
        self.restores = RestoreQueue(options, driver)
        self.busiest = TopK(32)
        self.complete: Callable[[AggregateQueue], None] = lambda lane: None
        self.repeats = Repeats()
        self._expected = self.repeats.expected if ports.look_up is not None else {}
        self._ports = ports
        self._handle = ports.handle
        self._clock = ports.clock
        self.slow_s = options.slow_handler_s
        self._lanes = lanes
        self._driver = driver
        self.joint = JointCommands(self, ports, driver)
        self._joint_parts = self.joint.parts

    def schedule(self, mailbox: CommandMailbox) -> None:
        if not mailbox.scheduled:
            mailbox.scheduled = True
            self.active.append(mailbox)

    def resume(self, lane: AggregateQueue) -> None:
        """Continues with a lane. Precondition: the lane is READY."""
        lane.mailbox.resumed.append(lane)
        self.schedule(lane.mailbox)

    def forget(self, lane: AggregateQueue) -> None:
        """Drops the aggregate of a lane; at the end of what is under way, if that has begun with it."""
        if lane.first is None:
            self._lanes.close(lane)
        elif lane.state in (RESTORING, HANDLING):
            lane.outdated = True
        else:
            lane.aggregate = None

    def run(self, until: float) -> None:
        """Serves the mailboxes until nothing is left to do or the time is over; runs at least one command."""
        active = self.active
        while active:
            mailbox = active[0]
            self.dirty[mailbox] = None
            now = self._serve_resumed(mailbox, until)
            if now < until or not mailbox.resumed:
                now = self._serve_arrivals(mailbox, now, until)
            if mailbox.resumed or mailbox.arrivals:
                active.rotate(-1)
            else:
                mailbox.scheduled = False
                active.popleft()
            if now >= until:
                return

    def _serve_resumed(self, mailbox: CommandMailbox, until: float) -> float:
        now, resumed, step = self._clock(), mailbox.resumed, self._step
        while resumed:
            lane = resumed[0]
            while lane.state == READY and (entry := lane.cursor) is not None:
                if entry.status in DONE:
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
            if lane.cursor is entry and lane.state == READY:  # else it waits in its lane
                now = step(lane, entry, now)
                if now >= until:
                    break
        mailbox.consume_offset += before - len(arrivals)
        return now

    def _step(self, lane: AggregateQueue, entry: AnyEntry, now: float) -> float:
        """Runs one command; returns the time after it. Precondition: the lane is READY, the entry at its cursor."""
        if self._joint_parts and (whole := self.joint.whole_of(entry)) is not None:
            self.joint.step(lane, whole)
            return self._clock()
        aggregate = lane.aggregate
        if self._expected and lane.aggregate_id in self._expected and entry.status == WAITING and entry.command is not PLAIN:
            self._look_up(lane, entry)
            return self._clock()
        if aggregate is None or entry.command is PLAIN:
            self._step_without_aggregate(lane, entry)
            return self._clock()
        lane.referenced = True
        lane.cursor = entry.next
        mailbox = lane.mailbox
        try:
            change = self._handle(entry.command, aggregate)
            if change is None:
                self._without_change(lane, entry, UNCHANGED, None)
            elif type(change) is CoroutineType:
                self._driver.run_handler(lane, entry, cast("Coroutine[object, object, object]", change))
                lane.state = QUEUE_TRANSITIONS[lane.state, HANDLER_STARTS]
            else:
                mailbox.events.add(lane, entry, change)
        except ChangesFirst:
            lane.cursor = entry
            if lane.in_flight:
                lane.state = QUEUE_TRANSITIONS[lane.state, CHANGES_IN_FLIGHT]
            else:
                self.resume(lane)
            return self._clock()
        except BaseException as error:  # not even a handler's SystemExit may end the process
            self._raised(lane, entry, error)
        after = self._clock()
        mailbox.handled = handled = mailbox.handled + 1
        mailbox.wait_s += now - entry.accepted
        mailbox.handle_s += (took := after - now)
        if took > self.slow_s:
            mailbox.slow += 1
            self._ports.on_slow(entry, took)
        if not handled % SAMPLE:
            self.busiest.add(entry.aggregate_id, SAMPLE)
        return after

    def _look_up(self, lane: AggregateQueue, entry: AnyEntry) -> None:
        """Asks which of the next commands the store has."""
        entries: list[AnyEntry] = []
        following: AnyEntry | None = entry
        while following is not None and len(entries) < LOOKED_UP_AT_ONCE:
            if following.status != WAITING or following.command is PLAIN or following.command is PART:
                break
            if following in self._joint_parts:
                break
            entries.append(following)
            following = following.next
        lane.state = QUEUE_TRANSITIONS[lane.state, MAYBE_REPEATED]
        self._driver.look_up(lane, entries)

    def _step_without_aggregate(self, lane: AggregateQueue, entry: AnyEntry) -> None:
        plain = entry.command is PLAIN
        if lane.fast_path_calls or (lane.in_flight and (not plain or lane.last_draft == lane.mailbox.events.front.number)):
            # a plain append names its own version, so it must not depend on a change in its batch
            lane.state = QUEUE_TRANSITIONS[lane.state, CHANGES_IN_FLIGHT]
        elif plain and not lane.to_load:
            lane.aggregate = None  # it does not know of this change
            lane.cursor = entry.next
            assert isinstance(entry, PlainEntry)
            try:
                lane.mailbox.events.add(lane, entry, entry.change)
            except Exception as error:
                self.finish(lane, entry, FAILED, error)
        else:
            lane.state = QUEUE_TRANSITIONS[lane.state, AGGREGATE_NEEDED]
            self.restores.add(lane)

    def _without_change(self, lane: AggregateQueue, entry: AnyEntry, status: int, result: object) -> None:
        """Ends a command that made no change. If others write to the store, first refreshes the aggregate and handles the
        command once more: without a change, the store cannot detect that the command was decided on an old state.
        """
        if self._ports.refresh is None or entry.status == REFRESHED:
            self.finish(lane, entry, status, result)
        else:
            lane.stale, lane.aggregate = lane.aggregate, None
            lane.cursor = entry
            self._step_without_aggregate(lane, entry)

    def finish(self, lane: AggregateQueue, entry: AnyEntry, status: int, result: object) -> None:
        """Sets the final status of a command without a change; it is answered after all commands before it."""
        entry.status = status
        entry.result = result
        if lane.first is entry:
            self.complete(lane)

    def _raised(self, lane: AggregateQueue, entry: AnyEntry, error: BaseException) -> None:
        if not self.is_unmodified(lane.aggregate):
            lane.aggregate = None
        self._without_change(lane, entry, FAILED, error)

    def is_unmodified(self, aggregate: object) -> bool:
        """Whether an aggregate is certain to be as it was before the handler that raised."""
        try:
            return self._ports.unmodified(aggregate)
        except Exception as second:
            self._ports.on_error("unmodified", second)
            return False

    # -- ends of what the driver started ------------------------------------------------------------------------------

    def handled(self, lane: AggregateQueue, entry: AnyEntry, change: object, error: BaseException | None) -> None:
        """Takes the result of an async handler; ignores it if its lane was rewound meanwhile."""
        if entry in self._joint_parts:
            self.joint.handled(lane, entry, change, error)
            return
        lane.state = QUEUE_TRANSITIONS[lane.state, HANDLER_ENDS]
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
        if lane.outdated:
            lane.outdated, lane.aggregate = False, None
        if lane.state == READY:
            self.resume(lane)

    def looked_up(self, lane: AggregateQueue, entries: Sequence[AnyEntry], outcomes: Sequence[object]) -> None:
        """Takes the outcome of each command that the store has, None for one that it does not have."""
        lane.state = QUEUE_TRANSITIONS[lane.state, LOOK_UP_ENDS]
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome is None:
                entry.status = NEW
                self.repeats.missed(lane.aggregate_id)
            else:
                entry.result = outcome
                entry.status = DUPLICATE
                self.repeats.found(lane.aggregate_id)
        while lane.cursor is not None and lane.cursor.status in DONE:
            lane.cursor = lane.cursor.next
        if lane.first is not None and lane.first.status >= 0:
            self.complete(lane)
        self.resume(lane)

    def restored(self, lane: AggregateQueue, aggregate: object) -> None:
        """Takes the aggregate, or, if it was to be loaded by the store, nothing."""
        self.restores.finished(lane)
        lane.state = QUEUE_TRANSITIONS[lane.state, RESTORE_ENDS]
        if lane.to_load:
            lane.to_load = False
        elif not lane.outdated:
            if self._ports.refresh is not None and lane.cursor is not None:
                lane.cursor.status = REFRESHED
            self._lanes.admit(lane, aggregate)
        lane.outdated = False
        self.resume(lane)

    def unrestorable(self, lane: AggregateQueue, error: BaseException) -> None:
        """Fails the command that needed the aggregate; the next command tries again."""
        self.restores.finished(lane)
        lane.to_load = False
        lane.state = QUEUE_TRANSITIONS[lane.state, RESTORE_ENDS]
        entry = lane.cursor
        assert entry is not None
        if (whole := self.joint.whole_of(entry)) is not None:
            self.joint.unrestorable(lane, whole, error)
            return
        lane.cursor = entry.next
        self.finish(lane, entry, FAILED, error)
        self.resume(lane)
