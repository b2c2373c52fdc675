"""The append batcher: all appends of one turn of the gate, from all connections, become one batch for the store.

They go through the command mailboxes, in order with the commands to the same aggregates, and their outcomes return through
`BatchReplies.deliver`. Neither the gate nor the store sees a difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import eventstore_mailbox as mailbox
from eventstore.domain.runtime import Change
from eventstore.errors import EventStoreError, Overloaded, ShuttingDown
from eventstore.flat import Scalar
from eventstore.protocol import encode_error, encode_outcomes, outcome_values
from eventstore.protocol.declaration import Request
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX, ERROR_TEXT_BYTES_MAX, FRAME_BYTES_MAX
from eventstore.protocol.requests import Append
from eventstore.records.raw_commit import RawCommit
from eventstore.server.mailbox_wiring import ArrivalOrder, ServerMailboxes
from eventstore.server.net.connection import Connection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.dispatch import Route
from eventstore.store.append import REFUSED, AppendOutcome
from eventstore_mailbox import MailboxError

_MANY_OUTCOMES: Final = 1024
_ERROR_TEXTS_MAX: Final = 8  # message and fields of the error with the most of them, and their names
_SHORT_TEXT_BYTES_MAX: Final = FRAME_BYTES_MAX // COMMITS_PER_FRAME_MAX // _ERROR_TEXTS_MAX
# What a commit takes of the event loop, of bytes that may be any number of events. Measured, see `benchmarks.neighbours`.
_COMMIT_S: Final = 8e-6
_SMALL_COMMIT_BYTES: Final = 16 * 1024
_LARGE_BYTE_S: Final = 40e-9
_LARGE_COMMIT_S_MAX: Final = 0.025
_log = logging.getLogger(__name__)

assert _MANY_OUTCOMES * _ERROR_TEXTS_MAX * ERROR_TEXT_BYTES_MAX <= FRAME_BYTES_MAX


class AppendBatcher:
    """Collects the appends of a turn. While `stopping`, new ones are refused and those under way are finished."""

    def __init__(self, gate: Gate, mailboxes: ServerMailboxes, order: ArrivalOrder) -> None:
        self._gate = gate
        self._mailboxes = mailboxes
        self._order = order
        self._replies = BatchReplies(gate, append_values)
        self._commits: list[RawCommit] = []
        self.stopping = False
        self.routes: dict[type[Request], Route] = {Append: self.append}

    def append(self, connection: Connection, request_id: int, request: Append) -> None:
        """Takes an APPEND; it is answered when its commits are durable.

        Raises:
            ShuttingDown
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if self._order.collecting is not self:
            self._order.switch_to(self)
        commits = request.commits
        self._gate.owe(connection, due_s(commits))
        self._replies.requests.append((connection, request_id, len(commits)))
        self._commits += commits

    def hand_over(self) -> None:
        """Hands the batch to the mailboxes."""
        replies, commits = self._replies, self._commits
        self._commits, self._replies = [], BatchReplies(self._gate, append_values)
        self._submit(replies, commits)

    def _submit(self, replies: BatchReplies, commits: list[RawCommit]) -> None:
        try:
            self._mailboxes.append(cast("list[Change]", commits), replies.deliver, replies.source)
        except mailbox.Overloaded as error:
            if len(replies.requests) == 1:
                _refuse(replies, commits, error)
            else:
                self._append_separately(replies, commits)
        except Exception as error:
            _refuse(replies, commits, error)
        self._mailboxes.kick()

    def _append_separately(self, replies: BatchReplies, commits: list[RawCommit]) -> None:
        """Appends request by request, because the batch does not fit: only those that do not fit are refused."""
        first = 0
        for request in replies.requests:
            single = BatchReplies(self._gate, append_values)
            single.requests.append(request)
            own = commits[first : first + request[2]]
            first += request[2]
            try:
                self._mailboxes.append(cast("list[Change]", own), single.deliver, request[0])
            except Exception as refused:
                _refuse(single, own, refused)


def due_s(commits: Sequence[RawCommit]) -> float:
    """Returns about how long it takes to check, store and answer these commits."""
    count = len(commits)
    large = sum(len(commit[4]) for commit in commits) - count * _SMALL_COMMIT_BYTES
    return count * _COMMIT_S + (min(large * _LARGE_BYTE_S, count * _LARGE_COMMIT_S_MAX) if large > 0 else 0.0)


class BatchReplies:
    """The requests of a batch in order: connection, request id, and how many outcomes of the batch are its answer.

    `values` encodes outcomes as flat values; its second argument bounds the bytes of each text of an error.
    """

    __slots__ = ("_gate", "_values", "requests")

    def __init__(self, gate: Gate, values: Callable[[Sequence[Any], int], list[Scalar]]) -> None:
        self._gate = gate
        self._values = values
        self.requests: list[tuple[Connection, int, int]] = []

    @property
    def source(self) -> object:
        """The batch's connection if it has a single one, else the batch itself."""
        first = self.requests[0][0]
        return first if all(connection is first for connection, _, _ in self.requests) else self

    def deliver(self, outcomes: Sequence[Any]) -> None:
        """Answers each request with its part of the outcomes, in one frame."""
        gate, first = self._gate, 0
        for connection, request_id, count in self.requests:
            part = outcomes[first : first + count]
            first += count
            if not connection.closed:
                try:
                    gate.answer(connection, encode_outcomes(request_id, self._values(part, error_text_bytes_max(count))))
                except Exception:  # the other requests of the batch are answered
                    _log.exception("an answer failed; its connection is closed")
                    gate.drop(connection)
        gate.flush()

    def refuse(self, error: EventStoreError) -> None:
        """Answers all requests with `error`: nothing of the batch was stored."""
        for connection, request_id, _ in self.requests:
            self._gate.answer(connection, encode_error(request_id, error))
        self._gate.flush()

    def give_up(self) -> None:
        """Closes the connections of all requests; clients that retry learn the outcomes."""
        for connection, _, _ in self.requests:
            self._gate.drop(connection)


def error_text_bytes_max(outcomes: int) -> int:
    """Returns the bound on each text of an error in a frame of this many outcomes, so that any number of errors fits."""
    return ERROR_TEXT_BYTES_MAX if outcomes < _MANY_OUTCOMES else _SHORT_TEXT_BYTES_MAX


def _refuse(replies: BatchReplies, commits: list[RawCommit], error: Exception) -> None:
    if isinstance(error, MailboxError):
        refusal = Overloaded if isinstance(error, mailbox.Overloaded) else ShuttingDown
        replies.deliver([(REFUSED, refusal(str(error)), 0) for _ in commits])
    else:  # a bug of ours that one client triggered; only the connections of its batch are affected
        _log.error("an append failed; its connections are closed", exc_info=error)
        replies.give_up()


def append_values(outcomes: Sequence[AppendOutcome], text_bytes_max: int) -> list[Scalar]:
    """Encodes outcomes; the engine's status numbers are those of the protocol."""
    values: list[Scalar] = []
    for outcome in outcomes:
        if outcome[0] == REFUSED:
            error = outcome[1]
            assert isinstance(error, EventStoreError)
            values += outcome_values(error, text_bytes_max)
        else:
            values += outcome  # type: ignore[arg-type] # without an error it is three ints
    return values
