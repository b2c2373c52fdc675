"""Plain appends: changes that come ready made, with the sender's own expected version.

One call has many. If an aggregate has commands in its mailbox, its appends follow them, as entries of its lane. If the store
must load an aggregate first, its appends wait in its lane for that. All others take the fast path; if their aggregate is in
memory, it is dropped, because it does not know of the change. The sender gets the outcomes of its call together and in order,
or each as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from eventstore_mailbox.core.append_call import AppendCall, Deliver, DeliverSome, PlainEntry, WaitingBytes
from eventstore_mailbox.core.command_processor import CommandProcessor
from eventstore_mailbox.core.fair_share import FairShare
from eventstore_mailbox.core.fast_path import FastPath
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import AnyPorts, aggregate_id_of, command_id_of
from eventstore_mailbox.core.resident_lanes import ResidentLanes
from eventstore_mailbox.core.state import CommandMailbox
from eventstore_mailbox.errors import MailboxFull


class PlainAppends:
    def __init__(
        self,
        ports: AnyPorts,
        options: Options,
        lanes: ResidentLanes,
        processor: CommandProcessor,
        fast_path: FastPath,
        fair_share: FairShare,
        waiting: WaitingBytes,
        mailbox_of: Callable[[str], CommandMailbox],
    ) -> None:
        self._ports = ports
        self._options = options
        self._lanes = lanes
        self._processor = processor
        self._fast_path = fast_path
        self._fair_share = fair_share
        self._waiting = waiting
        self._mailbox_of = mailbox_of

    def append(
        self,
        changes: Sequence[object],
        deliver: Deliver,
        source: object,
        deliver_some: DeliverSome | None,
        size_bytes: int | None,
    ) -> Sequence[int]:
        """Same as `Machine.append`.

        Raises:
            MailboxFull: none was accepted.
        """
        fast_path, by_id = self._fast_path, self._lanes.by_id
        if fast_path.full:
            raise MailboxFull("the fast path of plain appends", fast_path.depth, self._options.fast_path_max)
        ids, unloaded = set(map(aggregate_id_of, changes)), self._ports.unloaded
        busy = set[str]() if not by_id or by_id.keys().isdisjoint(ids) else self._busy(ids)
        if unloaded is not None and (to_load := unloaded(ids)):
            busy.update(to_load)
            self._open_lanes(to_load)
        if busy:
            return self._append_to_lanes(changes, busy, AppendCall(len(changes), deliver, source, deliver_some))
        if self._fits_one_batch(changes, size_bytes):
            fast_path.send(list(changes), ids, deliver, source)
        else:
            self._send_in_parts(changes, range(len(changes)), AppendCall(len(changes), deliver, source))
        return ()

    def _busy(self, ids: set[str]) -> set[str]:
        """Returns the aggregates that have commands in their mailbox. Drops the others of `ids` from memory."""
        by_id, busy = self._lanes.by_id, set()
        for aggregate_id in ids:
            lane = by_id.get(aggregate_id)
            if lane is not None:
                if lane.first is None:
                    self._lanes.close(lane)
                else:
                    busy.add(aggregate_id)
        return busy

    def _open_lanes(self, aggregate_ids: Collection[str]) -> None:
        """Opens lanes for aggregates that the store must load first. An aggregate that has a lane is being restored anyway."""
        for aggregate_id in aggregate_ids:
            if aggregate_id not in self._lanes.by_id:
                lane = self._lanes.open(aggregate_id, self._mailbox_of(aggregate_id))
                lane.to_load = True
                if self._fast_path.depth:
                    self._fast_path.block(lane)

    def _append_to_lanes(self, changes: Sequence[object], busy: set[str], call: AppendCall) -> Sequence[int]:
        """Sends changes of `busy` aggregates through the mailboxes, the others on the fast path. Returns the places of the
        changes that went to mailboxes.
        """
        places: dict[str, list[int]] = {aggregate_id: [] for aggregate_id in busy}
        others: list[int] = []
        for place, change in enumerate(changes):
            places.get(aggregate_id_of(change), others).append(place)
        waiting, now = list[int](), self._ports.clock()
        for aggregate_id, own in places.items():
            refusal = self._refusal(aggregate_id, [changes[place] for place in own])
            if refusal is not None:
                self._close_if_empty(aggregate_id)
                call.put(own, [self._ports.refusal(refusal) for _ in own])
                continue
            waiting += own
            for place in own:
                change = changes[place]
                self._link(PlainEntry(aggregate_id, command_id_of(change), change, call, place), now)
        if others:
            self._send_in_parts([changes[place] for place in others], others, call)
        return waiting

    def _refusal(self, aggregate_id: str, changes: Sequence[object]) -> MailboxFull | None:
        """Returns the error if these changes have no room in the mailbox of their aggregate; counts their bytes otherwise."""
        lane = self._lanes.by_id[aggregate_id]
        mailbox = lane.mailbox
        if mailbox.depth >= self._options.capacity:
            return MailboxFull(f"mailbox {mailbox.index}", mailbox.depth, self._options.capacity)
        if mailbox.depth >= self._fair_share.crowded and (refusal := self._fair_share.refusal(lane, None)) is not None:
            return refusal
        try:
            self._waiting.add(changes)
        except MailboxFull as error:
            return error
        return None

    def _close_if_empty(self, aggregate_id: str) -> None:
        lane = self._lanes.by_id[aggregate_id]
        if lane.first is None:
            self._lanes.close(lane)

    def _link(self, entry: PlainEntry, now: float) -> None:
        """Appends an entry to its lane."""
        lane = self._lanes.by_id[entry.aggregate_id]
        mailbox, last = lane.mailbox, lane.last
        entry.accepted, entry.lane = now, lane
        mailbox.depth += 1
        mailbox.max_offset += 1
        lane.last = entry
        if last is None:
            lane.first = entry
        else:
            last.next = entry
        if lane.cursor is None:
            lane.cursor = entry
        mailbox.arrivals.append(entry)
        self._processor.schedule(mailbox)

    # -- parts of a call ----------------------------------------------------------------------------------------------

    def _send_in_parts(self, changes: Sequence[object], places: Sequence[int], call: AppendCall) -> None:
        """Sends some changes of a call on the fast path, in as many batches as they need."""
        first = 0
        while first < len(changes):
            end = first + self._fitting(changes, first)
            part = list(changes[first:end])
            self._fast_path.send(part, set(map(aggregate_id_of, part)), partial(call.put, places[first:end]), call.source)
            first = end

    def _fits_one_batch(self, changes: Sequence[object], size_bytes: int | None) -> bool:
        if len(changes) > self._options.batch_changes_max:
            return False
        if size_bytes is None or size_bytes > self._options.batch_bytes_max:
            size_bytes = 0 if self._ports.size is None else sum(map(self._ports.size, changes))
        return size_bytes <= self._options.batch_bytes_max

    def _fitting(self, changes: Sequence[object], first: int) -> int:
        """Returns how many changes from `first` on fit into one batch; at least one."""
        most, size = min(len(changes) - first, self._options.batch_changes_max), self._ports.size
        if size is None:
            return most
        size_bytes = 0
        for count in range(most):
            size_bytes += size(changes[first + count])
            if size_bytes > self._options.batch_bytes_max:
                return max(count, 1)
        return most
