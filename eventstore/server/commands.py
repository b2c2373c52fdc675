"""Commands come in with SEND, and are answered when what they changed is durable.

A handler that refuses a command, or changes nothing, may do so because the command was handled before: then the first outcome
is the answer. So before such an answer the store is asked for the command's id; for all others it tells by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeAlias, cast

import trio

from eventstore.domain.domain import Domain
from eventstore.domain.running import Decided
from eventstore.errors import (
    CommandIdReused,
    EventStoreError,
    HandlerFailed,
    Overloaded,
    ShuttingDown,
    UnknownCommand,
    VersionConflict,
    again,
)
from eventstore.flat import Scalar, chain
from eventstore.model import ID_BYTES_MAX, Committed, Unchanged
from eventstore.protocol import encode_outcomes, outcome_values
from eventstore.protocol.codes import OutcomeKind
from eventstore.protocol.limits import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX
from eventstore.protocol.requests import Request, Send, WireCommand, check_command
from eventstore.server.askers import error_text_bytes_max
from eventstore.server.connection import Connection
from eventstore.server.gate import Gate
from eventstore.server.mailroom import Below, ServerEntry, ServerMailboxes
from eventstore_mailbox import CONFLICT, DUPLICATE, FAILED, REFUSED, UNCHANGED, MailboxError, Stopping

Values: TypeAlias = "tuple[Scalar, Scalar, Scalar]"
_OUTCOME_BYTES: Final = 32  # of an outcome, beside its error
_FIELDS_ALWAYS: Final = 3  # of an error: with its message, and their names, they fit into any answer (see `intake`)
_log = logging.getLogger(__name__)
_UNCHANGED: Final[Values] = (int(OutcomeKind.UNCHANGED), 0, 0)


class _Request:
    """A SEND that is not answered yet."""

    __slots__ = ("connection", "error_bytes_max", "missing", "request_id", "text_bytes_max", "values")

    def __init__(self, connection: Connection, request_id: int, commands: int) -> None:
        self.connection = connection
        self.request_id = request_id
        self.missing = commands
        self.values: list[Values] = [_UNCHANGED] * commands
        self.text_bytes_max = error_text_bytes_max(commands)
        self.error_bytes_max = FRAME_BYTES_MAX // commands - _OUTCOME_BYTES

    def told(self, outcome: Committed | EventStoreError) -> Values:
        """The values of an outcome. An error of the domain may have more fields than fit, with all others, into the answer:
        then the first ones have to do.
        """
        values = outcome_values(outcome, self.text_bytes_max)
        encoded = values[2]
        if isinstance(outcome, EventStoreError) and isinstance(encoded, bytes) and len(encoded) > self.error_bytes_max:
            short = again(outcome)
            short.fields = dict(islice(outcome.fields.items(), _FIELDS_ALWAYS))
            values = outcome_values(short, self.text_bytes_max)
        return values


class _Sent(ServerEntry):
    """A command with the place its outcome has in the answer. Without an `__init__` of its own: that would be a third of what
    it takes to make one.
    """

    __slots__ = ("place", "request")

    request: _Request
    place: int


class Commands:
    """Collects the commands of a turn, and answers them. Without handlers every command is unknown."""

    def __init__(self, domain: Domain, below: Below) -> None:
        self._decode = domain.decode
        self._has_handlers = bool(domain.handlers)
        self._find_command = below.find_command
        self._mailboxes: ServerMailboxes | None = None
        self._gate: Gate | None = None
        self._entries: list[_Sent] = []
        self._answering = False
        self._hand_over_appends: Callable[[], None] | None = None
        self.stopping = False

    def connect(self, gate: Gate) -> None:
        self._gate = gate

    def deliver_to(self, mailboxes: ServerMailboxes) -> None:
        """Where the commands go; its `answer` must be ours."""
        self._mailboxes = mailboxes

    def go_behind(self, hand_over_appends: Callable[[], None]) -> None:
        """Appends that came before a command are handed over before it."""
        self._hand_over_appends = hand_over_appends

    # ---- in

    def send(self, connection: Connection, request_id: int, request: Request) -> None:
        """The answer follows when all commands are settled.

        Raises:
            ShuttingDown
        """
        assert isinstance(request, Send)
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        if self._hand_over_appends is not None:
            self._hand_over_appends()
        commands, entries = request.commands, self._entries
        asked = _Request(connection, request_id, len(commands))
        connection.owed += 1
        for place, row in enumerate(commands):
            try:
                sent = _Sent(row[1], row[2], self._decided(row), connection)
            except EventStoreError as error:
                self._put(asked, place, asked.told(error))
            else:
                sent.request, sent.place = asked, place
                entries.append(sent)

    def _decided(self, row: WireCommand) -> Decided:
        name, aggregate_id, command_id, payload = row
        if not (
            aggregate_id.isascii() and command_id.isascii() and 0 < len(command_id) <= ID_BYTES_MAX
            and 0 < len(aggregate_id) <= ID_BYTES_MAX and len(payload) <= PAYLOAD_BYTES_MAX
        ):  # fmt: skip
            check_command(row)
        if not self._has_handlers:
            raise UnknownCommand("this server has no domain; start it with --domain MODULE:NAME", type=name[:ID_BYTES_MAX])
        return tuple.__new__(Decided, (*self._decode(name, payload, aggregate_id), command_id))  # its own takes twice as long

    def end_turn(self) -> None:
        """Hands the commands of the turn over."""
        if not self._entries:
            return
        assert self._mailboxes is not None
        entries, self._entries = self._entries, []
        try:
            refused: Sequence[ServerEntry] = self._mailboxes.submit(entries)
        except Stopping as error:
            self._refuse(entries, ShuttingDown(str(error)))
        else:
            if refused:
                self._refuse(refused, Overloaded(str(refused[0].error)))
        self._mailboxes.kick()

    # ---- out

    def answer(self, entries: Sequence[ServerEntry]) -> None:
        """Takes commands that are settled."""
        assert self._gate is not None
        self._answering = True
        try:
            for entry in entries:
                assert isinstance(entry, _Sent)
                try:
                    if entry.status < CONFLICT:
                        self._put(entry.request, entry.place, cast("Values", entry.result))  # three ints
                    else:
                        self._answer(entry)
                except Exception:  # the others get their answers; this client asks again
                    _log.exception("answering a command failed; its connection is closed")
                    self._gate.drop(entry.request.connection)
        finally:
            self._answering = False
            self._gate.flush()

    def _answer(self, entry: _Sent) -> None:
        """One that the store has not taken."""
        if _may_be_repeated(entry):
            self._find_command(entry.aggregate_id, entry.command_id, partial(self._looked_up, entry))
        else:
            self._put(entry.request, entry.place, entry.request.told(_refusal(entry)))

    def _looked_up(self, entry: _Sent, found: Committed | EventStoreError | None) -> None:
        request = entry.request
        if found is None and entry.status == UNCHANGED:
            self._put(request, entry.place, _UNCHANGED)
        else:
            self._put(request, entry.place, request.told(_refusal(entry) if found is None else found))
        if not self._answering:
            assert self._gate is not None
            self._gate.flush()

    def _refuse(self, entries: Sequence[ServerEntry], error: EventStoreError) -> None:
        for entry in entries:
            assert isinstance(entry, _Sent)
            self._put(entry.request, entry.place, entry.request.told(error))

    def _put(self, request: _Request, place: int, values: Values) -> None:
        """The outcome of one command; the last one of a request sends the answer."""
        request.values[place] = values
        request.missing -= 1
        if request.missing:
            return
        connection = request.connection
        connection.owed -= 1
        if not connection.closed:
            assert self._gate is not None
            self._gate.send(connection, encode_outcomes(request.request_id, chain(request.values)))


async def outcome_of(entry: ServerEntry, below: Below) -> Committed | Unchanged | EventStoreError:
    """What became of a command that is settled, for whoever waited for it in this process."""
    if entry.status < CONFLICT and entry.outcome is not None:
        _, version, sequence = entry.outcome
        assert isinstance(version, int)
        return Committed(entry.aggregate_id, version, sequence, duplicate=entry.status == DUPLICATE)
    if _may_be_repeated(entry):
        answers: list[Committed | EventStoreError | None] = []
        asked = trio.Event()

        def found(answer: Committed | EventStoreError | None) -> None:
            answers.append(answer)
            asked.set()

        below.find_command(entry.aggregate_id, entry.command_id, found)
        await asked.wait()
        if answers[0] is not None:
            return answers[0]
        if entry.status == UNCHANGED:
            return Unchanged(entry.aggregate_id)
    return _refusal(entry)


def _may_be_repeated(entry: ServerEntry) -> bool:
    return entry.status in (UNCHANGED, FAILED)


def _refusal(entry: ServerEntry) -> Committed | EventStoreError:
    """What is told of a command that did not get through."""
    outcome = entry.outcome
    if entry.status == CONFLICT and outcome is not None:
        assert isinstance(outcome[1], int)
        return VersionConflict(entry.aggregate_id, "the version it was handled at", outcome[1])
    error = outcome[1] if entry.status == REFUSED and outcome is not None else entry.error
    if isinstance(error, CommandIdReused):  # stored before, with other events: handled again, it met another state
        return _first_outcome(error)
    if isinstance(error, MailboxError):
        return ShuttingDown(str(error))
    if isinstance(error, EventStoreError):
        return error
    name, handler = type(error).__name__, entry.command.handler.name
    return HandlerFailed(f"{handler} raised {name}, which is no error of a domain", handler=handler, error=name)


def _first_outcome(error: CommandIdReused) -> Committed:
    version, sequence = error.fields["version"], error.fields["sequence"]
    assert isinstance(version, int)
    assert isinstance(sequence, int)
    return Committed(str(error.fields["aggregate_id"]), version, sequence, duplicate=True)
