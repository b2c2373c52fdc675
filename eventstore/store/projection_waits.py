"""Who waits until the table of a projection has certain events, and what its projectors say of it.

Each wait gets a number. A projector asks for the newest number, is answered as soon as there is another one than it knows, then
looks at its table, and says up to where that is complete. Only what it has looked at after a wait began ends that wait: what it
said before may be of a table that was rebuilt since. A projection that runs several times, into tables of its own each, is
waited for until all of these are complete.

The numbers begin at random, so that what a projector said to an earlier process is not taken for an answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from eventstore.errors import EventStoreError, Overloaded

WAITS_MAX: Final = 10_000
"""Of all projections together, some hundred bytes each."""
PROJECTORS_MAX: Final = 1_000
"""Of all projections together."""
_NUMBER_BITS: Final = 62

AnswerProjector = Callable[[int, int], object]
"""Tells a projector the number of the newest wait, and the greatest sequence that is waited for."""
EndWait = Callable[[EventStoreError | None], object]
"""Ends a wait: with None, its events are in the table."""


@dataclass(slots=True, eq=False)
class Wait:
    """Until the table has the events up to `sequence`."""

    projection: str
    number: int
    sequence: int
    end: EndWait


@dataclass(slots=True)
class _Projector:
    """What a projector has said last: that its table is complete up to `position`, looked at after the wait of this number had
    begun. `asks`: how to answer it, while it asks.
    """

    is_gone: Callable[[], bool]
    number: int = 0
    position: int = -1
    asks: AnswerProjector | None = None


@dataclass(slots=True)
class _Waited:
    """One projection."""

    newest: int = field(default_factory=lambda: secrets.randbits(_NUMBER_BITS))
    waits: dict[int, Wait] = field(default_factory=dict)
    projectors: dict[object, _Projector] = field(default_factory=dict)


class ProjectionWaits:
    """The waits of a store. It belongs to one event loop, and calls back at once."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Waited] = {}
        self.count = 0

    def begin(self, projection: str, sequence: int, end: EndWait) -> Wait:
        """Begins to wait, and has the projectors told. Raises Overloaded."""
        if self.count >= WAITS_MAX:
            raise Overloaded(f"{WAITS_MAX:,} wait for projections, the limit; try again later", limit=WAITS_MAX)
        waited = self._by_name.setdefault(projection, _Waited())
        waited.newest += 1
        wait = waited.waits[waited.newest] = Wait(projection, waited.newest, sequence, end)
        self.count += 1
        for projector in [*waited.projectors.values()]:
            self._answer(waited, projector)
        return wait

    def cancel(self, wait: Wait) -> None:
        """Ends a wait whose caller has gone."""
        waited = self._by_name.get(wait.projection)
        if waited is not None and waited.waits.pop(wait.number, None) is not None:
            self.count -= 1
            self._forget_unused(wait.projection)

    def ask(
        self, projection: str, projector: object, number: int, answer: AnswerProjector, is_gone: Callable[[], bool]
    ) -> None:
        """A projector asks for the newest wait after the one of this number. `projector`: what it is known by, one for each
        table. `is_gone`: whether it has left without a word. Raises Overloaded.
        """
        waited = self._by_name.setdefault(projection, _Waited())
        if projector not in waited.projectors:
            if sum(len(each.projectors) for each in self._by_name.values()) >= PROJECTORS_MAX:
                self._forget_unused(projection)
                raise Overloaded(f"{PROJECTORS_MAX:,} projectors are connected, the limit", limit=PROJECTORS_MAX)
            waited.projectors[projector] = _Projector(is_gone)
        waited.projectors[projector].asks = answer
        if number != waited.newest:
            self._answer(waited, waited.projectors[projector])

    def tell(self, projection: str, projector: object, number: int, position: int) -> None:
        """A projector says that its table is complete up to a sequence, which it has looked at after it had learned of the wait
        of this number.
        """
        waited = self._by_name.get(projection)
        known = None if waited is None else waited.projectors.get(projector)
        if waited is not None and known is not None and number <= waited.newest:
            known.number, known.position = number, position
            self._end_reached(projection, waited)

    def leave(self, projection: str, projector: object) -> None:
        """A projector has ended: it is waited for no longer."""
        waited = self._by_name.get(projection)
        if waited is not None and waited.projectors.pop(projector, None) is not None:
            self._end_reached(projection, waited)
            self._forget_unused(projection)

    def end_all(self, error: EventStoreError) -> None:
        """Ends all waits with an error. What the projectors said counts no longer: they ask again."""
        by_name, self._by_name, self.count = self._by_name, {}, 0
        for waited in by_name.values():
            for projector in waited.projectors.values():
                if projector.asks is not None:
                    projector.asks(0, 0)
            for wait in waited.waits.values():
                wait.end(error)

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless the count is that of the waits, and what is kept is used by someone."""
        found = sum(len(each.waits) for each in self._by_name.values())
        assert self.count == found, f"{self.count} waits are counted, {found} are there"
        for name, each in self._by_name.items():
            assert each.waits or each.projectors, f"{name} is kept, and neither waited for nor projected"
            assert all(wait.number == number <= each.newest for number, wait in each.waits.items()), f"{name}: {each.waits}"
            assert all(known.number <= each.newest for known in each.projectors.values()), f"{name}: {each.projectors}"

    def _answer(self, waited: _Waited, projector: _Projector) -> None:
        if projector.asks is not None and waited.waits:
            answer, projector.asks = projector.asks, None
            answer(waited.newest, max(wait.sequence for wait in waited.waits.values()))

    def _end_reached(self, projection: str, waited: _Waited) -> None:
        for key in [key for key, each in waited.projectors.items() if each.is_gone()]:
            del waited.projectors[key]
        projectors = waited.projectors.values()
        if not projectors:
            return
        number, position = min(each.number for each in projectors), min(each.position for each in projectors)
        reached = [each for each in waited.waits.values() if each.number <= number and each.sequence <= position]
        for wait in reached:
            del waited.waits[wait.number]
        self.count -= len(reached)
        for wait in reached:
            wait.end(None)

    def _forget_unused(self, projection: str) -> None:
        waited = self._by_name[projection]
        if not waited.waits and not waited.projectors:
            del self._by_name[projection]
