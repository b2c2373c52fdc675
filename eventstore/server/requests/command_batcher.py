"""The command batcher: all commands (SEND) of one turn of the gate, from all connections, go to the mailboxes as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.domain.domain import Domain
from eventstore.domain.runtime import Decided, new_decided
from eventstore.errors import EventStoreError, Overloaded, ShuttingDown, UnknownCommand
from eventstore.model import ID_BYTES_MAX
from eventstore.protocol.limits import PAYLOAD_BYTES_MAX
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Send, WireCommand, check_command
from eventstore.server.mailbox_wiring import ArrivalOrder, CommandMailboxes, ServerEntry
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.command_replies import CommandReplies, PendingSend, SentCommand
from eventstore.server.requests.dispatch import Route
from eventstore.server.requests.waiting_commands import WaitingCommands
from eventstore_mailbox import Stopping

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
        self.routes: dict[type[Request], Route] = {Send: self.send}

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
