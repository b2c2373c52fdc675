"""Appends: all of one turn of the gate, from all connections, become one batch for the store.

They go through the command mailboxes, in order with the commands to the same aggregates, and their outcomes return through
`BatchReplies.deliver`, or, if some wait for such commands, through `AppendReplies.deliver_some`. Neither the gate nor the store
sees a difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, TypeAlias, cast

import eventstore_mailbox as mailbox
from eventstore.errors import EventStoreError, ShuttingDown
from eventstore.flat import Scalar
from eventstore.protocol import outcome_values
from eventstore.protocol.requests import Append
from eventstore.records.raw_commit import RawCommit
from eventstore.server.feature import Feature
from eventstore.server.mailbox_wiring import ArrivalOrder, ServerMailboxes, refused_append
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.net.scheduler import NOTED_S
from eventstore.server.requests.batch_replies import BatchReplies, error_text_bytes_max
from eventstore.server.requests.commands import CommandReplies, PendingSend, ReplyValues
from eventstore.store.append import REFUSED, AppendOutcome
from eventstore_mailbox import MailboxError

_log = logging.getLogger(__name__)

EncodeReply: TypeAlias = Callable[[Sequence[AppendOutcome], int], list[Scalar]]


class AppendReplies(BatchReplies):
    """Answers a batch of appends of which some wait for commands of their aggregates: the others are answered before them.

    Such a request is treated as one of commands: if it takes long, a client that takes answers in parts gets the outcomes
    that are there. All other requests of the batch are answered as soon as their own appends are durable.
    """

    __slots__ = ("_late", "_places")

    def __init__(self, gate: Gate, values: EncodeReply, late: CommandReplies) -> None:
        super().__init__(gate, values)
        self._late = late
        self._places: list[tuple[PendingSend, int]] = []

    def wait_for(self, places: Sequence[int]) -> None:
        """Begins to answer in parts, after a while, the requests to which these places of the batch belong."""
        pending = self._pending()
        for request in {pending[place][0]: None for place in places}:
            if request.connection.in_parts:
                self._late.expect(request)

    def deliver_some(self, places: Sequence[int], outcomes: Sequence[AppendOutcome]) -> None:
        """Takes outcomes; a request is answered with its last one."""
        pending = self._pending()
        for place, outcome in zip(places, outcomes, strict=True):
            request, own = pending[place]
            try:
                self._late.put(request, own, cast("ReplyValues", tuple(self._values((outcome,), len(request.values)))))
            except Exception:  # the other requests of the batch are answered
                _log.exception("an answer failed; its connection is closed")
                self._gate.drop(request.connection)
        self._late.flush()

    def _pending(self) -> list[tuple[PendingSend, int]]:
        if not self._places:
            for connection, request_id, count, _ in self.requests:
                request = PendingSend(connection, request_id, count)
                self._places += [(request, place) for place in range(count)]
        return self._places


# What a small commit takes of the event loop, and what each event adds. Measured, see `benchmarks.neighbours`.
_COMMIT_S: Final = 8e-6
_EVENT_S: Final = 0.4e-6
_MANY_BYTES: Final = 32 * 1024  # less has few events
_SAMPLES: Final = 4
_SAMPLE_BYTES: Final = 4096
_ENVELOPE_BYTES: Final = 128  # what a record has besides what is in the request
_BEGINS_DATA: Final = b"\xc4"  # of at most 255 bytes, in MessagePack
_events_of: Final[Callable[[RawCommit], bytes]] = itemgetter(4)


class AppendBatcher:
    """Collects the appends of a turn. While `stopping`, new ones are refused and those under way are finished."""

    def __init__(self, gate: Gate, mailboxes: ServerMailboxes, late: CommandReplies, order: ArrivalOrder) -> None:
        self._gate = gate
        self._late = late
        self._mailboxes = mailboxes
        self._order = order
        self._replies = AppendReplies(gate, append_values, late)
        self._commits: list[RawCommit] = []
        self._bytes = 0
        self.stopping = False
        self.feature = Feature(routes={Append: self.append}, stop=self._stop)

    def _stop(self) -> None:
        self.stopping = True

    def append(self, connection: ServerConnection, request_id: int, request: Append) -> None:
        """Takes an APPEND; it is answered when its commits are durable.

        Raises:
            ShuttingDown
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if self._order.collecting is not self:
            self._order.switch_to(self)
        commits, size = request.commits, connection.request_bytes
        count = len(commits)
        self._gate.owe(connection, count * _COMMIT_S if size < _MANY_BYTES else due_s(size, commits))
        self._replies.requests.append((connection, request_id, count, size))
        self._commits += commits
        self._bytes += size

    def hand_over(self) -> None:
        """Hands the batch to the mailboxes."""
        replies, commits, size = self._replies, self._commits, self._bytes
        self._commits, self._replies, self._bytes = [], AppendReplies(self._gate, append_values, self._late), 0
        self._submit(replies, commits, size)

    def _submit(self, replies: BatchReplies, commits: list[RawCommit], size: int) -> None:
        """`size`: of their requests, in bytes."""
        started = perf_counter()
        try:
            self._append(replies, commits, replies.source, size)
        except mailbox.MailboxFull as error:
            if len(replies.requests) == 1:
                _refuse(replies, commits, error)
            else:
                self._append_separately(replies, commits)
        except Exception as error:
            _refuse(replies, commits, error)
        more = perf_counter() - started - len(commits) * _COMMIT_S
        if more > NOTED_S and (size < _MANY_BYTES or (more := more - _events_s(commits)) > NOTED_S):
            for connection, _, _, own in replies.requests:  # what they took beyond what was due, by bytes
                if (part := more * own / size) > NOTED_S:
                    self._gate.scheduler.charge(connection, part)
        self._mailboxes.kick()

    def _append(self, replies: BatchReplies, commits: list[RawCommit], source: object, size: int) -> None:
        changes: list[Any] = commits
        size += len(commits) * _ENVELOPE_BYTES
        if not isinstance(replies, AppendReplies):
            self._mailboxes.append(changes, replies.deliver, source, size_bytes=size)
        elif late := self._mailboxes.append(changes, replies.deliver, source, replies.deliver_some, size):
            replies.wait_for(late)

    def _append_separately(self, replies: BatchReplies, commits: list[RawCommit]) -> None:
        """Appends request by request, because the batch does not fit: only those that do not fit are refused."""
        first = 0
        for request in replies.requests:
            single = AppendReplies(self._gate, append_values, self._late)
            single.requests.append(request)
            own = commits[first : first + request[2]]
            first += request[2]
            try:
                self._append(single, own, request[0], request[3])
            except Exception as refused:
                _refuse(single, own, refused)


