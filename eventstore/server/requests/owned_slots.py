"""Slots of a shard: a commit, command or read of an aggregate that another shard owns is refused with Elsewhere, and stores
nothing.

Only a shard of a cluster has this; a store of its own takes every aggregate, and checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from eventstore.domain.domain import Domain
from eventstore.domain.runtime import Decided
from eventstore.errors import Elsewhere
from eventstore.flat import Scalar
from eventstore.model import ID_BYTES_MAX
from eventstore.protocol.reaction_requests import RecordParking, RetryParked, SkipParked
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import (
    Append,
    FindCommand,
    Read,
    ReadAll,
    Subscribe,
    Version,
    WireCommand,
)
from eventstore.records.cluster_map import SlotRange
from eventstore.records.slots import LOCAL, slot_of
from eventstore.server.mailbox_wiring import ArrivalOrder, ServerMailboxes
from eventstore.server.net.connection import Connection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.append_batcher import (
    AppendBatcher,
    append_values,
    due_s,
)
from eventstore.server.requests.batch_replies import BatchReplies, error_text_bytes_max
from eventstore.server.requests.command_batcher import CommandBatcher
from eventstore.server.requests.command_replies import CommandReplies
from eventstore.server.requests.dispatch import Route
from eventstore.server.requests.waiting_commands import WaitingCommands
from eventstore.store.append import REFUSED, AppendOutcome

_KNOWN_MAX: Final = 65_536  # ids, some 10 MB
_ABOUT_AN_AGGREGATE: Final = (Read, ReadAll, Version, FindCommand, Subscribe, RecordParking, RetryParked, SkipParked)
_aggregate_id: Final = itemgetter(0)


class OwnedSlots:
    """The slots of this shard. Ids that passed lately are kept, so that most batches cost one look into a set."""

    def __init__(self, slots: Sequence[SlotRange], map_version: Callable[[], int]) -> None:
        self._slots = {LOCAL, *(slot for low, high in slots for slot in range(low, high + 1))}
        self._map_version = map_version
        self._known: set[str] = set()

    def check(self, aggregate_id: str) -> None:
        """Raises Elsewhere if another shard owns the aggregate."""
        if aggregate_id in self._known:
            return
        slot = slot_of(aggregate_id)
        if slot not in self._slots:
            raise Elsewhere(slot, self._map_version())
        if len(aggregate_id) <= ID_BYTES_MAX:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known.add(aggregate_id)

    def refusals(self, aggregate_ids: Sequence[str]) -> dict[int, Elsewhere]:
        """Returns the error of each id that another shard owns, by its place."""
        refused: dict[int, Elsewhere] = {}
        if not self._known.issuperset(aggregate_ids):
            for place, aggregate_id in enumerate(aggregate_ids):
                try:
                    self.check(aggregate_id)
                except Elsewhere as error:
                    refused[place] = error
        return refused

    def guard(self, routes: dict[type[Request], Route]) -> dict[type[Request], Route]:
        """Returns the routes; those of requests about one aggregate check it first."""
        return {kind: self._guarded(route) if kind in _ABOUT_AN_AGGREGATE else route for kind, route in routes.items()}

    def _guarded(self, route: Route) -> Route:
        def checked(connection: Connection, request_id: int, request: Any) -> None:
            if request.aggregate_id is not None:
                self.check(request.aggregate_id)
            route(connection, request_id, request)

        return checked


class ShardAppends(AppendBatcher):
    """Takes the appends of a shard; a commit of another shard is refused alone, in its place."""

    def __init__(
        self, slots: OwnedSlots, gate: Gate, mailboxes: ServerMailboxes, late: CommandReplies, order: ArrivalOrder
    ) -> None:
        super().__init__(gate, mailboxes, late, order)
        self._slots = slots

    def append(self, connection: Connection, request_id: int, request: Append) -> None:
        """Takes an APPEND. Raises: ShuttingDown."""
        commits = request.commits
        refused = {} if self.stopping else self._slots.refusals(list(map(_aggregate_id, commits)))
        if not refused:
            super().append(connection, request_id, request)
            return
        self._order.end_turn()  # what came before keeps its place
        own = [commit for place, commit in enumerate(commits) if place not in refused]
        self._gate.owe(connection, due_s(commits))
        replies = BatchReplies(self._gate, _with(refused, len(commits)))
        replies.requests.append((connection, request_id, len(own)))
        if own:
            self._submit(replies, own)
        else:
            replies.deliver([])


def _with(refused: dict[int, Elsewhere], count: int) -> Callable[[Sequence[AppendOutcome], int], list[Scalar]]:
    """Returns the encoding of `count` outcomes, of which these are refusals."""

    def values(outcomes: Sequence[AppendOutcome], _: int) -> list[Scalar]:
        others = iter(outcomes)
        merged: list[Any] = [(REFUSED, refused[place], 0) if place in refused else next(others) for place in range(count)]
        return append_values(merged, error_text_bytes_max(count))

    return values


class ShardCommands(CommandBatcher):
    """Takes the commands of a shard; a command of another shard is refused alone."""

    def __init__(
        self,
        slots: OwnedSlots,
        gate: Gate,
        domain: Domain,
        mailboxes: ServerMailboxes,
        replies: CommandReplies,
        waiting: WaitingCommands,
        order: ArrivalOrder,
    ) -> None:
        super().__init__(gate, domain, mailboxes, replies, waiting, order)
        self._slots = slots

    def _decided(self, row: WireCommand) -> Decided:
        self._slots.check(row[1])
        return super()._decided(row)


def appends_of(slots: OwnedSlots | None) -> Callable[[Gate, ServerMailboxes, CommandReplies, ArrivalOrder], AppendBatcher]:
    """Returns what makes the append batcher of a server: of every aggregate, or of a shard's slots."""
    return AppendBatcher if slots is None else partial(ShardAppends, slots)


def commands_of(
    slots: OwnedSlots | None,
) -> Callable[[Gate, Domain, ServerMailboxes, CommandReplies, WaitingCommands, ArrivalOrder], CommandBatcher]:
    """Returns what makes the command batcher of a server: of every aggregate, or of a shard's slots."""
    return CommandBatcher if slots is None else partial(ShardCommands, slots)
