"""`CandidateClasses`: which classes of a domain an aggregate may have, found out while its events are read.

Events that no class applies, or that several do, do not tell an aggregate's class; the next command does. Until then they are
kept, but only as far as some class would get when they are replayed on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eventstore.domain.aggregate import Aggregate, applies_by_name
from eventstore.domain.domain import Domain
from eventstore.model import Event
from eventstore.records.timer_record import OF_OWNERS

Classes = frozenset[type[Aggregate]]
_NONE: Final[Classes] = frozenset()


class CandidateClasses:
    """The classes that the handlers of a domain are for, by the event types that they apply."""

    def __init__(self, domain: Domain) -> None:
        self.all: Final[Classes] = frozenset(cls for handler in domain.handlers.values() for cls in handler.aggregates)
        self._lenient = frozenset(kind for kind in self.all if kind.ignores_unknown)
        applying: dict[str, Classes] = {}
        for kind in self.all:
            for name in applies_by_name(kind):
                applying[name] = applying.get(name, _NONE) | {kind}
        self._applying = applying

    def only(self, event_type: str) -> type[Aggregate] | None:
        """Returns the class that applies this type, if it is the only one."""
        applying = self._applying.get(event_type, _NONE)
        return next(iter(applying)) if len(applying) == 1 else None

    def narrow(self, classes: Classes, events: Iterable[Event]) -> tuple[Classes, list[Event]]:
        """Returns which of `classes` can be restored from the next events too, and the events to keep: replayed on any class,
        they lead to the same aggregate or the same error as all. Data that no class would decode is left out.
        """
        kept: list[Event] = []
        for event in events:
            if event.type in OF_OWNERS:  # of any class
                kept.append(event)
                continue
            applying = self._applying.get(event.type, _NONE)
            kept.append(event if applying & classes else Event((*event[:3], b"", None, *event[5:])))
            classes &= applying | self._lenient
            if not classes:
                break
        return classes, kept
