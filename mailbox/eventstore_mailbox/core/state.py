"""State of the mailboxes: commands (`Entry`), one lane for each aggregate, command mailboxes and event mailboxes.

`ENTRY_TRANSITIONS` and `QUEUE_TRANSITIONS` are complete. A lane's next state is looked up in its table: a transition that is
not there is a KeyError. The table for entries is used by the tests alone, which record each transition: every command makes
two, and a look-up for each would add 1 % to its cost.

An entry with a final status (0 and above) is answered once it is the first of its lane. An in-flight duplicate stays WAITING
and then takes the status of the entry it duplicates. `Machine` marks an entry OVERLOADED instead of accepting it, and STOPPED
if it is not answered when the machine is abandoned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from itertools import count
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

Command = TypeVar("Command")
Outcome = TypeVar("Outcome")

COMMITTED, DUPLICATE, CONFLICT, REFUSED, UNCHANGED, FAILED, STOPPED, OVERLOADED = range(8)
"""Final statuses of a command. The first four are the store's verdict on a change and come with its outcome. UNCHANGED: the
handler made no change. FAILED: `Entry.error` is what the handler raised, or why it could not run. STOPPED: the outcome is not
known. OVERLOADED: the command was not accepted."""

WAITING: Final = -1
"""Not handled yet, or to be handled again."""
IN_FLIGHT: Final = -2
"""Handled; its change is on its way to the store."""
REFRESHED: Final = -3
"""To be handled on an aggregate that was just brought up to date with a store that others write to."""
STORED: Final = -4
"""The store has its change; its outcome is not recorded yet."""
NEW: Final = -5
"""To be handled: it was looked up, and the store does not have it."""

DONE: Final = frozenset((STORED, COMMITTED, DUPLICATE))
"""The store has the change for good: a rewind leaves such an entry alone, and the cursor skips it."""


class EntryTransition(NamedTuple):
    before: int
    event: str
    after: int
    caused_by: str


_EARLIER: Final = "an earlier change of its lane was not committed"
ENTRY_TRANSITIONS: Final = (
    EntryTransition(WAITING, "its change goes into a batch", IN_FLIGHT, "EventMailbox.add"),
    EntryTransition(WAITING, "its handler changes nothing", UNCHANGED, "CommandProcessor"),
    EntryTransition(WAITING, "its handler raises", FAILED, "CommandProcessor"),
    EntryTransition(WAITING, "its aggregate cannot be restored", FAILED, "CommandProcessor"),
    EntryTransition(WAITING, "its aggregate is restored from a shared store", REFRESHED, "CommandProcessor"),
    EntryTransition(WAITING, "it is looked up, and the store has it", DUPLICATE, "CommandProcessor"),
    EntryTransition(WAITING, "it is looked up, and the store does not have it", NEW, "CommandProcessor"),
    EntryTransition(NEW, "its change goes into a batch", IN_FLIGHT, "EventMailbox.add"),
    EntryTransition(NEW, "its handler changes nothing", UNCHANGED, "CommandProcessor"),
    EntryTransition(NEW, "its handler raises", FAILED, "CommandProcessor"),
    EntryTransition(NEW, "its aggregate cannot be restored", FAILED, "CommandProcessor"),
    EntryTransition(NEW, "its aggregate is restored from a shared store", REFRESHED, "CommandProcessor"),
    EntryTransition(NEW, _EARLIER, WAITING, "AggregateQueue.rewind"),
    EntryTransition(REFRESHED, "its change goes into a batch", IN_FLIGHT, "EventMailbox.add"),
    EntryTransition(REFRESHED, "its handler changes nothing", UNCHANGED, "CommandProcessor"),
    EntryTransition(REFRESHED, "its handler raises", FAILED, "CommandProcessor"),
    EntryTransition(IN_FLIGHT, "the store committed the whole batch", COMMITTED, "OutcomeProcessor"),
    EntryTransition(IN_FLIGHT, "the store has it, but not all of its batch", STORED, "OutcomeProcessor"),
    EntryTransition(IN_FLIGHT, "the store refused it", REFUSED, "OutcomeProcessor"),
    EntryTransition(IN_FLIGHT, "it conflicted, and may run again", WAITING, "AggregateQueue.rewind"),
    EntryTransition(IN_FLIGHT, "it conflicted, and may not run again", CONFLICT, "OutcomeProcessor"),
    EntryTransition(IN_FLIGHT, _EARLIER, WAITING, "AggregateQueue.rewind"),
    EntryTransition(UNCHANGED, _EARLIER, WAITING, "AggregateQueue.rewind"),
    EntryTransition(FAILED, _EARLIER, WAITING, "AggregateQueue.rewind"),
    EntryTransition(STORED, "its outcome is recorded", COMMITTED, "OutcomeProcessor"),
    EntryTransition(STORED, "its outcome is recorded as a duplicate", DUPLICATE, "OutcomeProcessor"),
)

READY, DRAINING, RESTORING, HANDLING, PAUSED, LOOKING_UP, JOINING = range(7)

HANDLER_STARTS: Final = "an async handler starts"
HANDLER_ENDS: Final = "the handler ends"
CHANGES_IN_FLIGHT: Final = "a command must wait for changes in flight"
NONE_IN_FLIGHT: Final = "no change is in flight any more"
AGGREGATE_NEEDED: Final = "a command needs the aggregate from the store"
RESTORE_ENDS: Final = "the aggregate is restored, or cannot be"
UNREACHABLE: Final = "the store cannot be reached"
CONFLICTED_AGAIN: Final = "a command has conflicted again"
PAUSE_OVER: Final = "the pause is over"
REWOUND: Final = "its lane is rewound"
MAYBE_REPEATED: Final = "a command may be one that the store has"
LOOK_UP_ENDS: Final = "it is known which commands the store has"
JOINS: Final = "it has come to a command about several aggregates"
JOINT_ENDS: Final = "that command ends"

QUEUE_TRANSITIONS: Final = {
    (READY, HANDLER_STARTS): HANDLING,
    (READY, CHANGES_IN_FLIGHT): DRAINING,
    (READY, AGGREGATE_NEEDED): RESTORING,
    (READY, REWOUND): READY,
    (READY, CONFLICTED_AGAIN): PAUSED,
    (HANDLING, HANDLER_ENDS): READY,
    (HANDLING, REWOUND): HANDLING,  # the handler is cancelled, and ends
    (DRAINING, NONE_IN_FLIGHT): READY,
    (DRAINING, REWOUND): READY,
    (RESTORING, RESTORE_ENDS): READY,
    (RESTORING, UNREACHABLE): RESTORING,
    (PAUSED, PAUSE_OVER): READY,
    (READY, MAYBE_REPEATED): LOOKING_UP,
    (LOOKING_UP, LOOK_UP_ENDS): READY,
    (LOOKING_UP, REWOUND): LOOKING_UP,
    (READY, JOINS): JOINING,
    (JOINING, AGGREGATE_NEEDED): RESTORING,
    (JOINING, HANDLER_STARTS): HANDLING,
    (JOINING, REWOUND): READY,
    (JOINING, JOINT_ENDS): READY,
}
"""The next `AggregateQueue.state`, by the present one and what happens."""

NO_DRAFT: Final = -1

PLAIN: Final = object()
"""The command of an entry that needs no handler: its change came ready made (see `plain_appends`)."""


class Entry(Generic[Command, Outcome]):
    """A command for one aggregate, from acceptance until it is answered. Callers may subclass it (with `__slots__`) to carry
    more. Submit an entry once, or again after it was OVERLOADED.

    Attributes:
        sender: belongs to the caller; comes back with the answer, and with the batch if that holds no other change.
        status: final when the entry is answered, and not before.
        result: the outcome or error; final when the entry is answered, and not before.
    """

    __slots__ = ("accepted", "aggregate_id", "command", "command_id", "lane", "next", "result", "sender", "status")

    lane: AggregateQueue
    next: Entry[Command, Outcome] | None
    accepted: float
    result: object

    def __init__(self, aggregate_id: str, command_id: str, command: Command, sender: object = None) -> None:
        self.aggregate_id = aggregate_id
        self.command_id = command_id
        self.command = command
        self.sender = sender
        self.status = WAITING
        self.next = None

    @property
    def outcome(self) -> Outcome | None:
        """The store's outcome; None unless the status is COMMITTED, DUPLICATE, CONFLICT or REFUSED."""
        return cast("Outcome", self.result) if 0 <= self.status <= REFUSED else None

    @property
    def error(self) -> BaseException | None:
        """Why the command FAILED, was STOPPED or OVERLOADED; else None."""
        return cast("BaseException", self.result) if self.status >= FAILED else None


