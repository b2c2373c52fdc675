"""Commands that a server or worker sends itself, for reactions and timers: into its own mailboxes, or to another shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from eventstore.command_metadata import encode_metadata
from eventstore.commands import RawCommand, raw_command
from eventstore.domain.domain import Domain
from eventstore.domain.runtime import decide
from eventstore.domain.timers.timers import ReservedRow
from eventstore.errors import Elsewhere, EventStoreError, ShuttingDown
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Committed, NewEvent
from eventstore.protocol.timer_requests import SetTimer
from eventstore.records.raw_commit import CommitResult
from eventstore.records.timer_record import SET, beside, json_bytes, set_data, timers_id
from eventstore.server.mailbox_wiring import CommandMailboxes, LookUpCommands, ServerEntry
from eventstore.server.reactions.other_shards import OtherShards
from eventstore.server.requests.commands import outcome_of
from eventstore_mailbox import MailboxError


class OwnCommands:
    """`others`: takes the commands to aggregates of other shards; None: there are none, or mailboxes and store know them.
    `store`: where timers are set. `hint`: called after one was set.
    """

    def __init__(
        self,
        domain: Domain,
        mailboxes: CommandMailboxes,
        find_commands: LookUpCommands,
        others: OtherShards | None = None,
        store: AppendsTimers | None = None,
    ) -> None:
        self.hint: Callable[[], None] = lambda: None
        self._store = store
        self._domain, self._mailboxes, self._find_commands, self._others = domain, mailboxes, find_commands, others

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
        raw, encoded = raw_command(command), encode_metadata(metadata)
        if self._others is not None and self._others.own(raw.aggregate_id):
            return await self._others.set_timer(timer_request(raw, command_id, when, name, encoded))
        assert self._store is not None
        fields = set_data(raw.type, raw.aggregate_id, raw.payload, name, when)
        event = timer_event(SET, beside(raw.aggregate_id, fields), encoded)
        done = await appended(self._store, ReservedRow(timers_id(raw.aggregate_id), command_id, event))
        self.hint()
        return done


def timer_request(
    raw: RawCommand, command_id: str, when: Mapping[str, int], name: str | None, metadata: bytes | None
) -> SetTimer:
    return SetTimer(
        raw.aggregate_id, command_id, raw.type, raw.payload, when.get("after_us"), when.get("at_us"), name, metadata
    )


class AppendsTimers(Protocol):
    """The part of a store that takes events of timers."""

    def append_timers(self, rows: Sequence[ReservedRow], /) -> Awaitable[list[CommitResult]]: ...


async def appended(store: AppendsTimers, row: ReservedRow) -> Committed:
    """Appends an event of a timer; durable on return. Raises the errors of `append`."""
    (done,) = await store.append_timers([row])
    if isinstance(done, EventStoreError):
        raise done
    return done


def timer_event(type_: str, data: bytes | dict[str, Any], metadata: bytes | None) -> NewEvent:
    """Returns an event of a timer."""
    encoded, format_ = data if isinstance(data, bytes) else json_bytes(data), DATA_IS_JSON
    return tuple.__new__(NewEvent, (format_ if metadata is None else format_ | METADATA_IS_JSON, type_, encoded, metadata))
