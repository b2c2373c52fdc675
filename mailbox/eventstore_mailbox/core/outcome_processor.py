"""Applies the outcomes of a batch: answers commands, and rewinds a lane after a conflict.

Entries are answered in the order of their lane, whatever their outcome: neither an error nor "nothing changed" may reveal a
state that is not durable.

After a conflict, the aggregate's later changes are removed: the changes in the batch come back as conflicts, because they
depend on it, and the changes in the event mailbox are taken out. The aggregate in memory is dropped, and the cursor of its lane
moves back to the command that conflicted; the processor restores the aggregate when it gets there. Lanes of other aggregates
are not touched.

A command whose change is stored is never handled again, wherever it is in its lane: if a batch was stored and its answer lost,
all of it comes back as duplicates, and handling the second again would decide it on its own result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from eventstore_mailbox.core.append_call import AppendCall, PlainEntry, WaitingBytes
from eventstore_mailbox.core.command_processor import CommandProcessor
from eventstore_mailbox.core.in_flight_duplicates import InFlightDuplicates
from eventstore_mailbox.core.joint_commands import PART
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import AnyPorts, Driver
from eventstore_mailbox.core.resident_lanes import ResidentLanes
from eventstore_mailbox.core.state import (
    COMMITTED,
    CONFLICT,
    CONFLICTED_AGAIN,
    DRAINING,
    DUPLICATE,
    FAILED,
    HANDLING,
    LOOKING_UP,
    NONE_IN_FLIGHT,
    PAUSE_OVER,
    PAUSED,
    PLAIN,
    QUEUE_TRANSITIONS,
    REWOUND,
    STORED,
    AggregateQueue,
    AnyEntry,
    CommandMailbox,
    Draft,
)
from eventstore_mailbox.top_k import TopK


class OutcomeProcessor:
    """Applies outcomes to lanes and collects what is to be answered.

    Attributes:
        answers: the entries that have left their mailboxes and are not delivered to their senders yet.
    """

    def __init__(
        self,
        ports: AnyPorts,
        options: Options,
        lanes: ResidentLanes,
        duplicates: InFlightDuplicates,
        processor: CommandProcessor,
        waiting: WaitingBytes,
        driver: Driver,
    ) -> None:
        self.answers: list[AnyEntry] = []
        self.most_conflicts = TopK(32)
        self._lanes = lanes
        self._duplicates = duplicates
        self._processor = processor
        self._joint = processor.joint
        self._waiting = waiting
        self._driver = driver
        self._options = options
        self._ports = ports
        self._reruns: dict[AnyEntry, int] = {}

    def apply(self, mailbox: CommandMailbox, draft: Draft, outcomes: Sequence[object], statuses: Sequence[int]) -> None:
        """Applies the outcomes of a draft: each of its changes is durable, or never will be."""
        if any(statuses):
            self._apply_mixed(mailbox, draft, outcomes, statuses)
        else:
            self._apply_committed(draft, outcomes)

    def complete(self, lane: AggregateQueue) -> None:
        """Answers the entries at the head of the lane that have a final status."""
        entry = lane.first
        while entry is not None and entry.status >= 0:
            following = entry.next
            entry.next = None
            if lane.cursor is entry:
                lane.cursor = following
            self._leave(lane, entry)
            entry = following
        lane.first = entry
        if entry is None:
            self._emptied(lane)

    def drained(self, lane: AggregateQueue) -> None:
        """Resumes a lane that waited for changes in flight, if none is left."""
        if lane.state == DRAINING and not lane.in_flight and not lane.fast_path_calls:
            lane.state = QUEUE_TRANSITIONS[lane.state, NONE_IN_FLIGHT]
            self._processor.resume(lane)

    # -- the common case: everything committed ------------------------------------------------------------------------

    def _apply_committed(self, draft: Draft, outcomes: Sequence[object]) -> None:
        """Answers all entries of the draft in one loop: a committed entry is the first of its lane."""
        answers, duplicates, reruns, joint = self.answers, self._duplicates.by_entry, self._reruns, self._joint.parts
        for entry, outcome in zip(draft.entries, outcomes, strict=True):
            lane = entry.lane
            lane.in_flight -= 1
            if joint and entry in joint:
                self._end_jointly(entry, COMMITTED, outcome)
                continue
            entry.result = outcome
            entry.status = COMMITTED
            if entry.next is None and not duplicates and not reruns:
                lane.mailbox.depth -= 1
                answers.append(entry)
                lane.first = lane.last = lane.cursor = lane.ids = None  # as `_emptied`
                if lane.aggregate is None:
                    self._emptied(lane)
            else:
                self.complete(lane)
            if lane.state == DRAINING:
                self.drained(lane)

    # -- the rest: some of it not committed ---------------------------------------------------------------------------

    def _apply_mixed(self, mailbox: CommandMailbox, draft: Draft, outcomes: Sequence[object], statuses: Sequence[int]) -> None:
        rewound: dict[AggregateQueue, None] = {}
        for entry, status in zip(draft.entries, statuses, strict=True):
            if status in (COMMITTED, DUPLICATE):
                entry.status = STORED
        for entry, change, outcome, status in zip(draft.entries, draft.changes, outcomes, statuses, strict=True):
            lane = entry.lane
            if lane in rewound:
                if entry.status == STORED:
                    self._end(entry, status, outcome)
                continue  # else it depends on a change that was not made, and is handled again like all after it
            lane.in_flight -= 1
            if entry in self._joint.parts:
                self._apply_jointly(mailbox, entry, change, outcome, status)
                continue
            plain = entry.command is PLAIN
            again = status == CONFLICT and not plain and self._may_rerun(mailbox, entry, change, outcome)
            if status != COMMITTED and not plain:
                rewound[lane] = None  # before the entry ends, so that the final ones after it do not end with it
                mailbox.reruns += lane.rewind(entry if again else entry.next)
            if status == DUPLICATE and not plain:
                self._processor.repeats.found(entry.aggregate_id)
            if not again:
                self._end(entry, status, outcome)
        if rewound:
            mailbox.events.remove(rewound)
        for lane in rewound:
            self._restart(lane)
        for entry in draft.entries:
            self.drained(entry.lane)

    def _apply_jointly(self, mailbox: CommandMailbox, entry: AnyEntry, change: object, outcome: object, status: int) -> None:
        """Applies the outcome of a command about several aggregates. Their lanes have gone no further than to it."""
        if status == CONFLICT and self._may_rerun(mailbox, entry, change, outcome):
            mailbox.reruns += 1
            self._joint.rewind(entry)
            self._restart(entry.lane)
        else:
            self._end_jointly(entry, status, outcome)

    def _end_jointly(self, entry: AnyEntry, status: int, outcome: object) -> None:
        lanes = self._joint.release(entry, status, keep=status == COMMITTED)
        self._end(entry, status, outcome)
        self._joint.resume(lanes)

    def _end(self, entry: AnyEntry, status: int, outcome: object) -> None:
        entry.status = status
        entry.result = outcome
        if entry.lane.first is entry:
            self.complete(entry.lane)

    def _may_rerun(self, mailbox: CommandMailbox, entry: AnyEntry, change: object, outcome: object) -> bool:
        mailbox.conflicts += 1
        if self._ports.creates(change):
            mailbox.creation_races += 1
            self._ports.on_created(entry, outcome)
        self.most_conflicts.add(entry.aggregate_id)
        reruns = self._reruns.get(entry, 0)
        if reruns >= self._options.reruns_max:
            return False
        self._reruns[entry] = reruns + 1
        return True

    def _restart(self, lane: AggregateQueue) -> None:
        """Continues with a lane that was rewound; what it waited for does not matter any more."""
        lane.state = QUEUE_TRANSITIONS[lane.state, REWOUND]
        if lane.state == HANDLING:
            self._driver.cancel_handler(lane)  # ends in `CommandProcessor.handled`, which resumes the lane
            return
        if lane.state == LOOKING_UP:  # ends in `CommandProcessor.looked_up`, which resumes the lane
            return
        if lane.first is not None:
            reruns = self._reruns.get(lane.first, 0)
            if reruns > 1:  # another writer is faster: only this aggregate has to wait
                lane.state = QUEUE_TRANSITIONS[lane.state, CONFLICTED_AGAIN]
                self._driver.call_later(self._pause_s(reruns), partial(self._pause_over, lane))
            else:
                self._processor.resume(lane)

    def _pause_s(self, reruns: int) -> float:
        options = self._options
        pause_s = min(options.rerun_pause_first_s * 2.0 ** min(reruns - 2, 62), options.rerun_pause_max_s)
        return pause_s * (0.5 + self._ports.random())

    def _pause_over(self, lane: AggregateQueue) -> None:
        if lane.state == PAUSED and lane.first is not None:
            lane.state = QUEUE_TRANSITIONS[lane.state, PAUSE_OVER]
            self._processor.resume(lane)

    # -- answers ------------------------------------------------------------------------------------------------------

    def deliver_answers(self) -> None:
        """Delivers commands to `Ports.answer` together, plain appends to the call they belong to."""
        answers, self.answers = self.answers, []
        commands = [entry for entry in answers if entry.command is not PLAIN]
        if len(commands) < len(answers):
            self._deliver_plain([entry for entry in answers if isinstance(entry, PlainEntry)])
        if commands:
            try:
                self._ports.answer(commands)
            except Exception as error:
                self._ports.on_error("answer", error)

    def _deliver_plain(self, entries: Sequence[PlainEntry]) -> None:
        calls: dict[AppendCall, tuple[list[int], list[object]]] = {}
        for entry in entries:
            self._waiting.remove(entry.change)
            outcome = entry.result
            if entry.status >= FAILED:
                assert isinstance(outcome, Exception)
                outcome = self._ports.refusal(outcome)
            places, outcomes = calls.setdefault(entry.call, ([], []))
            places.append(entry.place)
            outcomes.append(outcome)
        for call, (places, outcomes) in calls.items():
            try:
                call.put(places, outcomes)
            except Exception as error:  # one receiver's fault does not keep the others from their answers
                self._ports.on_error("answer", error)

    def _leave(self, lane: AggregateQueue, entry: AnyEntry) -> None:
        mailbox = lane.mailbox
        mailbox.depth -= 1
        if entry.command is PART:
            return
        self.answers.append(entry)
        if self._reruns:
            self._reruns.pop(entry, None)
        if lane.ids is not None and lane.ids.get(entry.command_id) is entry:
            del lane.ids[entry.command_id]
        if self._duplicates.by_entry:
            duplicates = self._duplicates.pop(entry)
            mailbox.depth -= len(duplicates)
            self.answers += duplicates

    def _emptied(self, lane: AggregateQueue) -> None:
        lane.last = lane.cursor = lane.ids = None
        if lane.aggregate is None and self._lanes.by_id.get(lane.aggregate_id) is lane:
            self._lanes.close(lane)