AnyEntry: TypeAlias = Entry[object, object]


class AggregateQueue:
    """One aggregate's commands, from the oldest unanswered to the newest.

        first              cursor              last
          │                  │                   │
          ▼                  ▼                   ▼
         [c1] ─► [c2] ─► [c3] ─► [c4] ─► … ─► [c9]
          in flight, in    to be handled
          order

    An entry is linked once and keeps its place until it is answered, so an aggregate's order cannot be lost; a conflict only
    moves the cursor back. Entries leave only at `first`. Aggregates do not share a lane: what blocks one blocks no other.

    Attributes:
        aggregate: in memory, or None.
        in_flight: changes handed on and not durable yet.
        fast_path_calls: fast-path calls in flight that contain this aggregate; the lane waits until they are done.
        referenced: used since the clock hand last passed (see `ResidentLanes`).
        resident: on the clock.
        last_draft: number of the last draft that has a handler's change of this aggregate.
        to_load: its first plain append waits until the store has loaded the aggregate.
        outdated: what is being restored, or handles a command, lacks changes of others and is dropped when that ends.
        stale: the aggregate on which the command at the cursor failed or changed nothing, until it is refreshed.
    """

    __slots__ = (
        "aggregate",
        "aggregate_id",
        "cursor",
        "fast_path_calls",
        "first",
        "ids",
        "in_flight",
        "last",
        "last_draft",
        "mailbox",
        "outdated",
        "referenced",
        "resident",
        "stale",
        "state",
        "to_load",
    )

    def __init__(self, aggregate_id: str, mailbox: CommandMailbox) -> None:
        self.aggregate_id = aggregate_id
        self.mailbox = mailbox
        self.aggregate: object = None
        self.first: AnyEntry | None = None
        self.last: AnyEntry | None = None
        self.cursor: AnyEntry | None = None
        self.state = READY
        self.in_flight = 0
        self.fast_path_calls = 0
        self.last_draft = NO_DRAFT
        self.referenced = self.to_load = self.outdated = False
        self.resident = False
        self.stale: object = None
        self.ids: dict[str, AnyEntry] | None = None

    def rewind(self, to: AnyEntry | None) -> int:
        """Moves the cursor back to `to` and drops the aggregate: everything from there that the store does not have is handled
        again, on an aggregate restored from the store. Returns how many commands had been handled.

        Precondition: everything before `to` is durable.
        """
        entry, handled = to, 0
        while entry is not self.cursor:
            assert entry is not None
            if entry.status != WAITING and entry.status not in DONE:
                entry.status = WAITING
                handled += 1
            entry = entry.next
        self.cursor = to
        self.aggregate = self.stale = None
        self.in_flight = 0
        return handled


