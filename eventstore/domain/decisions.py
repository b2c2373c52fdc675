"""Runs commands that are decided on a query, for the mailboxes: one lane for each scope, its models in memory, conditions that
guard what was decided.

A scope is the text in braces of the command's aggregate id, or the id itself. All decisions of a scope take their turn in one
lane, so no two of them conflict. A command gets the model of its query: the fold of the events that pass it, from memory or
from the store. Its events are committed unless another event that passes the query is in the log, after the place up to which
the model was read. Then it is read on, and decided again.

A command runs ahead of the disk if no change that its scope has in flight may pass its query: such a change has no place in the
log yet, so neither the model nor the condition could name it. Otherwise it waits until these changes are stored.

A model in memory is as the log was at its place. That is enough to accept a command, because the condition is checked; a
refusal, and "nothing changed", are decided on a model that was read on just before.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import trio

from eventstore import flat
from eventstore.domain.aggregate import new, unmodified
from eventstore.domain.decision import Decision
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.handler import DecisionHandler, Handled, sendable
from eventstore.domain.kept_state import KeptState
from eventstore.domain.restore import apply_stored
from eventstore.domain.snapshots.state_codec import Unwritable
from eventstore.errors import Diverged
from eventstore.model import ANY, Event
from eventstore.query import Query
from eventstore.records.raw_commit import Guarded, Unless
from eventstore.records.slots import scope_of
from eventstore.tags import TAGGED, tags_in
from eventstore_mailbox import ChangesFirst

if TYPE_CHECKING:
    from eventstore.domain.runtime import Decided

_log = logging.getLogger(__name__)
_LANE: Final = "$decisions{"
"""Reserved: no aggregate is named so. The name's slot is that of the scope."""
_MODELS_MAX: Final = 10_000
_EVENTS_MAX: Final = 1_000_000
"""Events that the models in memory have folded, all together: each may have kept all of its own."""
_NAMES_MAX: Final = 250_000
"""Tags and types of changes that are kept apart, of all scopes: 75 MB with tags of 40 bytes."""

GuardedRow: TypeAlias = "tuple[str, Guarded, str, None, tuple[bytes, int, bytes]]"
"""As `CommitRow`, with what must not have come up meanwhile."""

QueryPlace: TypeAlias = Any
"""Up to where a store was read, as the store says it; None: nothing was read yet."""

ReadByQuery: TypeAlias = Callable[[Query, str, QueryPlace], AsyncGenerator[tuple[list[Event], QueryPlace], None]]
"""Yields the events after a place that pass a query, of the slot of a scope: one page or more, each with the place after it.
Raises Diverged if the store's history is another one at the place."""


class ChangedEvent(NamedTuple):
    type: str
    tags: frozenset[str]
    data: bytes


class Model:
    """The fold of the events that pass a query.

    Attributes:
        place: up to which the log was read.
        read_at: how many changes had been made when it was read.
        own: hashes of the events of the change that it has folded since; empty if there is none.
        before: its state at an earlier place, and that place; None as long as no change of it came to nothing. With it the log
            is not read from the beginning after each conflict, which another writer of many events would always outrun.
    """

    __slots__ = ("before", "decision", "own", "place", "read_at")

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.place: QueryPlace = None
        self.read_at = -1
        self.own: list[int] = []
        self.before: tuple[KeptState, QueryPlace] | None = None

    def made_again(self) -> Model | None:
        """Returns the model at its earlier place; None if it has none."""
        if self.before is None:
            return None
        kept, place = self.before
        model = Model(cast(Decision, kept.made_again(type(self.decision), self.decision._aggregate_id)))
        model.place = place
        return model


class LastChanges:
    """The number of the last change with a tag, or of a type, in a scope; of the names that were changed last."""

    def __init__(self, names_max: int = _NAMES_MAX) -> None:
        self._numbers: OrderedDict[tuple[str, bool, str], int] = OrderedDict()
        self._names_max = names_max
        self._forgotten = 0  # the greatest number that is not kept

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, scope: str, is_tag: bool, name: str) -> int:
        """Returns the number, or a greater one; 0 if there was none."""
        return self._numbers.get((scope, is_tag, name), self._forgotten)

    def note(self, scope: str, is_tag: bool, name: str, number: int) -> None:
        """Notes the number of a change. It is no smaller than those before."""
        numbers = self._numbers
        numbers[scope, is_tag, name] = number
        numbers.move_to_end((scope, is_tag, name))
        if len(numbers) > self._names_max:
            self._forgotten = numbers.popitem(last=False)[1]


