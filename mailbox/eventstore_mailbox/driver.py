"""What the machine asks of whoever runs it: everything that takes time. Trio does it in a server, a test does it step by step.

After each call of the machine that something ends in, and after each action of `later`, the driver calls `pump`; once for
several.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Protocol

from eventstore_mailbox.entry import AnyEntry
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.publisher import Publications


class Driver(Protocol):
    """Each call returns at once; what it began ends in a call of the machine."""

    def restore(self, lane: Lane) -> None:
        """Ends in `restored`, `unrestorable` or `restore_failed`."""

    def handle(self, lane: Lane, entry: AnyEntry, coroutine: Coroutine[object, object, object]) -> None:
        """Ends in `handled`."""

    def cancel(self, lane: Lane) -> None:
        """The handler that is running there is not needed any more; it still ends in `handled`."""

    def publish(self, publications: Publications) -> None:
        """Ends in `published` or `publish_failed`."""

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Calls the action after that many seconds."""

    def wake(self) -> None:
        """Calls `pump` in the next turn of the event loop: there is more than fits into this one."""

    def left(self) -> None:
        """Commands were answered: there may be room, or nothing left."""
