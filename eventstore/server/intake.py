"""The intake: all appends of one turn of the gate, from all connections, become one batch for the store.

They take the command mailboxes, in order with the commands for the same aggregates, and come back through `Askers.deliver`;
neither the gate nor the store knows the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

import eventstore_mailbox as mailbox
from eventstore.domain.running import Change
from eventstore.errors import EventStoreError, Overloaded, ShuttingDown
from eventstore.flat import Scalar
from eventstore.protocol import outcome_values
from eventstore.protocol.requests import Append, WireCommit
from eventstore.server.askers import Askers
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.mailroom import ServerMailboxes
from eventstore.store.appending import REFUSED, Outcome
from eventstore_mailbox import MailboxError

_log = logging.getLogger(__name__)


class Intake:
    """Collects the appends of a turn. `stopping`: new ones are refused, those on their way are finished."""

    def __init__(self, mailboxes: ServerMailboxes) -> None:
        self._mailboxes = mailboxes
        self._gate: Gate | None = None
        self._askers: Askers | None = None
        self._commits: list[WireCommit] = []
        self._hand_over_commands: Callable[[], None] | None = None
        self.stopping = False

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def go_behind(self, hand_over_commands: Callable[[], None]) -> None:
        """Commands that came before an append are handed over before it."""
        self._hand_over_commands = hand_over_commands

    def append(self, connection: Connection, request_id: int, request: Append) -> None:
        """The answer follows when the commits are durable.

        Raises:
            ShuttingDown
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if self._hand_over_commands is not None:
            self._hand_over_commands()
        if self._askers is None:
            assert self._gate is not None
            self._askers = Askers(self._gate, _values)
        commits = request.commits
        connection.owed += 1
        self._askers.requests.append((connection, request_id, len(commits)))
        self._commits += commits

    def end_turn(self) -> None:
        """Hands the batch over."""
        askers = self._askers
        if askers is None:
            return
        commits, self._commits, self._askers = self._commits, [], None
        try:
            self._mailboxes.append(cast("list[Change]", commits), askers.deliver, askers.source)
        except mailbox.Overloaded as error:
            self._append_apart(askers, commits, error)
        except Exception as error:
            _refuse(askers, commits, error)
        self._mailboxes.kick()

    def _append_apart(self, askers: Askers, commits: list[WireCommit], error: Exception) -> None:
        """There is no room for one of the requests: it alone is refused."""
        assert self._gate is not None
        first = 0
        for request in askers.requests:
            alone = Askers(self._gate, _values)
            alone.requests.append(request)
            own = commits[first : first + request[2]]
            first += request[2]
            try:
                if len(askers.requests) == 1:
                    raise error
                self._mailboxes.append(cast("list[Change]", own), alone.deliver, request[0])
            except Exception as refused:
                _refuse(alone, own, refused)


def _refuse(askers: Askers, commits: list[WireCommit], error: Exception) -> None:
    if isinstance(error, MailboxError):
        refusal = Overloaded if isinstance(error, mailbox.Overloaded) else ShuttingDown
        askers.deliver([(REFUSED, refusal(str(error)), 0) for _ in commits])
    else:  # our own bug, which some client has found: it must not find it for all of them
        _log.error("an append failed; its connections are closed", exc_info=error)
        askers.give_up()


def _values(outcomes: Sequence[Outcome], text_bytes_max: int) -> list[Scalar]:
    """The engine's numbers are those of the wire."""
    values: list[Scalar] = []
    for outcome in outcomes:
        if outcome[0] == REFUSED:
            error = outcome[1]
            assert isinstance(error, EventStoreError)
            values += outcome_values(error, text_bytes_max)
        else:
            values += outcome  # type: ignore[arg-type] # without an error it is three ints
    return values
