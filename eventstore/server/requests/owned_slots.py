"""Slots of a shard: a commit, command or read of an aggregate that another shard owns is refused with Elsewhere, and stores
nothing.

Only a shard of a cluster has this; a store of its own takes every aggregate, and checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias

from eventstore.domain.domain import Domain
from eventstore.domain.runtime import Decided
from eventstore.errors import CrossShard, Elsewhere, EventStoreError, UnknownCommand
from eventstore.flat import Scalar
from eventstore.model import ID_BYTES_MAX
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.protocol.requests import (
    Append,
    ReadMany,
    WireCommand,
)
from eventstore.records.cluster_map import SlotRange
from eventstore.records.slots import LOCAL, slot_of, slots_in
from eventstore.server.access.doorkeeper import Doorkeeper
from eventstore.server.feature import Route
from eventstore.server.mailbox_wiring import ArrivalOrder, CommandMailboxes, ServerMailboxes
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.appends import (
    AppendBatcher,
    append_values,
    due_s,
)
from eventstore.server.requests.batch_replies import BatchReplies
from eventstore.server.requests.commands import CommandBatcher, CommandReplies, WaitingCommands
from eventstore.store.append import REFUSED, AppendOutcome

_KNOWN_MAX: Final = 65_536  # ids, some 10 MB
_aggregate_id: Final = itemgetter(0)


AppendRefusals: TypeAlias = Callable[[ServerConnection, Sequence[Any]], Mapping[int, EventStoreError]]
"""Takes the commits of a frame; returns why some are refused, by their place."""
CheckCommand: TypeAlias = Callable[[ServerConnection, WireCommand], None]


class OwnedSlots:
    """The slots of this shard. Ids that passed lately are kept, so that most batches cost one look into a set. `giving`: some
    are held back for a split that is not settled.
    """

    def __init__(self, slots: Sequence[SlotRange], map_version: Callable[[], int]) -> None:
        self._slots = {LOCAL, *slots_in(slots)}
        self._map_version = map_version
        self._known: set[str] = set()
        self.giving = False

    @property
    def lowest(self) -> int:
        """The first of the slots."""
        return min(slot for slot in self._slots if slot != LOCAL)

    def give_up(self, slots: Iterable[SlotRange]) -> None:
        """From now on these slots are refused."""
        self._slots.difference_update(slots_in(slots))
        self._known.clear()
        self.giving = True

    def owns(self, slot: int) -> bool:
        return slot in self._slots

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

    def across(self, aggregate_ids: Sequence[str]) -> EventStoreError | None:
        """Returns the error if another shard owns some of these aggregates, or all."""
        elsewhere = self.refusals(aggregate_ids)
        if not elsewhere:
            return None
        own = next((name for place, name in enumerate(aggregate_ids) if place not in elsewhere), None)
        place, error = next(iter(elsewhere.items()))
        return error if own is None else CrossShard(own, aggregate_ids[place])

    def guard(self, routes: dict[type[Request], Route]) -> dict[type[Request], Route]:
        """Returns the routes; those of requests that name an aggregate, or read several, check it first."""
        guarded = {
            kind: self._guarded(route) if "aggregate_id" in DECLARATIONS[kind].fields else route
            for kind, route in routes.items()
        }
        return guarded if ReadMany not in routes else guarded | {ReadMany: self._guarded_rows(routes[ReadMany])}

    def _guarded_rows(self, route: Route) -> Route:
        def checked(connection: ServerConnection, request_id: int, request: Any) -> None:
            if (error := self.across([each[0] for each in request.aggregates])) is not None:
                raise error
            route(connection, request_id, request)

        return checked

    def _guarded(self, route: Route) -> Route:
        def checked(connection: ServerConnection, request_id: int, request: Any) -> None:
            if request.aggregate_id is not None:
                self.check(request.aggregate_id)
            route(connection, request_id, request)

        return checked


class CheckedAppends(AppendBatcher):
    """Takes appends; a commit of another shard, or to an aggregate that the client may not append to, is refused alone, in its
    place.
    """

    def __init__(
        self, refusals: AppendRefusals, gate: Gate, mailboxes: ServerMailboxes, late: CommandReplies, order: ArrivalOrder
    ) -> None:
        super().__init__(gate, mailboxes, late, order)
        self._refusals = refusals

    def append(self, connection: ServerConnection, request_id: int, request: Append) -> None:
        """Takes an APPEND. Raises: ShuttingDown."""
        commits = request.commits
        refused = {} if self.stopping else self._refusals(connection, commits)
        if not refused:
            super().append(connection, request_id, request)
            return
        self._order.end_turn()  # what came before keeps its place
        own = [commit for place, commit in enumerate(commits) if place not in refused]
        self._gate.owe(connection, due_s(connection.request_bytes, commits))
        replies = BatchReplies(self._gate, _with(refused, len(commits)))
        replies.requests.append((connection, request_id, len(own), connection.request_bytes))
        if own:
            self._submit(replies, own, connection.request_bytes)
        else:
            replies.deliver([])


def _with(refused: Mapping[int, EventStoreError], count: int) -> Callable[[Sequence[AppendOutcome], int], list[Scalar]]:
    """Returns the encoding of `count` outcomes, of which these are refusals."""

    def values(outcomes: Sequence[AppendOutcome], _: int) -> list[Scalar]:
        others = iter(outcomes)
        merged: list[Any] = [(REFUSED, refused[place], 0) if place in refused else next(others) for place in range(count)]
        return append_values(merged, count)

    return values


class CheckedCommands(CommandBatcher):
    """Takes commands; one of another shard, or that the client may not send, is refused alone."""

    def __init__(
        self,
        check: CheckCommand,
        named: Callable[[ServerConnection, str], bool] | None,
        gate: Gate,
        domain: Domain,
        mailboxes: CommandMailboxes,
        replies: CommandReplies,
        waiting: WaitingCommands,
        order: ArrivalOrder,
    ) -> None:
        """`named`: which types of commands an error may name to a client; None: every one."""
        super().__init__(gate, domain, mailboxes, replies, waiting, order)
        self._check, self._named = check, named

    def _decided(self, connection: ServerConnection, row: WireCommand) -> Decided:
        self._check(connection, row)
        try:
            return super()._decided(connection, row)
        except UnknownCommand:
            if self._named is None or not self._has_handlers:
                raise
            raise self._domain.unknown_command(row[0], partial(self._named, connection)) from None


def appends_of(
    slots: OwnedSlots | None, door: Doorkeeper | None
) -> Callable[[Gate, ServerMailboxes, CommandReplies, ArrivalOrder], AppendBatcher]:
    """Returns what makes the append batcher of a server: with a check of what a shard owns, and of what a client may."""
    if slots is None:
        return AppendBatcher if door is None else partial(CheckedAppends, door.refused_appends)

    def refusals(connection: ServerConnection, commits: Sequence[Any]) -> Mapping[int, EventStoreError]:
        elsewhere = slots.refusals(list(map(_aggregate_id, commits)))
        return elsewhere if door is None else {**elsewhere, **door.refused_appends(connection, commits)}

    return partial(CheckedAppends, refusals)


def commands_of(
    slots: OwnedSlots | None, door: Doorkeeper | None
) -> Callable[[Gate, Domain, CommandMailboxes, CommandReplies, WaitingCommands, ArrivalOrder], CommandBatcher]:
    """Returns what makes the command batcher of a server: with a check of what a shard owns, and of what a client may."""
    if slots is None:
        return CommandBatcher if door is None else partial(CheckedCommands, door.check_command, door.may_command)

    def check(connection: ServerConnection, row: WireCommand) -> None:
        if door is not None:
            door.check_command(connection, row)
        slots.check(row[1])

    return partial(CheckedCommands, check, None if door is None else door.may_command)
