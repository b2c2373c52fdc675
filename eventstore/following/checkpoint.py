"""`Checkpoint`: where what follows a log stands, whatever it makes of the events and wherever it keeps this."""

from __future__ import annotations

from typing import NamedTuple, Self

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

    def inherited(self, through: int) -> Checkpoint:
        """Returns the place in a log that has the same events up to `through`: this one, or that of the last such event."""
        return self if self.sequence <= through else Checkpoint(through)

    def check(self, what: str, found: Event | None, next_step: str) -> None:
        """Raises Diverged unless `found`, the event that the log has there, is this one (see `check_identity`)."""
        check_identity(what, self.sequence, self.identity or "", found, next_step)
