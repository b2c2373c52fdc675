"""Runs the reactions of a domain beside the server: from the store's own subscription, into its own mailboxes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import trio

from eventstore.domain.checkpoint import FileCheckpoint
from eventstore.domain.command_type import encode_command
from eventstore.domain.domain import Domain
from eventstore.domain.following import Followable
from eventstore.domain.reacting import react
from eventstore.domain.running import Decided
from eventstore.errors import EventStoreError, ShuttingDown
from eventstore.model import Committed
from eventstore.server.commands import outcome_of
from eventstore.server.mailroom import Below, ServerEntry, ServerMailboxes
from eventstore_mailbox import MailboxError

_PAUSE_S: Final = 5.0
_log = logging.getLogger(__name__)


class Reactions:
    """`failure` says why they do not go on, as long as they do not."""

    def __init__(self, store: Followable, checkpoint: Path, domain: Domain, mailboxes: ServerMailboxes, below: Below) -> None:
        self._store = store
        self._checkpoint = FileCheckpoint(checkpoint)
        self._domain = domain
        self._mailboxes = mailboxes
        self._below = below
        self.failure: str | None = None

    async def run(self) -> None:
        """Reacts until cancelled. One that fails is tried again, with all that come after it, until it gets through."""
        if not self._domain.reactions:
            return
        while True:
            try:
                await react(self._store, self._domain, self._send, self)
            except Exception as error:  # a checkpoint that cannot be written, say: the server goes on
                self.failure = str(error) or type(error).__name__
                trace = None if isinstance(error, EventStoreError | OSError) else error
                _log.error("reactions wait for %g s: %s", _PAUSE_S, self.failure, exc_info=trace)
            await trio.sleep(_PAUSE_S)

    # ---- the checkpoint; its methods block

    def load(self) -> int:
        return self._checkpoint.load()

    def save(self, sequence: int) -> None:
        """Everything in front of it was reacted to, also what had failed."""
        self._checkpoint.save(sequence)
        self.failure = None

    # ---- commands

    async def _send(self, command: object, command_id: str) -> Committed | None:
        name, aggregate_id, payload = encode_command(command)
        handler, decoded = self._domain.decode(name, payload, aggregate_id)
        entry = ServerEntry(aggregate_id, command_id, Decided(handler, decoded, command_id))
        try:
            settled = await self._mailboxes.execute(entry)
        except MailboxError as error:
            raise ShuttingDown(str(error)) from None
        outcome = await outcome_of(settled, self._below)
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome if isinstance(outcome, Committed) else None
