"""Passes over workers whose code is older than what is stored: sans-io, for both clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Protocol

from eventstore.client.session.command_rows import encode_commands
from eventstore.errors import EventStoreError, OutdatedCode
from eventstore.protocol.requests import WireCommand


class Connection(Protocol):
    """A connection to one of several workers."""

    @property
    def address(self) -> object: ...

    def pass_over(self, passed: Set[object]) -> bool: ...


class PassedOver:
    """The workers that a call has passed over, once each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._passed = set[object]()

    def another(self, asked: object) -> bool:
        """Moves to a worker that was not asked yet; returns False if there is none. `asked`: the address when the call was
        sent, which may still have been that of the worker passed over before.
        """
        if asked in self._passed and (asked := self._connection.address) in self._passed:
            return False
        self._passed.add(asked)
        return self._connection.pass_over(self._passed)


class CommandsSent:
    """Commands of one call, and what became of them."""

    def __init__(self) -> None:
        self._rows: list[WireCommand | EventStoreError] = []

    def encode(self, commands: Iterable[object]) -> Sequence[WireCommand | EventStoreError]:
        """Encodes the next of them."""
        rows = encode_commands(commands)
        self._rows += rows
        return rows

    def outdated(self, outcomes: Sequence[object]) -> dict[int, WireCommand]:
        """Returns by their places the commands that outdated code refused, in order. Not those before another one of the same
        aggregate that was handled: they would come after it.
        """
        found, handled = dict[int, WireCommand](), set[str]()
        for place in range(len(outcomes) - 1, -1, -1):
            row = self._rows[place] if place < len(self._rows) else None
            if isinstance(row, tuple) and row[1] not in handled:
                if isinstance(outcomes[place], OutdatedCode):
                    found[place] = row
                else:
                    handled.add(row[1])
        return dict(reversed(found.items()))


def as_they_are(rows: Sequence[WireCommand]) -> Sequence[WireCommand]:
    """Encodes commands that are encoded."""
    return rows
