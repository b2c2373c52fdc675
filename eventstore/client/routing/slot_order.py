"""Keeps the commits of a slot in order while its shard, or the shard's leader, changes; sans-io.

As long as nothing is sent twice, calls do not wait for each other: what leaves on one connection arrives in order. But what a
shard refuses (Elsewhere), or does not answer before its connection is lost, is sent again, perhaps to another process. Then
every later call of that slot waits until the earlier ones are settled, one after the other; so it does while calls are
unanswered that were sent over a connection that is lost by now, or to a shard that does not own the slot in a newer map.

So a call is looked at slot by slot only if it, or another one of its slots, may have to wait; most are kept as a whole.

This rests on a promise of the server: a process that has refused a slot refuses it on that connection from then on.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

Way: TypeAlias = object
"""The queue of a connection to a shard, until that connection is lost."""


class LookAgain(Protocol):
    """Is set when a call that waits may look again."""

    def set(self) -> None: ...


S = TypeVar("S", bound=LookAgain)


class Ticket(Generic[S]):
    """A call's place in the order. `signal` is set when it is worth to look again; None while it need not wait."""

    __slots__ = ("number", "signal", "slots")

    def __init__(self, number: int, slots: set[int]) -> None:
        self.number, self.slots = number, slots
        self.signal: S | None = None

    def __lt__(self, other: Ticket[S]) -> bool:
        return self.number < other.number


class _Slot(Generic[S]):
    """`sent`: calls in flight; `way`: how they were sent; `queue`: calls that have to wait for their turn, in order."""

    __slots__ = ("queue", "sent", "way")

    def __init__(self, way: Way) -> None:
        self.way = way
        self.sent: list[Ticket[S]] = []
        self.queue: list[Ticket[S]] = []


class SlotOrder(Generic[S]):
    """The calls of a router that are not settled."""

    def __init__(self, make_signal: Callable[[], S]) -> None:
        self._make_signal = make_signal
        self._last = 0
        self._whole: dict[Ticket[S], None] = {}  # calls in flight that are in no slot; all were sent by these owners and ways
        self._owners: Sequence[int] = ()
        self._ways: dict[int, Way] = {}
        self._slots: dict[int, _Slot[S]] = {}

    def enter(self, slots: Iterable[int]) -> Ticket[S]:
        """Returns the place of a new call, behind all others. `leave` it in any case."""
        self._last += 1
        return Ticket(self._last, set(slots))

    def take(self, ticket: Ticket[S], owners: Sequence[int], ways: Mapping[int, Way]) -> list[int]:
        """Returns the slots of the call that it may send now, each to its owner; none: wait for the ticket's signal.

        `ways`: of each shard that owns one of them, the way as it is now.
        """
        if owners is not self._owners or not ways.items() <= self._ways.items():
            self._go(owners, ways)
        if not self._slots or self._slots.keys().isdisjoint(ticket.slots):
            self._whole[ticket] = None
            return list(ticket.slots)
        free = [slot for slot in ticket.slots if self._take(ticket, slot, ways[owners[slot]])]
        if not free:
            ticket.signal = self._make_signal()
        return free

    def _go(self, owners: Sequence[int], ways: Mapping[int, Way]) -> None:
        """Has calls leave by these from now on; those in flight are put into slots if they left by others."""
        if owners != self._owners or any(self._ways.get(shard, way) is not way for shard, way in ways.items()):
            self._part()
            self._ways.clear()
        self._owners = owners
        self._ways.update(ways)

    def _part(self) -> None:
        """Puts the calls that are kept as a whole into slots."""
        for ticket in list(self._whole):
            for number in ticket.slots:
                slot = self._slots.get(number)
                if slot is None:
                    slot = self._slots[number] = _Slot(self._ways[self._owners[number]])
                slot.sent.append(ticket)
        self._whole.clear()

    def _take(self, ticket: Ticket[S], number: int, way: Way) -> bool:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = _Slot(way)
        elif ticket in slot.sent:
            return False
        elif slot.queue or slot.way is not way:
            if ticket not in slot.queue:
                insort(slot.queue, ticket)
            if slot.sent or slot.queue[0] is not ticket:
                return False
            slot.way = way
        slot.sent.append(ticket)
        return True

    def answered(self, ticket: Ticket[S], slots: Iterable[int], again: Collection[int]) -> None:
        """The call has its outcomes of these slots. `again`: those of them that it has to send again."""
        if again:
            self._part()
        elif ticket in self._whole:
            del self._whole[ticket]
            ticket.slots.clear()
            return
        for number in slots:
            slot = self._slots[number]
            slot.sent.remove(ticket)
            if number not in again:
                ticket.slots.discard(number)
                if ticket in slot.queue:
                    slot.queue.remove(ticket)
            elif ticket not in slot.queue:
                insort(slot.queue, ticket)
            self._wake(number, slot)

    def leave(self, ticket: Ticket[S]) -> None:
        """The call ends, with outcomes or without."""
        if not ticket.slots:
            return
        self._whole.pop(ticket, None)
        for number in ticket.slots:
            slot = self._slots.get(number)
            if slot is not None:
                for places in (slot.sent, slot.queue):
                    if ticket in places:
                        places.remove(ticket)
                self._wake(number, slot)
        ticket.slots.clear()

    def _wake(self, number: int, slot: _Slot[S]) -> None:
        if slot.queue and not slot.sent:
            if (signal := slot.queue[0].signal) is not None:
                signal.set()
        elif not slot.queue and not slot.sent:
            del self._slots[number]

    def wake_all(self) -> None:
        """Has every call look again: the client was closed."""
        for slot in self._slots.values():
            for ticket in slot.queue:
                if ticket.signal is not None:
                    ticket.signal.set()
