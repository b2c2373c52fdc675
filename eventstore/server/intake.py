"""The intake: all appends of one turn of the gate, from all connections, become one batch for the store.

They take the command mailboxes, in order with the commands for the same aggregates, and come back through `_Batch.deliver`;
neither the gate nor the store knows the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

import eventstore_mailbox as mailbox
from eventstore.domain.running import Change
from eventstore.errors import EventStoreError, Overloaded, ShuttingDown
from eventstore.flat import Scalar
from eventstore.protocol import encode_outcomes, outcome_values
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX, ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX
from eventstore.protocol.requests import Append, WireCommit
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.mailroom import ServerMailboxes
from eventstore.store.appending import REFUSED, Outcome
from eventstore_mailbox import MailboxError

MANY_OUTCOMES: Final = 1024
_ERROR_TEXTS_MAX: Final = 8  # message and fields of an error with the most of them, and their names
SHORT_TEXT_BYTES_MAX: Final = FRAME_BYTES_MAX // COMMITS_PER_FRAME_MAX // _ERROR_TEXTS_MAX
_log = logging.getLogger(__name__)

assert MANY_OUTCOMES * _ERROR_TEXTS_MAX * ERROR_TEXT_BYTES_MAX <= FRAME_BYTES_MAX


class _Batch:
    """Who asked for which part of a batch."""

    __slots__ = ("_gate", "requests")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.requests: list[tuple[Connection, int, int]] = []

    def deliver(self, outcomes: list[Outcome]) -> None:
        gate, first = self._gate, 0
        for connection, request_id, count in self.requests:
            connection.owed -= 1
            part = outcomes[first : first + count]
            first += count
            if not connection.closed:
                try:
                    gate.send(connection, encode_outcomes(request_id, _values(part)))
                except Exception:  # the others of this batch get their answers
                    _log.exception("answering an append failed; its connection is closed")
                    gate.drop(connection)
        gate.flush()

    def give_up(self) -> None:
        """Nobody will be answered: whoever sends the same commits again learns what became of them."""
        for connection, _, _ in self.requests:
            self._gate.drop(connection)


class Intake:
    """Collects the appends of a turn. `stopping`: new ones are refused, those on their way are finished."""

    def __init__(self, mailboxes: ServerMailboxes) -> None:
        self._mailboxes = mailboxes
        self._gate: Gate | None = None
        self._batch: _Batch | None = None
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
        if self._batch is None:
            assert self._gate is not None
            self._batch = _Batch(self._gate)
        commits = request.commits
        connection.owed += 1
        self._batch.requests.append((connection, request_id, len(commits)))
        self._commits += commits

    def end_turn(self) -> None:
        """Hands the batch over."""
        batch = self._batch
        if batch is None:
            return
        commits, self._commits, self._batch = self._commits, [], None
        lone = batch.requests[0][0]
        source = lone if all(connection is lone for connection, _, _ in batch.requests) else batch
        try:
            self._mailboxes.append(cast("list[Change]", commits), batch.deliver, source)
        except mailbox.Overloaded as error:
            self._append_apart(batch, commits, error)
        except Exception as error:
            _refuse(batch, commits, error)
        self._mailboxes.kick()

    def _append_apart(self, batch: _Batch, commits: list[WireCommit], error: Exception) -> None:
        """There is no room for one of the requests: it alone is refused."""
        assert self._gate is not None
        first = 0
        for request in batch.requests:
            alone = _Batch(self._gate)
            alone.requests.append(request)
            own = commits[first : first + request[2]]
            first += request[2]
            try:
                if len(batch.requests) == 1:
                    raise error
                self._mailboxes.append(cast("list[Change]", own), alone.deliver, request[0])
            except Exception as refused:
                _refuse(alone, own, refused)


def _refuse(batch: _Batch, commits: list[WireCommit], error: Exception) -> None:
    if isinstance(error, MailboxError):
        refusal = Overloaded if isinstance(error, mailbox.Overloaded) else ShuttingDown
        batch.deliver([(REFUSED, refusal(str(error)), 0) for _ in commits])
    else:  # our own bug, which some client has found: it must not find it for all of them
        _log.error("an append failed; its connections are closed", exc_info=error)
        batch.give_up()


def _values(outcomes: Sequence[Outcome]) -> list[Scalar]:
    """The flat values of outcomes; the engine's numbers are those of the wire.

    The errors of a large frame are cut shorter, so that however many there are, they fit into one frame.
    """
    text_bytes_max = ERROR_TEXT_BYTES_MAX if len(outcomes) < MANY_OUTCOMES else SHORT_TEXT_BYTES_MAX
    values: list[Scalar] = []
    for outcome in outcomes:
        if outcome[0] == REFUSED:
            error = outcome[1]
            assert isinstance(error, EventStoreError)
            values += outcome_values(error, text_bytes_max)
        else:
            values += outcome  # type: ignore[arg-type] # without an error it is three ints
    return values
