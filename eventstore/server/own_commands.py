"""Commands that a server or worker sends itself, for reactions and timers: into its own mailboxes, or to another shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from eventstore.command_metadata import encode_metadata
from eventstore.commands import raw_command
from eventstore.domain.domain import Domain
from eventstore.domain.runtime import decide
from eventstore.errors import Elsewhere, EventStoreError, ShuttingDown
from eventstore.model import Committed
from eventstore.protocol.timer_info import TimerEvent
from eventstore.protocol.timer_requests import SetTimer
from eventstore.records.timer_record import timers_id
from eventstore.server.mailbox_wiring import CommandMailboxes, LookUpCommands, ServerEntry
from eventstore.server.reactions.other_shards import OtherShards
from eventstore.server.requests.commands import outcome_of
from eventstore_mailbox import MailboxError

SetsTimer: TypeAlias = Callable[[SetTimer], Awaitable[TimerEvent]]


class OwnCommands:
    """`others`: takes what is for aggregates of other shards; None: there are none, or the other two know them. `set_here`:
    sets a timer.
    """

    def __init__(
        self,
        domain: Domain,
        mailboxes: CommandMailboxes,
        find_commands: LookUpCommands,
        set_here: SetsTimer,
        others: OtherShards | None = None,
    ) -> None:
        self._domain, self._mailboxes, self._find_commands, self._others = domain, mailboxes, find_commands, others
        self._set_here = set_here

    async def send(self, command: object, command_id: str, *, metadata: Mapping[str, object]) -> Committed | None:
        """Has a command handled; returns once that is durable. None: nothing changed. Raises the error if it was refused."""
        name, aggregate_id, payload = raw_command(command)
        if self._others is not None and self._others.own(aggregate_id):
            return await self._others.send(command, command_id, metadata)
        decided = decide(self._domain, name, payload, aggregate_id, command_id, encode_metadata(metadata))
        entry = ServerEntry(aggregate_id, command_id, decided)
        try:
            settled = await self._mailboxes.execute(entry)
        except MailboxError as error:
            raise ShuttingDown(str(error)) from None
        outcome = await outcome_of(settled, self._find_commands)
        if isinstance(outcome, Elsewhere) and self._others is not None:  # it was taken, then the shard gave the slot away
            return await self._others.send(command, command_id, metadata)
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome if isinstance(outcome, Committed) else None

    async def set_timer(
        self, command: object, command_id: str, *, when: Mapping[str, int], name: str | None, metadata: Mapping[str, object]
    ) -> Committed:
        """Has a command sent when it is due; durable on return. Raises the errors of an append."""
        type_, aggregate_id, payload = raw_command(command)
        after_us, at_us, encoded = when.get("after_us"), when.get("at_us"), encode_metadata(metadata)
        request = SetTimer(aggregate_id, command_id, type_, payload, after_us, at_us, name, encoded)
        elsewhere = self._others is not None and self._others.own(aggregate_id)
        set_timer = self._others.set_timer if self._others is not None and elsewhere else self._set_here
        done = await set_timer(request)
        return Committed(timers_id(aggregate_id), done.version, done.sequence, durability=None)
