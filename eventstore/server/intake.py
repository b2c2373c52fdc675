"""The intake: all appends of one turn of the gate, from all connections, become one batch for the store.

This is the seam where the command mailboxes will sit: they take (connection, request, commits) here and give outcomes
back through `_Batch.deliver`; neither the gate nor the store knows the difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.errors import EventStoreError, ShuttingDown
from eventstore.flat import Scalar
from eventstore.protocol import encode_outcomes, outcome_values
from eventstore.protocol.requests import WireCommit
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.store.appending import REFUSED, Outcome
from eventstore.store.committer import Committer


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
                gate.send(connection, encode_outcomes(request_id, _values(part)))
        gate.flush()


class Intake:
    """Collects the appends of a turn. `stopping`: new ones are refused, those on their way are finished."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._gate: Gate | None = None
        self._batch: _Batch | None = None
        self._commits: list[WireCommit] = []
        self.stopping = False

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def append(self, connection: Connection, request_id: int, commits: Sequence[WireCommit]) -> None:
        """The answer follows when the commits are durable.

        Raises:
            ShuttingDown
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if self._batch is None:
            assert self._gate is not None
            self._batch = _Batch(self._gate)
        connection.owed += 1
        self._batch.requests.append((connection, request_id, len(commits)))
        self._commits += commits

    def end_turn(self) -> None:
        """Hands the batch over."""
        batch = self._batch
        if batch is None:
            return
        commits, self._commits, self._batch = self._commits, [], None
        source = batch.requests[0][0] if len(batch.requests) == 1 else batch
        self._committer.submit(commits, batch.deliver, source)
        self._committer.kick()


def _values(outcomes: Sequence[Outcome]) -> list[Scalar]:
    """The flat values of outcomes; the engine's numbers are those of the wire."""
    values: list[Scalar] = []
    for outcome in outcomes:
        if outcome[0] == REFUSED:
            error = outcome[1]
            assert isinstance(error, EventStoreError)
            values += outcome_values(error)
        else:
            values += outcome  # type: ignore[arg-type] # without an error it is three ints
    return values
