"""`Checkpoint`: where what follows a log stands, whatever it makes of the events and wherever it keeps this.

A log that is in several parts has a checkpoint for each. `Origin` says where one continues in a part that has none yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, TypeVar

from eventstore.event_identity import check_identity, event_identity
from eventstore.model import Event


class Checkpoint(NamedTuple):
    """All events of a log up to `sequence` are done. `identity`: of the event there (see `event_identity`).

    The identity is None before the first event, in what earlier versions left, and where a log begins with another's events.
    """

    sequence: int
    identity: str | None = None

    @classmethod
    def at(cls, event: Event) -> Self:
        return cls(event.sequence, event_identity(event))

    def inherited(self, through: int) -> Self:
        """Returns the place in a log that has the same events up to `through`: this one, or that of the last such event."""
        return self if self.sequence <= through else type(self)(through)

    def check(self, what: str, found: Event | None, next_step: str) -> None:
        """Raises Diverged unless `found`, the event that the log has there, is this one (see `check_identity`)."""
        check_identity(what, self.sequence, self.identity or "", found, next_step)


P = TypeVar("P", bound="Inheritable")


class Inheritable(Protocol):
    """What is kept of a place in a log: a checkpoint, perhaps of several followers, perhaps with more."""

    def inherited(self, through: int) -> Self:
        """See `Checkpoint.inherited`."""
        ...


class Origin(NamedTuple):
    """What a log begins with: the events that another part of it has, up to `through`. `part`: its number; None: that was the
    whole log, and the part is what is left of it.
    """

    part: int | None
    through: int

    def begins(self, place_of: Callable[[int | None], P | None]) -> P | None:
        """Returns where to continue in a log without a place of its own; None: at its first event. `place_of`: returns the
        place in a part, if it has one.
        """
        found = place_of(self.part)
        return None if found is None else found.inherited(self.through)
