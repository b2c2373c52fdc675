"""Plain appends come in: which of a call go past the mailboxes, and which through them.

Those of an aggregate with commands in its mailbox go behind these. All others pass; where the aggregate is in memory, it is
forgotten, because it will not know of the change. With a publisher all go through the mailboxes, which keep the order of
publication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from eventstore_mailbox.command_mailbox import CommandMailbox
from eventstore_mailbox.errors import Overloaded
from eventstore_mailbox.lanes import Lanes
from eventstore_mailbox.options import Options
from eventstore_mailbox.passage import Passage
from eventstore_mailbox.plain import Call, Deliver, PlainEntry
from eventstore_mailbox.ports import AnyPorts
from eventstore_mailbox.processor import Processor


class Appends:
    def __init__(
        self, ports: AnyPorts, options: Options, lanes: Lanes, processor: Processor, passage: Passage,
        mailbox_of: Callable[[str], CommandMailbox],
    ) -> None:  # fmt: skip
        self._ports = ports
        self._options = options
        self._lanes = lanes
        self._processor = processor
        self._passage = passage
        self._mailbox_of = mailbox_of

    def append(self, changes: Sequence[object], deliver: Deliver, source: object) -> None:
        """As `Machine.append`."""
        passage, by_id = self._passage, self._lanes.by_id
        if passage.full:
            raise Overloaded("the passage of plain appends", passage.depth, self._options.passing_max)
        ids = set(map(self._ports.aggregate_id, changes))
        if self._ports.publish is not None:
            self._append_inside(changes, ids, deliver, source)
        elif not by_id.keys().isdisjoint(ids) and (busy := self._busy(ids)):
            self._append_inside(changes, busy, deliver, source)
        elif self._fits(changes):
            passage.send(list(changes), ids, deliver, source)
        else:
            self._pass_part(changes, range(len(changes)), Call(len(changes), deliver, source))

    def _busy(self, ids: set[str]) -> set[str]:
        """Aggregates with commands in their mailbox; those that are only in memory are forgotten."""
        by_id, busy = self._lanes.by_id, set()
        for aggregate_id in ids:
            lane = by_id.get(aggregate_id)
            if lane is not None:
                if lane.first is None:
                    self._lanes.close(lane)
                else:
                    busy.add(aggregate_id)
        return busy

    def _append_inside(self, changes: Sequence[object], inside: set[str], deliver: Deliver, source: object) -> None:
        """Those of aggregates `inside` go through the mailboxes, the others past them."""
        for mailbox in set(map(self._mailbox_of, inside)):
            if mailbox.depth >= self._options.capacity:
                raise Overloaded(f"mailbox {mailbox.index}", mailbox.depth, self._options.capacity)
        aggregate_id_of, command_id_of = self._ports.aggregate_id, self._ports.command_id
        call, now = Call(len(changes), deliver, source), self._ports.clock()
        places: list[int] = []
        for place, change in enumerate(changes):
            aggregate_id = aggregate_id_of(change)
            if aggregate_id in inside:
                self._link(PlainEntry(aggregate_id, command_id_of(change), change, call, place), now)
            else:
                places.append(place)
        if places:
            self._pass_part([changes[place] for place in places], places, call)

    def _link(self, entry: PlainEntry, now: float) -> None:
        """Puts an entry at the end of its lane."""
        lane = self._lanes.by_id.get(entry.aggregate_id)
        if lane is None:
            lane = self._lanes.open(entry.aggregate_id, self._mailbox_of(entry.aggregate_id))
            self._passage.hold_up(lane)
        mailbox = lane.mailbox
        entry.accepted, entry.lane = now, lane
        mailbox.depth += 1
        mailbox.max_offset += 1
        if lane.last is None:
            lane.first = entry
        else:
            lane.last.next = entry
        lane.last = entry
        if lane.cursor is None:
            lane.cursor = entry
        mailbox.arrivals.append(entry)
        self._processor.schedule(mailbox)

    # -- parts of a call ----------------------------------------------------------------------------------------------

    def _pass_part(self, changes: Sequence[object], places: Sequence[int], call: Call) -> None:
        """Some changes of a call pass, in as many batches as they need."""

        def put(places: Sequence[int], outcomes: list[object]) -> None:
            for place, outcome in zip(places, outcomes, strict=True):
                call.put(place, outcome)

        first = 0
        while first < len(changes):
            end = first + self._fitting(changes, first)
            part = list(changes[first:end])
            self._passage.send(part, set(map(self._ports.aggregate_id, part)), partial(put, places[first:end]), call.source)
            first = end

    def _fits(self, changes: Sequence[object]) -> bool:
        size = self._ports.size
        return len(changes) <= self._options.batch_changes_max and (
            size is None or sum(map(size, changes)) <= self._options.batch_bytes_max
        )

    def _fitting(self, changes: Sequence[object], first: int) -> int:
        """How many changes from `first` on make one batch; at least one."""
        most, size = min(len(changes) - first, self._options.batch_changes_max), self._ports.size
        if size is None:
            return most
        size_bytes = 0
        for count in range(most):
            size_bytes += size(changes[first + count])
            if size_bytes > self._options.batch_bytes_max:
                return max(count, 1)
        return most
