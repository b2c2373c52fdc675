"""`TimerBook`: which timers are pending, by what the log says of them; and which command is to be sent next.

It is a state machine without I/O. It is told the events of `records.timer_record` in the order of the log, and asked what is
due at a time. Nothing else changes it, so two processes with the same log have the same book: a timer ends by an event in the
log, never by having been sent. Until then its command is offered again, under the same id.

Invariants:

- a timer is in `_values` as long as the log has a setting of it that was not cancelled, replaced, moved or ended;
- each value there is in the heap, or was taken from it by `due` and is in `_taken`;
- what else is in the heap is in `_dead`.

A pending timer takes about 150 bytes: one number that has its due time and the sequence of its setting, which heap and dict
share, and its key. Whose timer it is, and what its command is, the log knows.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Final, NamedTuple

from eventstore.records.timer_record import CANCELLED, ENDED, MOVED, SET, TimerRecord, key_of, slot_of_key

_SEQUENCE_BITS: Final = 64
_SEQUENCES: Final = (1 << _SEQUENCE_BITS) - 1
_DEAD_MIN: Final = 10_000
_PARKED_MAX: Final = 10_000
_ROW: Final = Struct("<QQqqq")
"""A key in two parts, due time, sequence of the setting, sequence of the event that has the command."""


class DueTimer(NamedTuple):
    """A timer whose time has come. `setting`: the sequence of the event that says when; `command`: of the one with the command,
    the same unless the timer was moved.
    """

    value: int
    due_us: int
    setting: int
    command: int


class TimerBook:
    """The timers of one log. `through`: the sequence of the last event that it was told."""

    def __init__(self) -> None:
        self.through = 0
        self._values: dict[int, int] = {}
        self._heap: list[int] = []
        self._dead: set[int] = set()
        self._taken: set[int] = set()
        self._commands: dict[int, int] = {}  # of what was moved, by the sequence of the setting
        self.parked: dict[int, int] = {}  # the sequence of the event that says so, by key

    def __len__(self) -> int:
        """How many timers are pending."""
        return len(self._values)

    def take(self, record: TimerRecord) -> None:
        """Takes the next event of the log."""
        type_, sequence, key = record.event[2], record.event[7], record.key
        self.through = sequence
        if type_ == SET:
            self._remove(key)
            self._add(key, record.due_us, sequence)
        elif type_ == MOVED:
            value = self._values.get(key)
            if value is not None:  # otherwise it was too late
                command = self._commands.get(value & _SEQUENCES, value & _SEQUENCES)
                self._remove(key)
                self._add(key, record.due_us, sequence)
                self._commands[sequence] = command
        elif type_ == CANCELLED:
            self._remove(key)
            self.parked.pop(key, None)
        elif type_ == ENDED:
            value = self._values.get(key)
            if value is not None and value & _SEQUENCES == record.of:  # not one that was changed while it was on its way
                self._remove(key)
                if record.fields["how"] == "parked" and len(self.parked) < _PARKED_MAX:
                    self.parked[key] = sequence

    def _add(self, key: int, due_us: int, sequence: int) -> None:
        self.parked.pop(key, None)
        value = self._values[key] = due_us << _SEQUENCE_BITS | sequence
        heappush(self._heap, value)

    def _remove(self, key: int) -> None:
        value = self._values.pop(key, None)
        if value is None:
            return
        self._commands.pop(value & _SEQUENCES, None)
        if value in self._taken:
            self._taken.discard(value)
            return
        self._dead.add(value)
        if len(self._dead) > _DEAD_MIN and len(self._dead) > len(self._values):
            self._heap = [each for each in self._heap if each not in self._dead]
            heapify(self._heap)
            self._dead.clear()

    def due(self, now_us: int, limit: int) -> list[DueTimer]:
        """Takes the timers that are due at this time, at most `limit`, the earliest first. Each is given once."""
        found: list[DueTimer] = []
        heap, end = self._heap, now_us + 1 << _SEQUENCE_BITS
        while heap and heap[0] < end and len(found) < limit:
            value = heappop(heap)
            if value in self._dead:
                self._dead.discard(value)
                continue
            self._taken.add(value)
            setting = value & _SEQUENCES
            found.append(DueTimer(value, value >> _SEQUENCE_BITS, setting, self._commands.get(setting, setting)))
        return found

    def is_pending(self, timer: DueTimer) -> bool:
        """Whether a timer that was given is as it was then: not cancelled, moved, replaced or ended."""
        return timer.value in self._taken

    @property
    def next_due_us(self) -> int | None:
        """When the next timer is due that was not given yet; None if there is none."""
        while self._heap and self._heap[0] in self._dead:
            self._dead.discard(heappop(self._heap))
        return self._heap[0] >> _SEQUENCE_BITS if self._heap else None

    @property
    def oldest_due_us(self) -> int | None:
        """When the earliest pending timer is due, given or not; None if there is none."""
        times = [value >> _SEQUENCE_BITS for value in self._taken]
        if (following := self.next_due_us) is not None:
            times.append(following)
        return min(times, default=None)

    @property
    def in_hand(self) -> int:
        """Timers that were given and have not ended."""
        return len(self._taken)

    def keep_slots(self, owns: Callable[[int], bool]) -> int:
        """Drops the timers of slots that another log has now; returns how many."""
        foreign = [key for key in (*self._values, *self.parked) if not owns(slot_of_key(key))]
        for key in foreign:
            self._remove(key)
            self.parked.pop(key, None)
        return len(foreign)

    def values(self) -> list[int]:
        """Returns a number for each pending timer; they are in the order in which the timers are due."""
        return list(self._values.values())

    def find(self, owner: str, named: str) -> int | None:
        """Returns the sequence of the event that says when a timer is due, or that it is parked; None: it is neither. `named`:
        its name, or the id of the setting that it began with.
        """
        for key in (key_of(owner, named, ""), key_of(owner, None, named)):
            value = self._values.get(key)
            if value is not None:
                return value & _SEQUENCES
            if key in self.parked:
                return self.parked[key]
        return None

    def command_of(self, setting: int) -> int:
        """Returns the sequence of the event that has the command of a pending timer."""
        return self._commands.get(setting, setting)

    # ---- on disk

    def copied(self) -> Callable[[], bytes]:
        """Returns what makes bytes of the pending timers as they are now: on a thread, in about half a second for a million."""
        items, commands = list(self._values.items()), dict(self._commands)

        def rows() -> bytes:
            pack, low = _ROW.pack, _SEQUENCES
            return b"".join(
                [
                    pack(key >> 64, key & low, value >> 64, value & low, commands.get(value & low, value & low))
                    for key, value in items
                ]
            )

        return rows

    @classmethod
    def of_rows(cls, rows: bytes, through: int, parked: dict[int, int]) -> TimerBook:
        """Returns the book that the rows are of. Raises ValueError: these are no rows."""
        if len(rows) % _ROW.size:
            raise ValueError(f"{len(rows)} bytes are no rows")
        book = cls()
        book.through, book.parked = through, parked
        values, heap, commands = book._values, book._heap, book._commands
        for high, low, due_us, setting, command in _ROW.iter_unpack(rows):
            value = values[high << 64 | low] = due_us << _SEQUENCE_BITS | setting
            heap.append(value)
            if command != setting:
                commands[setting] = command
        heapify(heap)
        return book

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless the book is as the head of this module says."""
        values, heap = set(self._values.values()), set(self._heap)
        assert len(heap) == len(self._heap), "a value is in the heap twice"
        assert values == (heap - self._dead) | self._taken, "pending timers, and those in heap or hands, differ"
        assert not heap & self._taken, "a timer was given, and is in the heap"
        assert self._dead <= heap, "a dead value is not in the heap"
        settings = {value & _SEQUENCES for value in values}
        assert self._commands.keys() <= settings, "a command is kept of a timer that is pending no more"
        assert all(self._heap[(place - 1) // 2] <= each for place, each in enumerate(self._heap) if place), "no heap"


def setting_of(value: int) -> int:
    """Returns the sequence of the setting of one of `TimerBook.values`."""
    return value & _SEQUENCES
