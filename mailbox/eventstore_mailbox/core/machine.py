"""The mailboxes as a plain state machine: commands and outcomes in, batches and answers out.

`pump` does everything that can be done now, in loops over whole batches:

    outcomes that were delivered ─► apply them ─► run commands ─► persist drafts ─► answer

It is not reentrant: a store that delivers inside `persist`, or a sender that submits inside `answer`, only leaves work for the
pump that is running. If all of a batch was committed, the next one is handed to the store before the outcomes of this one are
applied, so the disk does not wait for bookkeeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from eventstore_mailbox.core import invariants
from eventstore_mailbox.core.append_call import Deliver, DeliverSome, WaitingBytes
from eventstore_mailbox.core.backoff import RetryDelay
from eventstore_mailbox.core.command_processor import CommandProcessor
from eventstore_mailbox.core.fair_share import FairShare
from eventstore_mailbox.core.fast_path import FastPath
from eventstore_mailbox.core.in_flight_duplicates import InFlightDuplicates
from eventstore_mailbox.core.joint_commands import PartEntry
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.outcome_processor import OutcomeProcessor
from eventstore_mailbox.core.plain_appends import PlainAppends
from eventstore_mailbox.core.ports import AnyBatch, AnyPorts, Batch, Driver, id_of, status_of
from eventstore_mailbox.core.resident_lanes import ResidentLanes
from eventstore_mailbox.core.state import (
    OVERLOADED,
    STOPPED,
    WAITING,
    AggregateQueue,
    AnyEntry,
    CommandMailbox,
    Draft,
    EventMailbox,
)
from eventstore_mailbox.errors import MailboxFull, OutcomesMissing, Stopped, Stopping


class Machine:
    """The mailboxes of one thread. Call `pump` after `submit`, `append`, and the end of anything a `Driver` started."""

    def __init__(self, ports: AnyPorts, options: Options, driver: Driver) -> None:
        self.ports = ports
        self.options = options
        self.stopping = False
        self.refuse: Callable[[], Stopping] = Stopping
        self.abandoned = False
        self.mailboxes = [
            CommandMailbox(index, EventMailbox(options.batch_changes_max, options.batch_bytes_max, ports.size))
            for index in range(options.mailboxes)
        ]
        self.lanes = ResidentLanes(options.aggregates_max, ports.evicted)
        self.duplicates = InFlightDuplicates(ports.same)
        self.fair_share = FairShare(options.capacity, self.duplicates)
        self.processor = CommandProcessor(ports, options, self.lanes, driver)
        self.waiting = WaitingBytes(options.waiting_bytes_max, ports.size)
        self.outcomes = OutcomeProcessor(ports, options, self.lanes, self.duplicates, self.processor, self.waiting, driver)
        self.processor.complete = self.outcomes.complete
        self.fast_path = FastPath(ports, options, driver, self._unblocked)
        self._appends = PlainAppends(
            ports, options, self.lanes, self.processor, self.fast_path, self.fair_share, self.waiting, self.mailbox_of
        )
        self.persist_failures = 0
        self._driver = driver
        self._delivered: deque[tuple[CommandMailbox, Draft, Sequence[object], list[int]]] = deque()
        self._backoffs: dict[CommandMailbox, RetryDelay] = {}
        self._pumping = self._unflushed = False

    # -- input --------------------------------------------------------------------------------------------------------

    def submit(self, entries: Sequence[AnyEntry]) -> list[AnyEntry]:
        """Accepts commands in order. Refuses a command if its mailbox, or its aggregate's share of it, is full; returns the
        refused commands, with status OVERLOADED.

        Raises:
            Stopping: none was accepted.
        """
        if self.stopping:
            raise self.refuse()
        now, by_id, crowded, schedule = self.ports.clock(), self.lanes.by_id, self.fair_share.crowded, self.processor.schedule
        fast_path, refused, others_of, lane_of = self.fast_path, list[AnyEntry](), self.ports.others, self.ports.lane
        for entry in entries:
            if others_of is not None and (others := others_of(entry.command)):
                if (refusal := self._submit_jointly(entry, others, now)) is not None:
                    entry.status = OVERLOADED
                    entry.result = refusal
                    refused.append(entry)
                continue
            name = entry.aggregate_id if lane_of is None else lane_of(entry.command) or entry.aggregate_id
            lane = by_id.get(name)
            mailbox = self.mailbox_of(name) if lane is None else lane.mailbox
            if mailbox.depth >= crowded and (refusal := self._refusal(lane, entry, mailbox)) is not None:
                entry.status = OVERLOADED
                entry.result = refusal
                refused.append(entry)
                continue
            if lane is None:
                lane = self.lanes.open(name, mailbox)
                if fast_path.depth:
                    fast_path.block(lane)
            entry.accepted = now
            entry.status = WAITING
            entry.lane = lane
            mailbox.depth += 1
            mailbox.max_offset += 1
            last = lane.last
            if last is None:
                lane.first = entry
            elif self.duplicates.add(lane, entry):
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

    def _submit_jointly(self, entry: AnyEntry, others: Sequence[str], now: float) -> MailboxFull | None:
        """Accepts a command about several aggregates in the lanes of all of them, or in none."""
        names = (entry.aggregate_id, *others)
        for name in names:
            lane = self.lanes.by_id.get(name)
            mailbox = self.mailbox_of(name) if lane is None else lane.mailbox
            full = mailbox.depth >= self.fair_share.crowded
            if full and (refusal := self._refusal(lane, entry, mailbox)) is not None:
                return refusal
        entry.accepted = now
        entry.status = WAITING
        lane = entry.lane = self._lane_of(entry.aggregate_id)
        if lane.last is not None and self.duplicates.add(lane, entry):
            mailbox = lane.mailbox
            mailbox.depth += 1
            mailbox.max_offset += 1
            mailbox.consume_offset += 1
            return None
        parts = self.processor.joint.parts[entry] = [PartEntry(name, entry) for name in others]
        self._link(lane, entry)
        for part in parts:
            part.accepted = now
            part.lane = self._lane_of(part.aggregate_id)
            self._link(part.lane, part)
        return None

    def _lane_of(self, aggregate_id: str) -> AggregateQueue:
        lane = self.lanes.by_id.get(aggregate_id)
        if lane is None:
            lane = self.lanes.open(aggregate_id, self.mailbox_of(aggregate_id))
            if self.fast_path.depth:
                self.fast_path.block(lane)
        return lane

    def _link(self, lane: AggregateQueue, entry: AnyEntry) -> None:
        """Appends an entry to its lane."""
        mailbox, last = lane.mailbox, lane.last
        mailbox.depth += 1
        mailbox.max_offset += 1
        if last is None:
            lane.first = entry
        else:
            last.next = entry
        lane.last = entry
        if lane.cursor is None:
            lane.cursor = entry
        mailbox.arrivals.append(entry)
        self.processor.schedule(mailbox)

    def append(
        self,
        changes: Sequence[object],
        deliver: Deliver,
        source: object,
        deliver_some: DeliverSome | None = None,
        size_bytes: int | None = None,
    ) -> Sequence[int]:
        """Accepts plain appends, in order.

        `deliver` gets all outcomes together, if no aggregate has commands in its mailbox. Otherwise `deliver_some` gets each
        outcome as soon as it is there. `size_bytes`: of all changes, at most; None: each is measured. Returns the places of
        the appends that wait for commands. Appends that a mailbox has no room for are refused alone (see `Ports.refusal`).

        Raises:
            Stopping, MailboxFull: none was accepted.
        """
        if self.stopping:
            raise self.refuse()
        return self._appends.append(changes, deliver, source, deliver_some, size_bytes)

    def forget(self, aggregate_ids: Iterable[str]) -> None:
        """Drops aggregates from memory: the store has changes of them that did not come from here."""
        for aggregate_id in aggregate_ids:
            lane = self.lanes.by_id.get(aggregate_id)
            if lane is not None:
                self.processor.forget(lane)

    def stop(self) -> None:
        """Accepts no more commands. Commands that were accepted are finished."""
        self.stopping = True

    def abandon(self) -> None:
        """Answers everything that is left with STOPPED; operations that end later have no effect."""
        self.stopping = self.abandoned = True
        lanes = list(self.lanes.by_id.values())
        self.lanes.by_id.clear()
        for lane in lanes:
            entry = lane.first
            while entry is not None:
                following, entry.next = entry.next, None
                entry.status = STOPPED
                entry.result = Stopped(entry.aggregate_id, entry.command_id)
                if not isinstance(entry, PartEntry):
                    self.outcomes.answers += [entry, *self.duplicates.pop(entry)]
                entry = following
            lane.first = lane.last = lane.cursor = lane.ids = None
        for mailbox in self.mailboxes:
            mailbox.arrivals.clear()
            mailbox.resumed.clear()
            mailbox.depth = 0
        self.processor.active.clear()
        self.processor.joint.abandon()
        self._delivered.clear()
        self._answer()
        self.fast_path.abandon()

    @property
    def depth(self) -> int:
        """Commands and plain appends accepted and not answered."""
        return sum(mailbox.depth for mailbox in self.mailboxes) + self.fast_path.depth

    def check_invariants(self) -> None:
        """For tests and simulators, between two steps. Raises AssertionError with the parts that contradict each other."""
        invariants.check(self)

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
                    self.outcomes.apply(*delivered.popleft())
                if processor.active:
                    processor.run(until)
                self._persist_drafts()
                if self.outcomes.answers:
                    self._answer()
                if not (delivered or processor.active or processor.dirty) or clock() >= until:
                    break
        except BaseException:  # a bug in this package: answer all waiting senders
            self.abandon()
            raise
        finally:
            self._pumping = False
        if too_many := self.lanes.too_many:
            self.lanes.shrink()
            too_many = self.lanes.too_many
        if delivered or processor.active or processor.dirty or too_many:
            self._driver.wake()

    def _persist_drafts(self) -> None:
        dirty = self.processor.dirty
        while dirty:
            self._persist_next(dirty.popitem()[0])
        if self._unflushed or self.fast_path.unflushed:
            self._unflushed = self.fast_path.unflushed = False
            self.ports.flush()

    def _persist_next(self, mailbox: CommandMailbox) -> None:
        draft = mailbox.events.take()
        if draft is None:
            return
        unloaded = self.ports.unloaded
        if unloaded is not None and (to_load := unloaded(self._ids_of(draft))):
            self._driver.load(to_load, partial(self._persist, mailbox, draft))
        else:
            self._persist(mailbox, draft)

    def _ids_of(self, draft: Draft) -> set[str]:
        """Returns the aggregates that a draft has changes of."""
        ids, parts = set(map(id_of, draft.entries)), self.processor.joint.parts
        if parts:
            ids.update(part.aggregate_id for entry in draft.entries for part in parts.get(entry, ()))
        return ids

    def _persist(self, mailbox: CommandMailbox, draft: Draft) -> None:
        source = draft.entries[0].sender if len(draft.entries) == 1 else None
        batch = Batch(draft.changes, draft.dependents, partial(self._persisted, mailbox, draft), source)
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
                statuses = list(map(status_of, result))
            except Exception as error:  # not an outcome: whether the batch was stored is not known
                result = error
        if isinstance(result, BaseException):
            self._persist_later(mailbox, draft, result)
            return
        self._backoffs.pop(mailbox, None)
        mailbox.events.written()
        self._delivered.append((mailbox, draft, result, statuses))
        self.processor.dirty[mailbox] = None
        if self._pumping:
            return
        if not any(statuses):
            self._persist_before_applying(mailbox)
        if len(result) <= self.options.apply_at_once_max:
            self.pump()
        else:
            self._driver.wake()

    def _persist_before_applying(self, mailbox: CommandMailbox) -> None:
        """Hands the next draft to the store before bookkeeping, so that the disk does not wait for it."""
        self._pumping = True  # outcomes of a store that delivers at once wait in `_delivered`
        try:
            self._persist_next(mailbox)
        finally:
            self._pumping = False

    def _persist_later(self, mailbox: CommandMailbox, draft: Draft, error: BaseException) -> None:
        backoff = self._backoffs.setdefault(mailbox, RetryDelay(self.options.backoff_first_s, self.options.backoff_max_s))
        if backoff.longest or not self.ports.passes(error):
            self.persist_failures += 1
            self.ports.on_error("persist", error)
        self._driver.call_later(backoff.next_s(), partial(self._persist, mailbox, draft))

    def _answer(self) -> None:
        self.outcomes.deliver_answers()
        self.lanes.commands_left()
        self._driver.answered()

    # -- ends of what the driver started ------------------------------------------------------------------------------

    def handled(self, lane: AggregateQueue, entry: AnyEntry, change: object, error: BaseException | None) -> None:
        if not self.abandoned:
            self.processor.handled(lane, entry, change, error)

    def looked_up(self, lane: AggregateQueue, entries: Sequence[AnyEntry], outcomes: Sequence[object]) -> None:
        if not self.abandoned:
            self.processor.looked_up(lane, entries, outcomes)

    def restored(self, lane: AggregateQueue, aggregate: object) -> None:
        if not self.abandoned:
            self.processor.restored(lane, aggregate)

    def unrestorable(self, lane: AggregateQueue, error: BaseException) -> None:
        if not self.abandoned:
            self.processor.unrestorable(lane, error)

    def restore_failed(self, lane: AggregateQueue, error: BaseException) -> None:
        if not self.abandoned:
            self.ports.on_error("restore", error)
            self.processor.restores.failed(lane)

    def _unblocked(self, lane: AggregateQueue) -> None:
        """Resumes a lane for which a fast-path call is done, unless it waits for anything else."""
        self.outcomes.drained(lane)
        self._driver.wake()

    def _refusal(self, lane: AggregateQueue | None, entry: AnyEntry, mailbox: CommandMailbox) -> MailboxFull | None:
        if mailbox.depth >= self.options.capacity:
            return MailboxFull(f"mailbox {mailbox.index}", mailbox.depth, self.options.capacity)
        return None if lane is None else self.fair_share.refusal(lane, entry)
