"""The mailboxes without an event loop: commands in, batches out, outcomes in, answers out. A plain state machine.

`pump` does whatever can be done now, each step as a loop over what is there:

    outcomes that were delivered ─► settle ─► run commands ─► persist what the drafts hold ─► answer

It is not entered twice: a store that delivers inside `persist`, or a sender that submits inside `answer`, only leaves work for
the pump that is running. When everything of a batch is committed, the next one is handed to the store before the one before is
settled, so the disk does not wait for bookkeeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from eventstore_mailbox.answering import answer
from eventstore_mailbox.appends import Appends
from eventstore_mailbox.backoff import Backoff
from eventstore_mailbox.batch import AnyBatch, Batch
from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.driver import Driver
from eventstore_mailbox.entry import OVERLOADED, STOPPED, WAITING, AnyEntry
from eventstore_mailbox.errors import OutcomesMissing, Overloaded, Stopped, Stopping
from eventstore_mailbox.event_mailbox import Draft, EventMailbox
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.lanes import Lanes
from eventstore_mailbox.options import Options
from eventstore_mailbox.passage import Passage
from eventstore_mailbox.plain import Deliver
from eventstore_mailbox.ports import AnyPorts
from eventstore_mailbox.processor import Processor
from eventstore_mailbox.publisher import Publications, Publisher
from eventstore_mailbox.repeats import Repeats
from eventstore_mailbox.settlement import Settlement


class Machine:
    """Everything on one thread. After `submit`, `append` and whatever a `Driver` began, call `pump`."""

    def __init__(self, ports: AnyPorts, options: Options, driver: Driver) -> None:
        self.ports = ports
        self.options = options
        self.stopping = False
        self.abandoned = False
        self.mailboxes = [
            CommandMailbox(index, EventMailbox(options.batch_changes_max, options.batch_bytes_max, ports.size))
            for index in range(options.mailboxes)
        ]
        self.lanes = Lanes(options.aggregates_max)
        self.repeats = Repeats()
        self.publisher = Publisher(options, driver) if ports.publish is not None else None
        self.processor = Processor(ports, options, self.lanes, driver)
        self.settlement = Settlement(ports, options, self.lanes, self.repeats, self.processor, self.publisher, driver)
        self.processor.complete = self.settlement.complete
        self.passage = Passage(ports, options, driver, self._passed)
        self._appends = Appends(ports, options, self.lanes, self.processor, self.passage, self.mailbox_of)
        self.persist_failures = 0
        self._driver = driver
        self._delivered: deque[tuple[CommandMailbox, Draft, Sequence[object], list[int]]] = deque()
        self._backoffs: dict[CommandMailbox, Backoff] = {}
        self._pumping = self._unflushed = False

    # -- what comes in ------------------------------------------------------------------------------------------------

    def submit(self, entries: Sequence[AnyEntry]) -> list[AnyEntry]:
        """Accepts commands in order; returns those whose mailbox is full, with status OVERLOADED.

        Raises:
            Stopping: none was accepted.
        """
        if self.stopping:
            raise Stopping
        now, by_id, capacity, schedule = self.ports.clock(), self.lanes.by_id, self.options.capacity, self.processor.schedule
        passage, refused = self.passage, list[AnyEntry]()
        for entry in entries:
            lane = by_id.get(entry.aggregate_id)
            mailbox = self.mailbox_of(entry.aggregate_id) if lane is None else lane.mailbox
            if mailbox.depth >= capacity:
                refused.append(self._refuse(entry, mailbox))
                continue
            if lane is None:
                lane = self.lanes.open(entry.aggregate_id, mailbox)
                if passage.depth:
                    passage.hold_up(lane)
            entry.accepted = now
            entry.status = WAITING
            entry.lane = lane
            mailbox.depth += 1
            mailbox.max_offset += 1
            last = lane.last
            if last is None:
                lane.first = entry
            elif self.repeats.joins(lane, entry):
                mailbox.consume_offset += 1
                continue
            else:
                last.next = entry
            lane.last = entry
            if lane.cursor is None:
                lane.cursor = entry
            mailbox.arrivals.append(entry)
            if not mailbox.scheduled:
                schedule(mailbox)
        return refused

    def append(self, changes: Sequence[object], deliver: Deliver, source: object) -> None:
        """Plain appends, in order. `deliver` gets their outcomes together.

        Raises:
            Stopping, Overloaded: none was accepted.
        """
        if self.stopping:
            raise Stopping
        self._appends.append(changes, deliver, source)

    def stop(self) -> None:
        """No more commands are accepted; those that were are finished."""
        self.stopping = True

    def abandon(self) -> None:
        """Answers everything that is left with STOPPED; nothing that ends later has an effect."""
        self.stopping = self.abandoned = True
        lanes = list(self.lanes.by_id.values())
        self.lanes.by_id.clear()
        for lane in lanes:
            entry = lane.first
            while entry is not None:
                following, entry.next = entry.next, None
                entry.status = STOPPED
                entry.result = Stopped(entry.aggregate_id, entry.command_id)
                self.settlement.answers += [entry, *self.repeats.of(entry)]
                entry = following
            lane.first = lane.last = lane.cursor = lane.ids = None
        for mailbox in self.mailboxes:
            mailbox.arrivals.clear()
            mailbox.resumed.clear()
            mailbox.depth = 0
        self.processor.active.clear()
        self._delivered.clear()
        self._answer()
        self.passage.give_up()

    @property
    def depth(self) -> int:
        """Commands and plain appends accepted and not answered."""
        return sum(mailbox.depth for mailbox in self.mailboxes) + self.passage.depth

    @property
    def full(self) -> bool:
        """Whether some mailbox, or the passage, has no room."""
        capacity = self.options.capacity
        if self.passage.full:
            return True
        return any(mailbox.depth >= capacity for mailbox in self.mailboxes)

    def mailbox_of(self, aggregate_id: str) -> CommandMailbox:
        return self.mailboxes[self.ports.slot(aggregate_id) % self.options.mailboxes]

    # -- the pump -----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Does what can be done within `turn_s`; asks to be woken if there is more."""
        if self._pumping or self.abandoned:
            return
        self._pumping = True
        processor, delivered, clock = self.processor, self._delivered, self.ports.clock
        until = clock() + self.options.turn_s
        try:
            while True:
                while delivered:
                    self.settlement.settle(*delivered.popleft())
                if processor.active:
                    processor.run(until)
                self._hand_on()
                if self.publisher is not None:
                    self.publisher.go_on()
                if self.settlement.answers:
                    self._answer()
                if not (delivered or processor.active or processor.dirty) or clock() >= until:
                    break
        except BaseException:  # a bug of ours: whoever waits must hear of it
            self.abandon()
            raise
        finally:
            self._pumping = False
        if self.lanes.too_many:
            self.lanes.shrink()
        if delivered or processor.active or processor.dirty or self.lanes.too_many:
            self._driver.wake()

    def _hand_on(self) -> None:
        dirty = self.processor.dirty
        while dirty:
            self._persist_next(dirty.popitem()[0])
        if self._unflushed or self.passage.unflushed:
            self._unflushed = self.passage.unflushed = False
            self.ports.flush()

    def _persist_next(self, mailbox: CommandMailbox) -> None:
        draft = mailbox.events.take()
        if draft is not None:
            self._persist(mailbox, draft)

    def _persist(self, mailbox: CommandMailbox, draft: Draft) -> None:
        source = draft.entries[0].sender if len(draft.entries) == 1 else None
        batch = Batch(draft.changes, draft.followers, partial(self._persisted, mailbox, draft), source)
        self._unflushed = True
        try:
            self.ports.persist(batch)
        except Exception as error:
            batch.fail(error)

    def _persisted(self, mailbox: CommandMailbox, draft: Draft, _: AnyBatch, result: Sequence[object] | BaseException) -> None:
        if self.abandoned:
            return
        if not isinstance(result, BaseException) and len(result) != len(draft.changes):
            result = OutcomesMissing(len(draft.changes), len(result))
        statuses: list[int] = []
        if not isinstance(result, BaseException):
            try:
                statuses = list(map(self.ports.status, result))
            except Exception as error:  # not an outcome: nobody knows what became of the batch
                result = error
        if isinstance(result, BaseException):
            self._persist_later(mailbox, draft, result)
            return
        self._backoffs.pop(mailbox, None)
        mailbox.events.settled()
        self._delivered.append((mailbox, draft, result, statuses))
        self.processor.dirty[mailbox] = None
        if self._pumping:
            return
        if not any(statuses):
            self._persist_before_settling(mailbox)
        if len(result) <= self.options.settle_at_once_max:
            self.pump()
        else:
            self._driver.wake()

    def _persist_before_settling(self, mailbox: CommandMailbox) -> None:
        """The disk does not wait for bookkeeping."""
        self._pumping = True  # a store that answers at once only leaves its answer
        try:
            self._persist_next(mailbox)
        finally:
            self._pumping = False

    def _persist_later(self, mailbox: CommandMailbox, draft: Draft, error: BaseException) -> None:
        self.persist_failures += 1
        self.ports.on_error("persist", error)
        backoff = self._backoffs.setdefault(mailbox, Backoff(self.options.backoff_first_s, self.options.backoff_max_s))
        self._driver.later(backoff.next_s(), partial(self._persist, mailbox, draft))

    def _answer(self) -> None:
        answers, self.settlement.answers = self.settlement.answers, []
        answer(self.ports, answers)
        self.lanes.settled()
        self._driver.left()

    # -- what a driver began ------------------------------------------------------------------------------------------

    def handled(self, lane: Lane, entry: AnyEntry, change: object, error: BaseException | None) -> None:
        if not self.abandoned:
            self.processor.handled(lane, entry, change, error)

    def restored(self, lane: Lane, aggregate: object) -> None:
        if not self.abandoned:
            self.processor.restored(lane, aggregate)

    def unrestorable(self, lane: Lane, error: BaseException) -> None:
        if not self.abandoned:
            self.processor.unrestorable(lane, error)

    def restore_failed(self, lane: Lane, error: BaseException) -> None:
        if not self.abandoned:
            self.ports.on_error("restore", error)
            self.processor.restores.failed(lane)

    def published(self, publications: Publications) -> None:
        if not self.abandoned:
            assert self.publisher is not None
            self.settlement.published(list(self.publisher.published(publications)))

    def publish_failed(self, publications: Publications, error: BaseException) -> None:
        if not self.abandoned:
            assert self.publisher is not None
            self.ports.on_error("publish", error)
            self.publisher.failed(publications)

    def _passed(self, lane: Lane) -> None:
        """Plain appends that the lane waited for have gone by."""
        self.settlement.drained(lane)
        self._driver.wake()

    def _refuse(self, entry: AnyEntry, mailbox: CommandMailbox) -> AnyEntry:
        entry.status = OVERLOADED
        entry.result = Overloaded(f"mailbox {mailbox.index}", mailbox.depth, self.options.capacity)
        return entry