class DecisionScope:
    """What the lane of a scope knows of its changes; to the mailboxes it is what they keep in memory as they do an aggregate.

    Attributes:
        settled: how many changes had been made when none of the scope was in flight.
    """

    must_restore: Final = False
    """It is never modified by a command that fails: its model is dropped then."""

    __slots__ = ("_changes", "_floor", "_newest", "name", "settled")

    def __init__(self, name: str, made: int, changes: LastChanges) -> None:
        self.name = name
        self.settled = self._floor = self._newest = made
        self._changes = changes

    def last_change(self, query: Query) -> int:
        """Returns the number of the last change that may have an event which passes the query, or a greater one."""
        return max(self._last(item.types, item.tags) for item in query.items)

    def _last(self, types: frozenset[str], tags: tuple[str, ...]) -> int:
        number_of = self._changes.of
        last = max((number_of(self.name, False, name) for name in types), default=self._newest)
        for tag in tags:
            last = min(last, number_of(self.name, True, tag))
        return max(last, self._floor)

    def note(self, number: int, events: list[ChangedEvent]) -> None:
        """Notes a change."""
        self._newest = number
        for event in events:
            self._changes.note(self.name, False, event.type, number)
            for tag in event.tags:
                self._changes.note(self.name, True, tag, number)


class Decisions:
    """The models of a set of mailboxes. `read` reads the store, `reads_max` queries at once: commands of aggregates would wait
    for all of them. `is_quick`: whether it checks a condition in memory.
    """

    def __init__(
        self, read: ReadByQuery, is_quick: Callable[[Unless], bool], reads_max: int, events_max: int = _EVENTS_MAX
    ) -> None:
        self._read = read
        self._is_quick = is_quick
        self._reading = trio.Semaphore(reads_max)
        self._models: OrderedDict[tuple[str, type[Decision], Query], Model] = OrderedDict()
        self._events_max = events_max
        self._events = 0
        self._changes = LastChanges()
        self._made = 0
        self._proven = set[type[Decision]]()
        self._unkept = set[type[Decision]]()

    @staticmethod
    def lane(decided: Decided) -> str | None:
        """See `Ports.lane`."""
        handler = decided[0]
        return f"{_LANE}{scope_of(handler.command.aggregate_id(decided[1]))}}}" if handler.is_decision else None

    def restore(self, lane: str) -> DecisionScope | None:
        """Returns what a lane of decisions begins with, also after a conflict; None for an aggregate."""
        return DecisionScope(lane, self._made, self._changes) if lane.startswith(_LANE) else None

    def handle(
        self, decided: Decided, scope: DecisionScope
    ) -> GuardedRow | Coroutine[object, object, GuardedRow | None] | None:
        """Runs a command and returns its change. Raises the error for its sender, and ChangesFirst."""
        handler = cast(DecisionHandler, decided.handler)
        query = handler.query_of(decided.command)
        last = scope.last_change(query)
        if last > scope.settled:
            scope.settled = self._made
            raise ChangesFirst
        model = self._models.pop((scope.name, handler.decision, query), None)
        if model is not None:
            self._events -= model.decision._aggregate_version
        if model is None or model.read_at < last:
            return self._read_and_run(decided, scope, query, model)
        aggregate_id = _prepare(model, decided)
        if handler.is_async or not self._is_quick(Unless(query, model.place, aggregate_id)):
            return self._read_and_run(decided, scope, query, model)
        before = vars(model.decision).copy()
        handled = handler.run(decided.command, model.decision)
        if handled.error is not None or not handled.events:
            return self._read_and_run(decided, scope, query, None if handled.touched else model)
        return self._change(decided, scope, query, model, handled, before)

    async def _read_and_run(
        self, decided: Decided, scope: DecisionScope, query: Query, model: Model | None
    ) -> GuardedRow | None:
        handler, made = cast(DecisionHandler, decided.handler), self._made
        aggregate_id = handler.command.aggregate_id(decided.command)
        if model is None or not await self._read_on(model, query, aggregate_id):
            again = model is not None
            model = None if model is None else model.made_again()
            if model is None or not await self._read_on(model, query, aggregate_id):
                model = Model(new(handler.decision, aggregate_id))
                await self._read_on(model, query, aggregate_id)
            if again:
                self._keep_state(model)
        model.read_at = made
        _prepare(model, decided)
        before = vars(model.decision).copy()
        handled = await handler.run_async(decided.command, model.decision)
        if handled.error is not None:
            if not handled.touched:
                self._keep(scope, query, model)
            raise sendable(handled.error, handler)
        if not handled.events:
            self._keep(scope, query, model)
            return None
        unless = Unless(query, model.place, aggregate_id)
        if handler.is_async and not self._is_quick(unless):
            unless = await self._looked_ahead(unless)
            model.place = unless.after
        return self._change(decided, scope, query, model, handled, before, unless.found)

    async def _looked_ahead(self, unless: Unless) -> Unless:
        """Reads on for a condition that would take long where it is checked, since its handler has taken long. Returns it with
        the place up to which it holds, or with an event that it forbids.
        """
        name = scope_of(unless.scope)
        async with self._reading, aclosing(self._read(unless.query, unless.scope, unless.after)) as pages:
            async for events, following in pages:
                found = next((each for each in events if scope_of(each.aggregate_id) == name), None)
                if found is not None:
                    return unless._replace(found=found)
                unless = unless._replace(after=following)
        return unless

    async def _read_on(self, model: Model, query: Query, scope: str) -> bool:
        """Brings a model up to date. Returns False if it does not fit the log; then it must not be used. Raises InvalidArgument
        if the query is too large to be kept.

        The log may have the command of the change with other events: those of another writer, or of another run of the handler.
        """
        own, model.own, name = model.own, [], scope_of(scope)
        if model.place is None:
            query.packed()
        try:
            async with self._reading, aclosing(self._read(query, scope, model.place)) as pages:
                async for events, place in pages:
                    events = [each for each in events if scope_of(each.aggregate_id) == name]  # other scopes share its slot
                    if own and events:
                        first = events[: len(own)]
                        mine = [_hash(each.aggregate_id, each.command_id, each.type, each.data) for each in first]
                        if mine != own[: len(mine)]:
                            return False
                        events, own = events[len(mine) :], own[len(mine) :]
                    apply_stored(model.decision, events, is_of_aggregate=False)
                    model.place = place
        except Diverged:
            if model.place is None:
                raise
            return False
        return not own

    def _change(
        self,
        decided: Decided,
        scope: DecisionScope,
        query: Query,
        model: Model,
        handled: Handled,
        before: dict[str, object],
        found: Event | None = None,
    ) -> GuardedRow:
        handler, command, command_id, fingerprint, _ = decided
        aggregate_id = handler.command.aggregate_id(command)
        events = _events_in(handled)
        self._made += 1
        scope.note(self._made, events)
        passing = sum(any(item.passes(event.type, event.tags) for item in query.items) for event in events)
        if passing == len(events):
            model.own = [_hash(aggregate_id, command_id, event.type, event.data) for event in events]
            self._keep(scope, query, model)
        elif not passing and unmodified(model.decision, before, True):  # else it has folded what it would not read
            model.decision._aggregate_version -= len(events)
            self._keep(scope, query, model)
        guard = Guarded(ANY, Unless(query, model.place, aggregate_id, found))
        return aggregate_id, guard, command_id, None, (handled.events, handled.event_count, fingerprint)

    def _keep_state(self, model: Model) -> None:
        kind = type(model.decision)
        if kind in self._unkept:
            return
        try:
            kept = KeptState(model.decision)
            if kind not in self._proven:
                kept.check(model.decision)
                self._proven.add(kind)
        except Unwritable as error:
            self._unkept.add(kind)
            _log.warning("each conflict reads all events of a query for %s: %s", class_path(kind), error)
        else:
            model.before = kept, model.place

    def _keep(self, scope: DecisionScope, query: Query, model: Model) -> None:
        models = self._models
        models[scope.name, type(model.decision), query] = model
        self._events += model.decision._aggregate_version
        while len(models) > _MODELS_MAX or (self._events > self._events_max and len(models) > 1):
            self._events -= models.popitem(last=False)[1].decision._aggregate_version


def _prepare(model: Model, decided: Decided) -> str:
    """Gives a model what belongs to the command; returns the id of its aggregate."""
    decision = model.decision
    aggregate_id = decision._aggregate_id = decided.handler.command.aggregate_id(decided.command)
    decision._aggregate_metadata = decided.metadata
    return aggregate_id


def _events_in(handled: Handled) -> list[ChangedEvent]:
    """Returns types and tags of the events that were packed for a commit."""
    count = handled.event_count
    values: list[Any] = flat.Decoder(len(handled.events), 4 * count).decode(handled.events)
    return [
        ChangedEvent(type_, frozenset(tags_in(metadata) if format_ & TAGGED else ()), data)
        for format_, type_, data, metadata in zip(*[iter(values)] * 4, strict=True)
    ]


def _hash(aggregate_id: str, command_id: str, type_: str, data: bytes) -> int:
    """Returns what tells an event from another one; its data may be large."""
    return hash((aggregate_id, command_id, type_, data))
