"""Commands about several aggregates: one handler decides on all of them, and its change is one for the store.

Such a command is an entry in the lane of its first aggregate, and has a part in the lane of each other one. All are accepted
together, so two such commands are in the same order in every lane that both are in, and never wait for each other. A lane
that has come to its part, and has no change in flight, joins: it goes no further until the command is done. Once all have
joined, the aggregates that are not in memory are restored, the handler runs on all of them, and its change goes to the store
with those of other aggregates. When it is stored, the aggregates in memory are as the store has them, and the lanes go on.
After a conflict, all of them are dropped, restored and handled again.

So what precedes the command on its aggregates is durable when it is handled, and what follows is handled when it is durable.
That keeps a rewind within one lane: no other one is ahead on a state that the store has refused.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Final, cast

from eventstore_mailbox.core.ports import AnyPorts, Driver
from eventstore_mailbox.core.state import (
    AGGREGATE_NEEDED,
    CHANGES_IN_FLIGHT,
    COMMITTED,
    DUPLICATE,
    FAILED,
    HANDLER_ENDS,
    HANDLER_STARTS,
    IN_FLIGHT,
    JOINS,
    JOINT_ENDS,
    QUEUE_TRANSITIONS,
    STORED,
    UNCHANGED,
    AggregateQueue,
    AnyEntry,
    Entry,
)

if TYPE_CHECKING:
    from eventstore_mailbox.core.command_processor import CommandProcessor

PART: Final = object()
"""The command of an entry that stands for a joint command in the lane of another aggregate."""


class PartEntry(Entry[object, object]):
    """The place of a joint command in the lane of another aggregate. It ends with `whole`, and is not answered."""

    __slots__ = ("whole",)

    def __init__(self, aggregate_id: str, whole: AnyEntry) -> None:
        super().__init__(aggregate_id, whole.command_id, PART)
        self.whole = whole


class JointCommands:
    """The joint commands that are not answered yet.

    Attributes:
        parts: by the entry of a command, its places in the lanes of the other aggregates.
        joined: lanes that go no further until the command is done, with the entry of the command.
    """

    def __init__(self, processor: CommandProcessor, ports: AnyPorts, driver: Driver) -> None:
        self.parts: dict[AnyEntry, list[PartEntry]] = {}
        self.joined: dict[AggregateQueue, AnyEntry] = {}
        self._processor = processor
        self._ports = ports
        self._driver = driver
        self._refreshed: set[AnyEntry] = set()
        self._unrestorable: dict[AnyEntry, BaseException] = {}

    def whole_of(self, entry: AnyEntry) -> AnyEntry | None:
        """Returns the joint command that an entry is, or stands for; None if it is another command."""
        if isinstance(entry, PartEntry):
            return entry.whole
        return entry if entry in self.parts else None

    def entries_of(self, whole: AnyEntry) -> Iterator[AnyEntry]:
        """Yields the entries of a command, in the order in which its handler takes the aggregates."""
        yield whole
        yield from self.parts[whole]

    def abandon(self) -> None:
        """Forgets all of them: their lanes are gone."""
        self.parts.clear()
        self.joined.clear()
        self._refreshed.clear()
        self._unrestorable.clear()

    # -- until the handler runs ---------------------------------------------------------------------------------------

    def step(self, lane: AggregateQueue, whole: AnyEntry) -> None:
        """Goes on with a lane that has come to its part. Precondition: the lane is READY, with the part at its cursor."""
        if lane.fast_path_calls or lane.in_flight:
            lane.state = QUEUE_TRANSITIONS[lane.state, CHANGES_IN_FLIGHT]
            return
        lane.state = QUEUE_TRANSITIONS[lane.state, JOINS]
        self.joined[lane] = whole
        self._go_on(whole)

    def unrestorable(self, lane: AggregateQueue, whole: AnyEntry, error: BaseException) -> None:
        """Notes that an aggregate cannot be restored. Precondition: the lane is READY again."""
        self._unrestorable[whole] = error
        self.step(lane, whole)

    def _go_on(self, whole: AnyEntry) -> None:
        """Does what comes next, once all lanes have joined."""
        entries = list(self.entries_of(whole))
        if any(self.joined.get(each.lane) is not whole for each in entries):
            return
        if (error := self._unrestorable.pop(whole, None)) is not None:
            self._finish(whole, FAILED, error)
            return
        lacking = [each.lane for each in entries if each.lane.aggregate is None]
        for lane in lacking:
            lane.state = QUEUE_TRANSITIONS[lane.state, AGGREGATE_NEEDED]
            del self.joined[lane]  # it joins again
        for lane in lacking:
            self._processor.restores.add(lane)
        if not lacking:
            self._handle(whole, entries)

    # -- the handler --------------------------------------------------------------------------------------------------

    def _handle(self, whole: AnyEntry, entries: Sequence[AnyEntry]) -> None:
        lane, mailbox, clock = whole.lane, whole.lane.mailbox, self._ports.clock
        for each in entries:
            each.lane.referenced = True
        now = clock()
        try:
            change = self._ports.handle_jointly(whole.command, [each.lane.aggregate for each in entries])
            if type(change) is CoroutineType:
                lane.cursor = whole.next
                self._driver.run_handler(lane, whole, cast("Coroutine[object, object, object]", change))
                lane.state = QUEUE_TRANSITIONS[lane.state, HANDLER_STARTS]
            else:
                self._decided(whole, change)
        except BaseException as error:  # not even a handler's SystemExit may end the process
            self._raised(whole, error)
        mailbox.handled += 1
        mailbox.wait_s += now - whole.accepted
        mailbox.handle_s += (took := clock() - now)
        if took > self._processor.slow_s:
            mailbox.slow += 1
            self._ports.on_slow(whole, took)

    def handled(self, lane: AggregateQueue, whole: AnyEntry, change: object, error: BaseException | None) -> None:
        """Takes the result of an async handler."""
        lane.state = QUEUE_TRANSITIONS[lane.state, HANDLER_ENDS]
        lane.state = QUEUE_TRANSITIONS[lane.state, JOINS]
        lane.cursor = whole
        outdated, lane.outdated = lane.outdated, False
        try:
            if error is not None:
                self._raised(whole, error)
            else:
                self._decided(whole, change)
        except Exception as raised:
            self._raised(whole, raised)
        if outdated:
            lane.aggregate = None

    def _decided(self, whole: AnyEntry, change: object) -> None:
        if change is None:
            self._without_change(whole, UNCHANGED, None)
            return
        mailbox = whole.lane.mailbox
        mailbox.events.add(whole.lane, whole, change)
        self._processor.dirty[mailbox] = None
        for each in self.entries_of(whole):
            each.status = IN_FLIGHT
            each.lane.cursor = each.next

    def _raised(self, whole: AnyEntry, error: BaseException) -> None:
        for each in self.entries_of(whole):
            if each.lane.aggregate is not None and not self._processor.is_unmodified(each.lane.aggregate):
                each.lane.aggregate = None
        self._without_change(whole, FAILED, error)

    def _without_change(self, whole: AnyEntry, status: int, result: object) -> None:
        """Ends a command that made no change. If others write to the store, first refreshes all aggregates and handles the
        command once more.
        """
        if self._ports.refresh is None or whole in self._refreshed:
            self._finish(whole, status, result)
            return
        self._refreshed.add(whole)
        for each in self.entries_of(whole):
            each.lane.stale, each.lane.aggregate = each.lane.aggregate, None
            each.lane.cursor = each
        self._go_on(whole)

    def _finish(self, whole: AnyEntry, status: int, result: object) -> None:
        lanes = self.release(whole, status)
        self._processor.finish(whole.lane, whole, status, result)
        self.resume(lanes)

    # -- the end ------------------------------------------------------------------------------------------------------

    def rewind(self, whole: AnyEntry) -> None:
        """Moves all lanes back to a command whose change was in conflict, and drops the aggregates. The lane of the first one
        joins again, when it is time.
        """
        self._refreshed.discard(whole)
        del self.joined[whole.lane]
        for each in self.entries_of(whole):
            each.lane.rewind(each)

    def release(self, whole: AnyEntry, status: int, *, keep: bool = True) -> list[AggregateQueue]:
        """Ends the parts of a command whose status is about to be final, and lets its lanes go on; returns these, for `resume`
        once the command itself has ended. `keep`: the aggregates in memory are as the store has them.
        """
        entries = list(self.entries_of(whole))
        del self.parts[whole]
        self._refreshed.discard(whole)
        for each in entries:
            lane = each.lane
            lane.state = QUEUE_TRANSITIONS[lane.state, JOINT_ENDS]
            del self.joined[lane]
            lane.cursor = each.next
            if not keep:
                lane.aggregate = lane.stale = None
            if each is not whole:
                if status in (COMMITTED, DUPLICATE):
                    each.status = STORED
                each.status = status
                if lane.first is each:
                    self._processor.complete(lane)
        return [each.lane for each in entries]

    def resume(self, lanes: Sequence[AggregateQueue]) -> None:
        """Continues with lanes that `release` returned."""
        for lane in lanes:
            if lane.first is not None:
                self._processor.resume(lane)
