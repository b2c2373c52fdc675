"""What holds between the parts of a `Machine` after each of its steps. For tests and simulators: it walks over everything.

Each count is the sum of what it counts, and each index names what is there. Whatever waits is known to what wakes it: a lane
that is READY is among the lanes that are served next, and a lane that waits is known to the changes, calls, restores or
handlers that it waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from eventstore_mailbox.core.append_call import PlainEntry
from eventstore_mailbox.core.joint_commands import PART, PartEntry
from eventstore_mailbox.core.state import (
    CONFLICT,
    DONE,
    DRAINING,
    FAILED,
    HANDLING,
    IN_FLIGHT,
    JOINING,
    LOOKING_UP,
    NEW,
    PAUSED,
    PLAIN,
    READY,
    REFRESHED,
    REFUSED,
    RESTORING,
    STORED,
    UNCHANGED,
    WAITING,
    AggregateQueue,
    AnyEntry,
    CommandMailbox,
    Draft,
)

if TYPE_CHECKING:
    from eventstore_mailbox.core.machine import Machine

_TO_HANDLE: Final = frozenset((WAITING, REFRESHED, NEW))
_HANDLED: Final = frozenset((IN_FLIGHT, UNCHANGED, FAILED)) | DONE


def check(machine: Machine) -> None:
    """Raises AssertionError with the parts that contradict each other. Call it between two steps, not within one."""
    if machine.abandoned:
        _check_abandoned(machine)
        return
    lanes = machine.lanes.by_id
    for aggregate_id, lane in lanes.items():
        assert lane.aggregate_id == aggregate_id, f"the lane of {lane.aggregate_id!r} is known as {aggregate_id!r}"
        assert lane.mailbox is machine.mailbox_of(aggregate_id), f"{_of(lane)} is in mailbox {lane.mailbox.index}"
        _check_entries(machine, lane)
        _check_waits(lane)
        _check_ids(lane)
    for mailbox in machine.mailboxes:
        _check_mailbox(machine, mailbox)
    _check_drafts(machine)
    _check_duplicates(machine)
    _check_joint_commands(machine)
    _check_fast_path(machine)
    _check_bytes(machine)
    restoring = sum(lane.state == RESTORING for lane in lanes.values())
    restores = machine.processor.restores
    assert restoring == restores.waiting + restores.running, (
        f"{restoring} lanes are RESTORING; {restores.waiting} wait for their restore and {restores.running} have begun it"
    )
    assert restores.running <= machine.options.restores_max, f"{restores.running} restores at once"
    machine.lanes.check_invariants()


def entries_of(lane: AggregateQueue) -> Iterator[AnyEntry]:
    """Yields the entries of a lane, from the oldest."""
    entry = lane.first
    while entry is not None:
        yield entry
        entry = entry.next


def _of(lane: AggregateQueue) -> str:
    entries = [(entry.command_id, entry.status) for entry in entries_of(lane)]
    at = None if lane.cursor is None else lane.cursor.command_id
    return f"the lane of {lane.aggregate_id!r} in state {lane.state} with {entries}, cursor at {at}"


def _check_entries(machine: Machine, lane: AggregateQueue) -> None:
    """Entries before the cursor were handled. Entries from the cursor on are to be handled, or were stored before a rewind."""
    entries = list(entries_of(lane))
    last = entries[-1] if entries else None
    assert lane.last is last, f"{_of(lane)} ends with {lane.last and lane.last.command_id}"
    assert lane.cursor is None or lane.cursor in entries, f"{_of(lane)}: the cursor is at none of them"
    at = len(entries) if lane.cursor is None else entries.index(lane.cursor)
    runs = lane.state == HANDLING and lane.aggregate is not None  # else its handler is cancelled
    for place, entry in enumerate(entries):
        assert entry.lane is lane, f"{_of(lane)}: {entry.command_id} is of another lane"
        name = _lane_of(machine, entry)
        assert name == lane.aggregate_id, f"{_of(lane)}: {entry.command_id} is for {name!r}"
        if place >= at:
            expected = _TO_HANDLE | DONE if place == at else DONE | {WAITING, NEW}
        else:
            expected = _TO_HANDLE if runs and place == at - 1 else _HANDLED
        assert entry.status in expected, f"{_of(lane)}: {entry.command_id} has status {entry.status}"
        assert entry.status not in (STORED, CONFLICT, REFUSED), f"{_of(lane)}: the outcome of {entry.command_id} is kept back"
    assert not entries or entries[0].status < 0, f"{_of(lane)}: the first one is final, and not answered"
    assert not runs or at > 0, f"{_of(lane)} runs a handler of no entry"


def _lane_of(machine: Machine, entry: AnyEntry) -> str:
    lane_of = machine.ports.lane
    if lane_of is None or entry.command is PLAIN or entry.command is PART:
        return entry.aggregate_id
    return lane_of(entry.command) or entry.aggregate_id


def _check_waits(lane: AggregateQueue) -> None:
    """Checks that whatever keeps a lane from going on is there, and will end."""
    mailbox = lane.mailbox
    if lane.state == READY and lane.cursor is not None:
        woken = lane in mailbox.resumed or lane.cursor in mailbox.arrivals
        assert woken, f"{_of(lane)}: it is neither resumed nor arriving, so nothing will serve it"
    elif lane.state == DRAINING:
        assert lane.in_flight or lane.fast_path_calls, f"{_of(lane)}: nothing is in flight that it waits for"
    elif lane.state in (RESTORING, PAUSED):
        in_flight = lane.in_flight, lane.fast_path_calls
        assert in_flight == (0, 0), f"{_of(lane)}: {in_flight} changes and calls are in flight"
        assert lane.cursor is not None, f"{_of(lane)}: nothing is to be handled"
    elif lane.state == LOOKING_UP:
        assert lane.cursor is not None, f"{_of(lane)}: nothing is to be handled"
    if lane.aggregate is not None:
        assert lane.resident, f"{_of(lane)}: its aggregate is in memory, and not on the clock"
        plain = any(entry.command is PLAIN and entry.status == IN_FLIGHT for entry in entries_of(lane))
        assert not plain, f"{_of(lane)}: its aggregate in memory does not know of a plain append in flight"


def _check_ids(lane: AggregateQueue) -> None:
    commands = [entry for entry in entries_of(lane) if entry.command is not PLAIN and entry.command is not PART]
    if lane.ids is None:
        assert len(commands) <= 1, f"{_of(lane)} has several commands, and no index of their ids"
        return
    for command_id, entry in lane.ids.items():
        assert entry.command_id == command_id, f"{_of(lane)}: {entry.command_id} is indexed as {command_id}"
        assert entry in commands, f"{_of(lane)}: {command_id} is indexed, and has left"


def _check_mailbox(machine: Machine, mailbox: CommandMailbox) -> None:
    duplicates = machine.duplicates.by_entry
    depth = sum(
        1 + len(duplicates.get(entry, ()))
        for lane in machine.lanes.by_id.values()
        if lane.mailbox is mailbox
        for entry in entries_of(lane)
    )
    name = f"mailbox {mailbox.index}"
    assert mailbox.depth == depth, f"{name} counts {mailbox.depth} commands, its lanes have {depth}"
    unseen = mailbox.max_offset - mailbox.consume_offset
    assert unseen == len(mailbox.arrivals), f"{name} counts {unseen} arrivals and has {len(mailbox.arrivals)}"
    active = list(machine.processor.active).count(mailbox)
    assert active == mailbox.scheduled, f"{name} is {active} times among the active ones; scheduled: {mailbox.scheduled}"
    assert active or not (mailbox.arrivals or mailbox.resumed), f"{name} has work, and is not active"
    for lane in mailbox.resumed:
        assert lane.mailbox is mailbox, f"{_of(lane)} is resumed in {name}"
    events = mailbox.events
    persisted = events.writing is not None or not events.waiting or active or mailbox in machine.processor.dirty
    assert persisted, f"{name} has {events.waiting} changes that nothing will persist"


def _check_drafts(machine: Machine) -> None:
    """Checks that each change in flight is in one draft, and that each lane counts its own."""
    drafts: list[Draft] = [draft for _, draft, _, _ in machine._delivered]
    for mailbox in machine.mailboxes:
        mailbox.events.check_invariants()
        drafts += mailbox.events.drafts
    in_flight = Counter(id(entry) for draft in drafts for entry in draft.entries)
    counted = Counter(entry.lane for draft in drafts for entry in draft.entries)
    for draft in drafts:
        for entry in draft.entries:
            where = f"draft {draft.number} has {entry.command_id} of {_of(entry.lane)}"
            assert entry.status == IN_FLIGHT, f"{where}, with status {entry.status}"
            assert in_flight[id(entry)] == 1, f"{where}, {in_flight[id(entry)]} times"
    for lane in machine.lanes.by_id.values():
        assert lane.in_flight == counted[lane], f"{_of(lane)} counts {lane.in_flight} in flight, drafts have {counted[lane]}"
        for entry in entries_of(lane):
            change = entry.whole if isinstance(entry, PartEntry) else entry
            assert entry.status != IN_FLIGHT or id(change) in in_flight, f"{_of(lane)}: {entry.command_id} is in no draft"
        del counted[lane]
    assert not counted, f"drafts have changes of lanes that were closed: {[_of(lane) for lane in counted]}"


def _check_duplicates(machine: Machine) -> None:
    lanes = machine.lanes.by_id
    for entry, duplicates in machine.duplicates.by_entry.items():
        lane = lanes.get(_lane_of(machine, entry))
        found = lane is not None and entry in entries_of(lane) and lane.ids is not None and lane.ids[entry.command_id] is entry
        assert found, f"{entry.command_id} of {entry.aggregate_id!r} has duplicates, and is not in its lane"
        for duplicate in duplicates:
            assert duplicate.status == WAITING, f"a duplicate of {entry.command_id} has status {duplicate.status} before it"
    for entry in machine.outcomes._reruns:
        lane = lanes.get(_lane_of(machine, entry))
        assert lane is not None, f"{entry.command_id} is to run again, and its lane is closed"
        assert entry in entries_of(lane), f"{entry.command_id} is to run again, and has left"
    for entry in machine.outcomes.answers:
        assert entry.status >= 0, f"{entry.command_id} is being answered with status {entry.status}"


def _check_joint_commands(machine: Machine) -> None:
    """Each joint command has its place in all its lanes, or in none. All that have joined wait for one that has not, or for the
    handler or the change.
    """
    parts, joined = machine.processor.joint.parts, machine.processor.joint.joined
    placed = [entry for lane in machine.lanes.by_id.values() for entry in entries_of(lane)]
    for part in [entry for entry in placed if isinstance(entry, PartEntry)]:
        assert part in parts.get(part.whole, ()), f"{part.command_id} has ended, and has a part in {_of(part.lane)}"
    for whole, others in parts.items():
        entries = [whole, *others]
        for entry in entries:
            assert entry in placed, f"{entry.command_id} has no place in the lane of {entry.aggregate_id!r}"
            ahead = entry.lane.state == JOINING and entry.status == IN_FLIGHT
            assert not ahead or entry.lane.first is entry, f"{_of(entry.lane)}: something precedes what it has joined for"
        statuses = {entry.status == IN_FLIGHT for entry in entries}
        assert len(statuses) == 1, f"{whole.command_id} is in flight of a part of its aggregates"
        waits = any(joined.get(entry.lane) is not whole for entry in entries)
        goes_on = waits or whole.status == IN_FLIGHT or whole.lane.state == HANDLING
        assert goes_on, f"all lanes of {whole.command_id} have joined, and nothing goes on"
    for lane in machine.lanes.by_id.values():
        known = (lane in joined) == (lane.state == JOINING or (lane.state == HANDLING and joined.get(lane) in parts))
        assert known, f"{_of(lane)} has joined for {lane in joined}"
    for lane, whole in joined.items():
        assert any(entry.lane is lane for entry in [whole, *parts[whole]]), f"{_of(lane)} has joined for another's command"


def _check_fast_path(machine: Machine) -> None:
    """Lanes with commands wait for all calls that contain their aggregate."""
    machine.fast_path.check_invariants()
    calls = Counter[AggregateQueue]()
    for call in machine.fast_path.calls:
        calls.update(call.lanes)
        for aggregate_id in call.ids:
            lane = machine.lanes.by_id.get(aggregate_id)
            waits = lane is None or call.lanes.count(lane) == 1
            assert waits, f"{aggregate_id!r} is in the fast-path call {call.number}, for which its lane does not wait once"
    for lane in machine.lanes.by_id.values():
        assert lane.fast_path_calls == calls[lane], f"{_of(lane)} counts {lane.fast_path_calls} calls of {calls[lane]}"


def _check_bytes(machine: Machine) -> None:
    size = machine.ports.size
    if size is None:
        return
    waiting = [entry for lane in machine.lanes.by_id.values() for entry in entries_of(lane)] + machine.outcomes.answers
    held = sum(size(entry.change) for entry in waiting if isinstance(entry, PlainEntry))
    assert machine.waiting.bytes == held, f"{machine.waiting.bytes} bytes of plain appends are counted, {held} wait"


def _check_abandoned(machine: Machine) -> None:
    left = machine.depth, len(machine.lanes.by_id), machine.waiting.bytes, len(machine.duplicates.by_entry)
    assert left == (0, 0, 0, 0), f"after it was abandoned: depth, lanes, waiting bytes and duplicates are {left}"
    assert not machine.outcomes.answers, f"{len(machine.outcomes.answers)} entries were abandoned without an answer"
