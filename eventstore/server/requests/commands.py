"""Commands (SEND): all of one turn of the gate, from all connections, go to the mailboxes as one batch; they are answered once
their changes are durable.

A handler may refuse a command, or change nothing, because the command was handled before; then the first outcome is the
answer. So before such an answer the command's id is looked up in the store, and also if the store refuses the id: the first
commit may have another fingerprint and still be of the same command, or none. In all other cases the store reports duplicates
itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeAlias, cast

import trio

from eventstore.domain.domain import Domain
from eventstore.domain.runtime import Decided, new_decided
from eventstore.errors import (
    CommandIdReused,
    EventStoreError,
    HandlerFailed,
    OutdatedCode,
    Overloaded,
    ShuttingDown,
    UnknownCommand,
    UnknownEvent,
    VersionConflict,
    copy_error,
)
from eventstore.flat import Scalar, chain
from eventstore.metrics import Metric, MetricSource, gauge
from eventstore.model import ID_BYTES_MAX, Committed, Unchanged
from eventstore.protocol import encode_outcomes, outcome_values
from eventstore.protocol.answers import encode_some_outcomes
from eventstore.protocol.codes import OutcomeKind
from eventstore.protocol.limits import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Send, WireCommand, check_command
from eventstore.server.feature import Feature
from eventstore.server.mailbox_wiring import (
    ArrivalOrder,
    CommandMailboxes,
    LookUpCommands,
    ServerEntry,
    StoredOutcome,
    first_outcome_of,
)
from eventstore.server.net.connection import HELD_BY_COMMANDS, ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.batch_replies import error_text_bytes_max
from eventstore.store.append import AppendOutcome
from eventstore_mailbox import CONFLICT, DUPLICATE, FAILED, REFUSED, UNCHANGED, MailboxError, Stopping


class Waiting(Protocol):
    """A SEND, or a commit; `size`: what is counted of it, 0 if nothing is."""

    connection: ServerConnection
    size: int


class WaitingCommands:
    """The bytes of commands (SEND) that are not answered yet, because their handlers or restores take time, and of commits
    whose conditions are looked up in the log. Requests count as a whole, from their acceptance to the outcome of their last
    command. One of them may exceed `connection_bytes_max`.

    Over its bound a connection is not read any further, until enough of its commands are settled. Over the bound of all
    connections together a request is refused: waiting would not help, as it may be other connections that hold the room.
    """

    def __init__(self, gate: Gate, connection_bytes_max: int, bytes_max: int) -> None:
        self._gate = gate
        self._connection_bytes_max = connection_bytes_max
        self._bytes_max = bytes_max
        self.bytes = 0
        self.feature = Feature(metrics=[MetricSource(WAITING_METRICS, lambda: self)])

    def add(self, request: Waiting, size: int) -> None:
        """Counts a request.

        Raises:
            Overloaded: there is no room for it; nothing is counted.
        """
        if self.bytes + size > self._bytes_max:
            raise Overloaded(
                f"commands that wait for their handlers take {self.bytes} bytes, the limit is {self._bytes_max} "
                "(mailbox_waiting_bytes_max); send it again later",
                limit=self._bytes_max,
                value=self.bytes + size,
            )
        connection, request.size = request.connection, size
        self.bytes += size
        connection.waiting_bytes += size
        if connection.waiting_bytes >= self._connection_bytes_max:
            self._gate.hold(connection, HELD_BY_COMMANDS)

    def remove(self, request: Waiting) -> None:
        """Stops counting a request; does nothing the second time."""
        connection, size, request.size = request.connection, request.size, 0
        self.bytes -= size
        connection.waiting_bytes -= size
        if connection.held & HELD_BY_COMMANDS and connection.waiting_bytes < self._connection_bytes_max:
            self._gate.hold(connection, HELD_BY_COMMANDS, False)


WAITING_METRICS: Final[tuple[Metric[WaitingCommands], ...]] = (
    gauge(
        "commands_waiting_bytes",
        "bytes of commands that are not answered yet",
        lambda waiting: waiting.bytes,
        "it is near `mailbox_waiting_bytes_max`: handlers do not keep up",
    ),
)


ReplyValues: TypeAlias = "tuple[Scalar, Scalar, Scalar]"
PATIENCE_S: Final = 0.01
"""How long a SEND waits to be answered as a whole: longer than a sync, shorter than what a client would notice."""
_OUTCOME_BYTES: Final = 32  # of an outcome without its error
_ERROR_FIELDS_KEPT: Final = 3  # with the message and their names they fit into any answer (see `batch_replies`)
_log = logging.getLogger(__name__)
_UNCHANGED: Final[ReplyValues] = (int(OutcomeKind.UNCHANGED), 0, 0)


class PendingSend:
    """A SEND that is not answered yet, or an APPEND of which some commits wait for commands. `values`: its outcomes. `unsent`:
    those to send next, by place, once it is answered in parts. `size`: see `WaitingCommands`."""

    __slots__ = ("connection", "error_bytes_max", "missing", "request_id", "size", "text_bytes_max", "unsent", "values")

    def __init__(self, connection: ServerConnection, request_id: int, commands: int) -> None:
        self.connection = connection
        self.request_id = request_id
        self.size = 0
        self.missing = commands
        self.values: list[ReplyValues | None] = [None] * commands
        self.unsent: dict[int, ReplyValues] | None = None
        self.text_bytes_max = error_text_bytes_max(commands)
        self.error_bytes_max = FRAME_BYTES_MAX // commands - _OUTCOME_BYTES

    def told(self, outcomes: list[Scalar]) -> list[Scalar]:
        """Returns the outcomes, and how durable what is committed is now, if the client asked for it."""
        durability = self.connection.durability
        return outcomes if durability is None else [*outcomes, durability()]

    def encode(self, outcome: Committed | EventStoreError) -> ReplyValues:
        """Returns the values of an outcome.

        An error of the domain may have more fields than fit into the answer with all others; then only the first are kept.
        """
        values = outcome_values(outcome, self.text_bytes_max)
        encoded = values[2]
        if isinstance(outcome, EventStoreError) and isinstance(encoded, bytes) and len(encoded) > self.error_bytes_max:
            short = copy_error(outcome)
            short.fields = dict(islice(outcome.fields.items(), _ERROR_FIELDS_KEPT))
            values = outcome_values(short, self.text_bytes_max)
        return values


class SentCommand(ServerEntry):
    """A command with its place in the answer. It has no `__init__`, which would add a third to the cost of making one."""

    __slots__ = ("place", "request")

    request: PendingSend
    place: int


class CommandReplies:
    """Collects the outcomes of each SEND; the last one sends the answer.

    If that takes longer than `PATIENCE_S`, a client that takes answers in parts gets those that are there, and from then on
    each as it is settled: a slow handler delays the commands of its own aggregate, not those that were sent with them.

    `on_settled`: is called with settled commands; None if nobody wants to know.
    """

    def __init__(self, gate: Gate, find_commands: LookUpCommands, waiting: WaitingCommands) -> None:
        self._gate = gate
        self._waiting = waiting
        self._find_commands = find_commands
        self.on_settled: Callable[[Sequence[ServerEntry]], None] | None = None
        self._answering = False
        self._expected: deque[tuple[float, PendingSend]] = deque()
        self._expecting = trio.Event()
        self._ready: dict[PendingSend, None] = {}  # late ones with outcomes to send
        self.feature = Feature(run=self.run)

    async def run(self) -> None:
        """Begins to answer in parts what takes too long, until cancelled. Wakes once in `PATIENCE_S` at most."""
        expected = self._expected
        while True:
            await self._expecting.wait()
            while expected:
                await trio.sleep_until(expected[0][0])
                self._send_late(trio.current_time())
            self._expecting = trio.Event()

    def expect(self, request: PendingSend) -> None:
        """Notes a request that may be answered in parts."""
        self._expected.append((trio.current_time() + PATIENCE_S, request))
        self._expecting.set()

    def _send_late(self, now: float) -> None:
        expected = self._expected
        while expected and expected[0][0] <= now:
            request = expected.popleft()[1]
            if request.missing:
                request.unsent = {place: values for place, values in enumerate(request.values) if values is not None}
                request.values = []
                self._ready[request] = None  # even without an outcome: the client need not wait for it to send more
        self._send_parts()
        self._gate.flush()

    def _send_parts(self) -> None:
        """Sends the outcomes of late requests that are there."""
        ready, self._ready = self._ready, {}
        for request in ready:
            unsent, request.unsent = request.unsent or {}, {}
            try:
                values = request.told(chain([(place, *each) for place, each in unsent.items()]))
                frame = encode_some_outcomes(request.request_id, values)
                (self._gate.send if request.missing else self._gate.answer)(request.connection, frame)
            except Exception:  # as in `answer`
                _log.exception("answering some commands failed; their connection is closed")
                self._gate.drop(request.connection)

    def answer(self, entries: Sequence[ServerEntry]) -> None:
        """Takes settled commands."""
        if self.on_settled is not None:
            self.on_settled(entries)
        self._answering = True
        try:
            for entry in entries:
                assert isinstance(entry, SentCommand)
                try:
                    if entry.status < CONFLICT:
                        result: AppendOutcome = entry.result  # type: ignore[assignment] # as its status says
                        if result[1].__class__ is tuple:
                            result = first_outcome_of(result)
                        self.put(entry.request, entry.place, result)
                    else:
                        self._answer_uncommitted(entry)
                except Exception:  # the others are answered; this client retries
                    _log.exception("answering a command failed; its connection is closed")
                    self._waiting.remove(entry.request)
                    self._gate.drop(entry.request.connection)
        finally:
            self._answering = False
            self.flush()

    def flush(self) -> None:
        """Sends what `put` has answered."""
        if self._ready:
            self._send_parts()
        self._gate.flush()

    def _answer_uncommitted(self, entry: SentCommand) -> None:
        if _may_be_duplicate(entry):
            self._find_commands(entry.aggregate_id, (entry.command_id,), partial(self._looked_up, entry))
        else:
            self.put(entry.request, entry.place, entry.request.encode(_refusal(entry)))

    def _looked_up(self, entry: SentCommand, stored: Sequence[StoredOutcome | EventStoreError | None]) -> None:
        request, (found,) = entry.request, stored
        if found is None and entry.status == UNCHANGED:
            self.put(request, entry.place, _UNCHANGED)
        else:
            self.put(request, entry.place, request.encode(_refusal(entry) if found is None else _first_outcome(entry, found)))
        if not self._answering:
            self.flush()

    def refuse(self, entries: Sequence[ServerEntry], error: EventStoreError) -> None:
        """Answers commands that the mailboxes did not take."""
        for entry in entries:
            assert isinstance(entry, SentCommand)
            self.put(entry.request, entry.place, entry.request.encode(error))

    def put(self, request: PendingSend, place: int, values: ReplyValues) -> None:
        """Stores the outcome of one command; the last one of a request sends the answer."""
        missing = request.missing = request.missing - 1
        if request.unsent is None:
            request.values[place] = values
        elif not request.connection.closed:
            request.unsent[place] = values
            self._ready[request] = None
        if missing:
            return
        self._waiting.remove(request)
        if request.unsent is None and not request.connection.closed:
            outcomes = request.told(chain(cast("list[ReplyValues]", request.values)))
            self._gate.answer(request.connection, encode_outcomes(request.request_id, outcomes))


async def outcome_of(entry: ServerEntry, find_commands: LookUpCommands) -> Committed | Unchanged | EventStoreError:
    """Returns the outcome of a settled command, for a caller in this process."""
    if entry.status < CONFLICT and entry.outcome is not None:
        _, version, sequence = first_outcome_of(entry.outcome)
        assert isinstance(version, int)
        return Committed(entry.aggregate_id, version, sequence, duplicate=entry.status == DUPLICATE)
    if _may_be_duplicate(entry):
        answers: list[StoredOutcome | EventStoreError | None] = []
        answered = trio.Event()

        def found(stored: Sequence[StoredOutcome | EventStoreError | None]) -> None:
            answers.extend(stored)
            answered.set()

        find_commands(entry.aggregate_id, (entry.command_id,), found)
        await answered.wait()
        if answers[0] is not None:
            return _first_outcome(entry, answers[0])
        if entry.status == UNCHANGED:
            return Unchanged(entry.aggregate_id)
    return _refusal(entry)


def _may_be_duplicate(entry: ServerEntry) -> bool:
    return entry.status in (UNCHANGED, FAILED) or (
        entry.status == REFUSED and entry.outcome is not None and isinstance(entry.outcome[1], CommandIdReused)
    )


def _refusal(entry: ServerEntry) -> EventStoreError:
    """Returns the answer to a command that was not committed now."""
    outcome = entry.outcome
    if entry.status == CONFLICT and outcome is not None:
        if isinstance(outcome[1], EventStoreError):
            return outcome[1]
        named = entry.aggregate_id if isinstance(outcome[1], int) else str(outcome[1][0])
        return VersionConflict(named, "the version it was handled at", first_outcome_of(outcome)[1])
    error = outcome[1] if entry.status == REFUSED and outcome is not None else entry.error
    if isinstance(error, MailboxError):
        return ShuttingDown(str(error))
    if isinstance(error, UnknownEvent) and "known" in error.fields:  # it is stored by newer code, which another worker may have
        return OutdatedCode(error.message, **error.fields)
    if isinstance(error, EventStoreError):
        return error
    name, handler = type(error).__name__, entry.command.handler.name
    return HandlerFailed(f"{handler} raised {name}, which is not an error of a domain", handler=handler, error=name)


def _first_outcome(entry: ServerEntry, found: StoredOutcome | EventStoreError) -> Committed | EventStoreError:
    """Returns the answer to a command whose id the store has: the first outcome if it is the same command."""
    if isinstance(found, EventStoreError):
        return found
    committed, fingerprint = found
    handler, command, command_id, _, _ = entry.command
    if handler.command.fingerprints.matches(fingerprint, command):
        return committed
    return CommandIdReused(committed.aggregate_id, command_id, committed.version, committed.sequence)


_COMMAND_S: Final = 20e-6  # what a command takes of the event loop besides its decoding, about


class CommandBatcher:
    """Collects the commands of a turn. Without handlers every command is unknown.

    While `stopping`, new ones are refused and those under way are finished.
    """

    def __init__(
        self,
        gate: Gate,
        domain: Domain,
        mailboxes: CommandMailboxes,
        replies: CommandReplies,
        waiting: WaitingCommands,
        order: ArrivalOrder,
    ) -> None:
        self._gate = gate
        self._domain = domain
        self._has_handlers = bool(domain.handlers)
        self._mailboxes = mailboxes
        self._replies = replies
        self._waiting = waiting
        self._order = order
        self._entries: list[SentCommand] = []
        self.stopping = False
        self.feature = Feature(routes={Send: self.send}, stop=self._stop)

    def _stop(self) -> None:
        self.stopping = True

    def send(self, connection: ServerConnection, request_id: int, request: Request) -> None:
        """Takes a SEND; it is answered when all its commands are settled, or in parts if that takes long.

        Raises:
            ShuttingDown, Overloaded
        """
        assert isinstance(request, Send)
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if self._order.collecting is not self:
            self._order.switch_to(self)
        commands, entries = request.commands, self._entries
        pending = PendingSend(connection, request_id, len(commands))
        self._waiting.add(pending, connection.request_bytes)
        self._gate.owe(connection, len(commands) * _COMMAND_S)
        if connection.in_parts:
            self._replies.expect(pending)
        for place, row in enumerate(commands):
            try:
                sent = SentCommand(row[1], row[2], self._decided(connection, row), connection)
            except EventStoreError as error:
                self._replies.put(pending, place, pending.encode(error))
            else:
                sent.request, sent.place = pending, place
                entries.append(sent)

    def _decided(self, _: ServerConnection, row: WireCommand) -> Decided:
        name, aggregate_id, command_id, payload, metadata = row
        if not (
            aggregate_id
            and command_id
            and aggregate_id.isascii()
            and command_id.isascii()
            and metadata is None
            and len(command_id) <= ID_BYTES_MAX
            and len(aggregate_id) <= ID_BYTES_MAX
            and len(payload) <= PAYLOAD_BYTES_MAX
        ):
            check_command(row)
        if not self._has_handlers:
            raise UnknownCommand(
                "this server has no domain; start it with --domain MODULE:NAME, or send the command to a worker",
                type=name[:ID_BYTES_MAX],
            )
        handler, command, fingerprint = self._domain.decode_with_fingerprint(name, payload, aggregate_id)
        return new_decided((handler, command, command_id, fingerprint, metadata))

    def hand_over(self) -> None:
        """Hands the batch to the mailboxes."""
        if not self._entries:  # none could be decoded
            return
        entries, self._entries = self._entries, []
        try:
            refused: Sequence[ServerEntry] = self._mailboxes.submit(entries)
        except Stopping as error:
            self._replies.refuse(entries, ShuttingDown(str(error)))
        else:
            if refused:
                self._replies.refuse(refused, Overloaded(str(refused[0].error)))
        self._mailboxes.kick()
