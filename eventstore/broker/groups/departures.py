"""Members that have left a group, and how: so that a consumer that is gone does not look like one that never was.

They are part of the offsets document, with the members there are: after a start of the broker these are lost until they join
again. A group has as many rows as ROWS_MAX; the oldest departure makes room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from eventstore.broker.groups.offsets_document import OffsetsDocument

ROWS_MAX: Final = 16
"""Of a group: with all groups that there may be, they are half of what all offsets may take."""
LEFT: Final = "left"
EXPIRED: Final = "expired"
LOST: Final = "lost"
_PRESENT: Final = ""
Clock: TypeAlias = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that is gone.

    Attributes:
        how: LEFT, it said so; EXPIRED, its heartbeats ended; LOST, it did not join again after a start of the broker.
        time_us: when, since 1970; of LOST the start.
    """

    member: str
    how: str
    time_us: int


class Departures:
    """Those of all groups."""

    def __init__(self, document: OffsetsDocument, clock: Clock = lambda: time.time_ns() // 1_000) -> None:
        self._document = document
        self._clock = clock
        self._noted = False
        started_us = clock()
        for rows in document.departures.values():
            for member, (how, _) in rows.items():
                if how == _PRESENT:
                    rows[member] = LOST, started_us

    def of(self, group: str) -> list[Departure]:
        """Returns the members that are gone, the latest first."""
        rows = self._document.departures.get(group, {})
        gone = [Departure(member, how, time_us) for member, (how, time_us) in rows.items() if how != _PRESENT]
        return sorted(gone, key=lambda each: -each.time_us)

    def joined(self, group: str, member: str) -> None:
        """Notes a member: it is not gone."""
        rows = self._document.departures.setdefault(group, {})
        if rows.get(member, (LOST,))[0] != _PRESENT:
            self._put(rows, member, _PRESENT)

    def gone(self, group: str, member: str, how: str) -> None:
        """Notes that a member is gone."""
        self._put(self._document.departures.setdefault(group, {}), member, how)

    def _put(self, rows: dict[str, tuple[str, int]], member: str, how: str) -> None:
        rows.pop(member, None)
        if len(rows) >= ROWS_MAX:
            gone = [each for each, (how_gone, _) in rows.items() if how_gone != _PRESENT]
            if not gone and how == _PRESENT:
                return  # a large group: which of its members are not noted does not matter while they are there
            del rows[gone[0] if gone else next(iter(rows))]
        rows[member] = how, self._clock()
        self._noted = True

    def tick(self) -> None:
        """Has what was noted saved with the next offsets. Not at once: a join must not wait for that."""
        if self._noted:
            self._noted, self._document.changed = False, True

    def forget(self, group: str) -> None:
        """Drops those of a deleted group."""
        self._document.departures.pop(group, None)