def due_s(size: int, commits: Sequence[RawCommit]) -> float:
    """Returns about how long it takes to check, store and answer the commits of a request of `size` bytes."""
    return len(commits) * _COMMIT_S + (0.0 if size < _MANY_BYTES else _events_s(commits))


def _events_s(commits: Sequence[RawCommit]) -> float:
    """Returns about what their many small events add: they are not counted, but what begins the data of one is, in samples."""
    size = sum(map(len, map(_events_of, commits)))
    found = sampled = 0
    for number in range(_SAMPLES):
        events = _events_of(commits[number * len(commits) // _SAMPLES])
        at = number * len(events) // _SAMPLES
        sample = events[at : at + _SAMPLE_BYTES]
        found, sampled = found + sample.count(_BEGINS_DATA), sampled + len(sample)
    return found / sampled * size * _EVENT_S if sampled else 0.0


def _refuse(replies: BatchReplies, commits: list[RawCommit], error: Exception) -> None:
    if isinstance(error, MailboxError):
        replies.deliver([refused_append(error) for _ in commits])
    else:  # a bug of ours that one client triggered; only the connections of its batch are affected
        _log.error("an append failed; its connections are closed", exc_info=error)
        replies.give_up()


def append_values(outcomes: Sequence[AppendOutcome], count: int) -> list[Scalar]:
    """Encodes outcomes, of a frame with `count`; the engine's status numbers are those of the protocol."""
    values: list[Scalar] = []
    for outcome in outcomes:
        if outcome[0] == REFUSED:
            error = outcome[1]
            assert isinstance(error, EventStoreError)
            values += outcome_values(error, error_text_bytes_max(count))
        else:
            values += outcome
    return values