class CommandMailbox:
    """Commands of all aggregates whose slot maps to this mailbox. `Machine` bounds it where entries are accepted.

    Attributes:
        max_offset: commands accepted so far; each gets the next number.
        consume_offset: commands that the processor has seen. If a command's lane is not READY, it waits in its lane after that.
        depth: commands not answered yet. An entry leaves when its change is durable.
    """

    __slots__ = (
        "arrivals",
        "conflicts",
        "consume_offset",
        "creation_races",
        "depth",
        "events",
        "handle_s",
        "handled",
        "index",
        "max_offset",
        "reruns",
        "resumed",
        "scheduled",
        "slow",
        "wait_s",
    )

    def __init__(self, index: int, events: EventMailbox) -> None:
        self.index = index
        self.events = events
        self.arrivals: deque[AnyEntry] = deque()
        self.resumed: deque[AggregateQueue] = deque()
        self.scheduled = False
        self.max_offset = self.consume_offset = self.depth = 0
        self.handled = self.conflicts = self.creation_races = self.reruns = self.slow = 0
        self.wait_s = self.handle_s = 0.0


_draft_numbers = count()


class Draft:
    """A batch being built.

    Attributes:
        number: unique in the process; lanes remember it to know whether they are in this draft.
    """

    __slots__ = ("changes", "dependents", "entries", "number", "size_bytes")

    def __init__(self) -> None:
        self.number = next(_draft_numbers)
        self.entries: list[AnyEntry] = []
        self.changes: list[object] = []
        self.dependents: list[int] = []
        self.size_bytes = 0


