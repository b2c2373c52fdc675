"""What becomes of commands once the store has spoken: answers, and the way back after a conflict.

Entries are answered in the order of their lane, whatever it is that they end with: neither an error nor "nothing changed" may
tell of a state that is not durable.

A conflict (row M5): the aggregate is paused, its later changes are taken out of the batch (they come back as conflicts, being
followers) and out of the event mailbox, the aggregate in memory is forgotten, and its lane's cursor is set back to the command
that conflicted; the processor restores the aggregate when it gets there. Lanes of other aggregates are not touched.

What the store has taken is never handled again, wherever it stands: where a batch was done and its answer was lost, all of it
comes back as duplicates, and to handle the second once more would be to decide it on its own result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.driver import Driver
from eventstore_mailbox.entry import COMMITTED, CONFLICT, DUPLICATE, STORED, AnyEntry
from eventstore_mailbox.event_mailbox import Draft
from eventstore_mailbox.hottest import Hottest
from eventstore_mailbox.lane import DRAINING, FREE, HANDLING, PAUSED, Lane
from eventstore_mailbox.lanes import Lanes
from eventstore_mailbox.options import Options
from eventstore_mailbox.plain import PLAIN
from eventstore_mailbox.ports import AnyPorts, Publication
from eventstore_mailbox.processor import Processor
from eventstore_mailbox.publisher import Publisher
from eventstore_mailbox.repeats import Repeats


class Settlement:
    """`answers` are the entries that have left their mailboxes and whose senders have not been told."""

    def __init__(
        self, ports: AnyPorts, options: Options, lanes: Lanes, repeats: Repeats, processor: Processor,
        publisher: Publisher | None, driver: Driver,
    ) -> None:  # fmt: skip
        self.answers: list[AnyEntry] = []
        self.hottest = Hottest(32)
        self._lanes = lanes
        self._repeats = repeats
        self._processor = processor
        self._publisher = publisher
        self._driver = driver
        self._options = options
        self._ports = ports
        self._reruns: dict[AnyEntry, int] = {}

    def settle(self, mailbox: CommandMailbox, draft: Draft, outcomes: Sequence[object], statuses: Sequence[int]) -> None:
        """Every change of the draft is durable, or never will be."""
        if any(statuses):
            self._settle_mixed(mailbox, draft, outcomes, statuses)
        elif self._publisher is not None:
            self._settle_committed(draft, outcomes, statuses)
        else:
            self._answer_committed(draft, outcomes)

    def complete(self, lane: Lane) -> None:
        """Answers what is settled at the head of the lane."""
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

    def published(self, entries: Sequence[tuple[AnyEntry, int]]) -> None:
        lanes: dict[Lane, None] = {}
        for entry, status in entries:
            entry.status = status
            lanes[entry.lane] = None
        for lane in lanes:
            self.complete(lane)

    # -- the common case: everything committed ------------------------------------------------------------------------

    def _answer_committed(self, draft: Draft, outcomes: Sequence[object]) -> None:
        """As `_settle_committed`, in one loop: without a publisher a committed entry is the first of its lane."""
        answers, repeats, reruns = self.answers, self._repeats.by_entry, self._reruns
        for entry, outcome in zip(draft.entries, outcomes, strict=True):
            entry.result = outcome
            entry.status = COMMITTED
            lane = entry.lane
            lane.flying -= 1
            if entry.next is None and not repeats and not reruns:
                lane.mailbox.depth -= 1
                answers.append(entry)
                lane.first = lane.last = lane.cursor = lane.ids = None  # as `_emptied`
                if lane.aggregate is None:
                    self._emptied(lane)
            else:
                self.complete(lane)
            if lane.hold == DRAINING:
                self.drained(lane)

    def _settle_committed(self, draft: Draft, outcomes: Sequence[object], statuses: Sequence[int]) -> None:
        for entry, change, outcome, status in zip(draft.entries, draft.changes, outcomes, statuses, strict=True):
            entry.lane.flying -= 1
            self._durable(entry, change, outcome, status)
            self.drained(entry.lane)

    def _durable(self, entry: AnyEntry, change: object, outcome: object, status: int) -> None:
        entry.result = outcome
        if self._publisher is not None:
            entry.status = STORED
            self._publisher.add((entry, status, Publication(entry.aggregate_id, change, outcome)))
        else:
            self._end(entry, status, outcome)

    def _end(self, entry: AnyEntry, status: int, outcome: object) -> None:
        entry.status = status
        entry.result = outcome
        if entry.lane.first is entry:
            self.complete(entry.lane)

    # -- the rest: some of it not committed ---------------------------------------------------------------------------

    def _settle_mixed(self, mailbox: CommandMailbox, draft: Draft, outcomes: Sequence[object], statuses: Sequence[int]) -> None:
        broken: dict[Lane, None] = {}
        for entry, status in zip(draft.entries, statuses, strict=True):
            if status in (COMMITTED, DUPLICATE):
                entry.status = STORED
        rows = zip(draft.entries, draft.changes, outcomes, statuses, strict=True)
        for entry, change, outcome, status in rows:
            lane = entry.lane
            if lane in broken:
                if entry.status == STORED:
                    self._durable(entry, change, outcome, status)
                continue  # else it rests on what did not happen: it comes again, and so does whatever is after it
            lane.flying -= 1
            plain = entry.command is PLAIN
            again = status == CONFLICT and not plain and self._may_run_again(mailbox, entry)
            if status != COMMITTED and not plain:
                broken[lane] = None  # before the entry ends, lest those behind it that are settled end with it
                mailbox.reruns += lane.set_back(entry if again else entry.next)
            if again:
                continue
            if status in (COMMITTED, DUPLICATE):
                self._durable(entry, change, outcome, status)
            else:
                self._end(entry, status, outcome)
        if broken:
            mailbox.events.drop(broken)
        for lane in broken:
            self._begin_again(lane)
        for entry in draft.entries:
            self.drained(entry.lane)

    def _may_run_again(self, mailbox: CommandMailbox, entry: AnyEntry) -> bool:
        mailbox.conflicts += 1
        self.hottest.add(entry.aggregate_id)
        reruns = self._reruns.get(entry, 0)
        if reruns >= self._options.reruns_max:
            return False
        self._reruns[entry] = reruns + 1
        return True

    def _begin_again(self, lane: Lane) -> None:
        """The lane was set back; what it was held for does not matter any more."""
        if lane.hold == HANDLING:
            self._driver.cancel(lane)  # it ends in `handled`, and the lane goes on from there
            return
        lane.hold = FREE
        if lane.first is not None:
            reruns = self._reruns.get(lane.first, 0)
            if reruns > 1:  # another writer is faster: its aggregate has to wait, and no other
                lane.hold = PAUSED
                self._driver.later(self._pause_s(reruns), partial(self._paused, lane))
            else:
                self._processor.resume(lane)

    def _pause_s(self, reruns: int) -> float:
        options = self._options
        pause_s = min(options.rerun_pause_first_s * 2.0 ** min(reruns - 2, 62), options.rerun_pause_max_s)
        return pause_s * (0.5 + self._ports.chance())

    def _paused(self, lane: Lane) -> None:
        if lane.hold == PAUSED and lane.first is not None:
            lane.hold = FREE
            self._processor.resume(lane)

    # -- leaving ------------------------------------------------------------------------------------------------------

    def drained(self, lane: Lane) -> None:
        """Lets a lane go on that waited for what was on its way."""
        if lane.hold == DRAINING and not lane.flying and not lane.passing:
            lane.hold = FREE
            self._processor.resume(lane)

    def _leave(self, lane: Lane, entry: AnyEntry) -> None:
        mailbox = lane.mailbox
        mailbox.depth -= 1
        self.answers.append(entry)
        if self._reruns:
            self._reruns.pop(entry, None)
        if lane.ids is not None and lane.ids.get(entry.command_id) is entry:
            del lane.ids[entry.command_id]
        if self._repeats.by_entry:
            repeats = self._repeats.of(entry)
            mailbox.depth -= len(repeats)
            self.answers += repeats

    def _emptied(self, lane: Lane) -> None:
        lane.last = lane.cursor = lane.ids = None
        if lane.aggregate is None and self._lanes.by_id.get(lane.aggregate_id) is lane:
            self._lanes.close(lane)
