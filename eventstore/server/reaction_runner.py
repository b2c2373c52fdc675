"""Runs the reactions of a domain in the server: from a subscription of the store into the server's mailboxes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from eventstore.command_metadata import encode_metadata
from eventstore.domain.domain import Domain
from eventstore.domain.encoding.command_type import encode_command
from eventstore.domain.event_batches import Followable
from eventstore.domain.reactions.checkpoint import FileCheckpoint
from eventstore.domain.reactions.reactor import react
from eventstore.domain.runtime import decide
from eventstore.errors import EventStoreError, ShuttingDown
from eventstore.model import Committed
from eventstore.server.mailbox_wiring import ServerEntry, ServerMailboxes, StoreAccess
from eventstore.server.requests.command_replies import outcome_of
from eventstore_mailbox import MailboxError

_PAUSE_S: Final = 5.0
_log = logging.getLogger(__name__)


class Reactions:
    """`failure`: why reactions are stuck, until they proceed."""

    def __init__(
        self, store: Followable, checkpoint: Path, domain: Domain, mailboxes: ServerMailboxes, access: StoreAccess
    ) -> None:
        self._store = store
        self._checkpoint = FileCheckpoint(checkpoint)
        self._domain = domain
        self._mailboxes = mailboxes
        self._access = access
        self.failure: str | None = None

    async def run(self) -> None:
        """Reacts until cancelled. A failed reaction is retried until it succeeds; those after it wait."""
        if not self._domain.reactions:
            return
        while True:
            try:
                await react(self._store, self._domain, self._send, self)
            except Exception as error:  # such as a checkpoint that cannot be written; the server keeps serving
                self.failure = str(error) or type(error).__name__
                trace = None if isinstance(error, EventStoreError | OSError) else error
                _log.error("reactions are retried in %g s: %s", _PAUSE_S, self.failure, exc_info=trace)
            await trio.sleep(_PAUSE_S)

    # ---- the checkpoint; its methods block

    def load(self) -> int:
        return self._checkpoint.load()

    def save(self, sequence: int) -> None:
        """Saves that all events up to `sequence` were reacted to, including those that failed at first."""
        self._checkpoint.save(sequence)
        self.failure = None

    # ---- commands

    async def _send(self, command: object, command_id: str, *, metadata: Mapping[str, object]) -> Committed | None:
        name, aggregate_id, payload = encode_command(command)
        decided = decide(self._domain, name, payload, aggregate_id, command_id, encode_metadata(metadata))
        entry = ServerEntry(aggregate_id, command_id, decided)
        try:
            settled = await self._mailboxes.execute(entry)
        except MailboxError as error:
            raise ShuttingDown(str(error)) from None
        outcome = await outcome_of(settled, self._access)
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome if isinstance(outcome, Committed) else None