class EventMailbox:
    """Changes on their way to the store: a double buffer, swapped and never copied.

    The front draft fills while the one before it is persisted. Only one draft is persisted at a time, so an aggregate's changes
    are always persisted in the order they were made. A draft that reaches a bound is closed and a new one started, so
    drafts may queue.
    """

    def __init__(self, changes_max: int, bytes_max: int, size: Callable[[object], int] | None) -> None:
        self.front = Draft()
        self.writing: Draft | None = None
        self._closed: deque[Draft] = deque()
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._size = size

    def add(self, lane: AggregateQueue, entry: AnyEntry, change: object) -> None:
        front, size = self.front, self._size
        entries = front.entries
        if size is not None:
            total = front.size_bytes + size(change)
            if total > self._bytes_max and entries:
                total -= front.size_bytes
                front = self._close_front()
                entries = front.entries
            front.size_bytes = total
        if lane.last_draft == front.number:
            front.dependents.append(len(entries))
        elif entry.command is not PLAIN:  # nothing depends on a plain append: its sender named the version
            lane.last_draft = front.number
        entry.status = IN_FLIGHT
        lane.in_flight += 1
        entries.append(entry)
        front.changes.append(change)
        if len(entries) >= self._changes_max:
            self._close_front()

    def take(self) -> Draft | None:
        """Returns the next draft to persist, or None if there is none or one is being persisted; `written` ends that."""
        if self.writing is not None:
            return None
        if self._closed:
            self.writing = self._closed.popleft()
        elif self.front.entries:
            self.writing, self.front = self.front, Draft()
        return self.writing

    def written(self) -> None:
        self.writing = None

    def remove(self, lanes: Collection[AggregateQueue]) -> None:
        """Removes the changes of these aggregates from all drafts that are not being persisted."""
        for lane in lanes:
            lane.last_draft = NO_DRAFT  # its next change depends on nothing in the front draft
        kept = (self._without(draft, lanes) for draft in self._closed)
        self._closed = deque(draft for draft in kept if draft.entries)
        self.front = self._without(self.front, lanes)

    @property
    def waiting(self) -> int:
        """Changes that are not being persisted yet."""
        return len(self.front.entries) + sum(len(draft.entries) for draft in self._closed)

    @property
    def drafts(self) -> list[Draft]:
        """All drafts, the oldest first."""
        return [*([] if self.writing is None else [self.writing]), *self._closed, self.front]

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless each draft fits together, and lanes know which of their changes depend."""
        for draft in self.drafts:
            entries, changes, places = draft.entries, draft.changes, draft.dependents
            assert len(entries) == len(changes), f"draft {draft.number}: {len(entries)} entries, {len(changes)} changes"
            assert places == sorted(set(places)), f"draft {draft.number}: the dependents {places} are not in order"
            for place in places:
                earlier = [entry.lane for entry in entries[:place]]
                assert entries[place].lane in earlier, f"draft {draft.number}: change {place} depends on none before it"
            if self._size is not None:
                size_bytes = sum(map(self._size, changes))
                assert draft.size_bytes == size_bytes, f"draft {draft.number} counts {draft.size_bytes} of {size_bytes} bytes"
        for entry in self.front.entries:
            known = entry.command is PLAIN or entry.lane.last_draft == self.front.number
            assert known, f"{entry.command_id} is in draft {self.front.number}, its lane knows of {entry.lane.last_draft}"

    def _close_front(self) -> Draft:
        self._closed.append(self.front)
        self.front = Draft()
        return self.front

    def _without(self, draft: Draft, lanes: Collection[AggregateQueue]) -> Draft:
        """Returns the draft, rebuilt if it has changes of these lanes. It keeps its number, by which other lanes know it."""
        kept = [place for place, entry in enumerate(draft.entries) if entry.lane not in lanes]
        if len(kept) == len(draft.entries):
            return draft
        rest = Draft()
        rest.number = draft.number
        rest.entries = [draft.entries[place] for place in kept]
        rest.changes = [draft.changes[place] for place in kept]
        moved = {old: new for new, old in enumerate(kept)}
        rest.dependents = [moved[place] for place in draft.dependents if place in moved]
        rest.size_bytes = sum(map(self._size, rest.changes)) if self._size is not None else 0
        return rest
