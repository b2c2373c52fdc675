"""Connects a domain to the command mailboxes: handles commands, restores aggregates.

The mailboxes know aggregates only by id, which does not determine the class before a command is handled. So they keep a
`ResidentAggregate` in memory: the aggregate, or the events to build it from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple, TypeAlias, cast
from weakref import WeakValueDictionary

from eventstore.domain.aggregate import Aggregate, new
from eventstore.domain.candidates import CandidateClasses
from eventstore.domain.decisions import Decisions, DecisionScope, GuardedRow
from eventstore.domain.domain import Domain
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.handler import Handled, HandledJointly, Handler, JointHandler, sendable
from eventstore.domain.kept_state import KeptState
from eventstore.domain.restore import ReadEvents, replay
from eventstore.domain.snapshots.snapshots import FoundSnapshot, Snapshots
from eventstore.domain.snapshots.state_codec import Unwritable
from eventstore.errors import Corrupt, CrossShard, EventStoreError, InvalidArgument
from eventstore.event_identity import event_identity
from eventstore.model import ANY, Event, Expected
from eventstore.records.raw_commit import JointWrites
from eventstore_mailbox import Unrestorable

CommitRow: TypeAlias = "tuple[str, int, str, None, tuple[bytes, int, bytes]]"
"""As a commit in the protocol: aggregate id, expected version, command id, no timestamp, events. The events come with their
count, which tells the store that they were packed here and need no further check, and with the command's fingerprint."""

JointRow: TypeAlias = "tuple[JointWrites, Expected, str, None, bytes]"
"""As `CommitRow`, of a command about several aggregates; the first that is written is that of the command."""

ChangeRow: TypeAlias = "CommitRow | JointRow | GuardedRow"
CheckAcross: TypeAlias = "Callable[[Sequence[str]], EventStoreError | None]"

_NO_EVENTS: Final[list[Event]] = []
_log: Final = logging.getLogger(__name__)


class Decided(NamedTuple):
    """A decoded command and its handler. `fingerprint`: see `encoding.fingerprint`. `metadata`: JSON that its events carry."""

    handler: Handler
    command: object
    command_id: str
    fingerprint: bytes
    metadata: bytes | None


new_decided: Final[Callable[[tuple[object, ...]], Decided]] = partial(tuple.__new__, Decided)
"""Returns `Decided` with these fields, in half the time of its own constructor."""


def decide(
    domain: Domain, type: str, payload: bytes, aggregate_id: str, command_id: str, metadata: bytes | None = None
) -> Decided:
    """Decodes a command that was sent. `metadata` was checked. Raises as `Domain.decode`."""
    handler, command, fingerprint = domain.decode_with_fingerprint(type, payload, aggregate_id)
    return Decided(handler, command, command_id, fingerprint, metadata)


def same_command(one: Decided, other: Decided) -> bool:
    """Returns whether two commands under the same id are the same."""
    return one.fingerprint == other.fingerprint


class ResidentAggregate:
    """An aggregate in memory.

    Attributes:
        events: those to build it from, while its class is not known.
        must_restore: a failed command may have modified it.
        kept: from which it is made again in that case; None: from the store.
        snapshot_version: of the snapshot that it has, 0 if it has none; None: it is to have none.
    """

    __slots__ = ("__weakref__", "aggregate", "events", "kept", "must_restore", "snapshot_version")

    def __init__(self, aggregate: Aggregate | None, events: list[Event]) -> None:
        self.aggregate = aggregate
        self.events = events
        self.must_restore = False
        self.kept: KeptState | None = None
        self.snapshot_version: int | None = 0


class DomainRuntime:
    """Implements the `Ports` of the mailboxes that need the domain. `read_events` reads the store. `across`: returns the error
    if aggregates of one command are in several shards. `is_joint`: the domain has commands about several aggregates.
    `decisions`: of commands that are decided on a query; None if the domain has none.
    """

    def __init__(
        self,
        domain: Domain,
        read_events: ReadEvents,
        snapshots: Snapshots | None = None,
        across: CheckAcross | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        self.snapshots = snapshots
        self.decisions = decisions if any(handler.is_decision for handler in domain.handlers.values()) else None
        self._read_events = read_events
        self._across = across
        self._candidates = CandidateClasses(domain)
        self._touched: set[type[Aggregate]] = set()  # classes of which a failed command may have modified an aggregate
        self._unkept: set[type[Aggregate]] = set()  # those of them whose state cannot be kept in memory
        self._proven: set[type[Aggregate]] = set()  # those of which a state was read back as it was
        self._of_snapshots = WeakValueDictionary[str, ResidentAggregate]()
        self.is_joint = any(handler.is_joint for handler in domain.handlers.values())

    def others(self, decided: Decided) -> Sequence[str]:
        """Returns the other aggregates of a command about several; none if they are in several shards: then it is refused."""
        handler = decided.handler
        if not handler.is_joint:
            return ()
        names = cast(JointHandler, handler).aggregate_ids(decided.command)
        return () if self._across is not None and self._across(names) is not None else names[1:]

    def handle(
        self, decided: Decided, resident: ResidentAggregate
    ) -> CommitRow | Coroutine[object, object, CommitRow | None] | None:
        """Runs a command and returns its change. Raises the error for its sender."""
        handler, command, command_id, fingerprint, metadata = decided
        aggregate = resident.aggregate
        if handler.is_joint:
            raise self._refusal(decided)
        if type(aggregate) is not handler.aggregate:
            aggregate = _as_class_of(resident, decided, handler.aggregate, handler.command.aggregate_id(command))
        if self._touched and resident.kept is None and handler.aggregate in self._touched:
            self._keep_state(resident, aggregate)
        version = aggregate._aggregate_version
        aggregate._aggregate_metadata = metadata
        if handler.is_async:
            return self._handle_async(decided, resident, aggregate, version)
        try:
            handled = handler.run(command, aggregate)
        except BaseException:  # not an Exception, so `run` does not catch it: SystemExit, for instance
            resident.must_restore = True
            raise
        if handled.error is None and handled.events and resident.kept is None:  # as `_change`, for the most common case
            return aggregate._aggregate_id, version, command_id, None, (handled[0], handled[1], fingerprint)
        return self._change(handled, resident, aggregate, version, decided)

    def handle_any(
        self, decided: Decided, resident: ResidentAggregate | DecisionScope
    ) -> CommitRow | GuardedRow | Coroutine[object, object, CommitRow | GuardedRow | None] | None:
        """Does what `handle` does, also for a command that is decided on a query."""
        if not isinstance(resident, DecisionScope):
            return self.handle(decided, resident)
        assert self.decisions is not None
        return self.decisions.handle(decided, resident)

    def handle_jointly(
        self, decided: Decided, residents: Sequence[ResidentAggregate]
    ) -> JointRow | Coroutine[object, object, JointRow | None] | None:
        """Runs a command about several aggregates and returns their change. Raises the error for its sender."""
        handler = cast(JointHandler, decided.handler)
        aggregates, names = list[Aggregate](), handler.aggregate_ids(decided.command)
        for resident, kind, name in zip(residents, handler.aggregates, names, strict=True):
            aggregate = resident.aggregate
            if aggregate is None or type(aggregate) is not kind:
                aggregate = _as_class_of(resident, decided, kind, name)
            aggregates.append(aggregate)
        versions = [aggregate._aggregate_version for aggregate in aggregates]
        for aggregate in aggregates:
            aggregate._aggregate_metadata = decided.metadata
        if handler.is_async:
            return self._handle_jointly_async(decided, residents, aggregates, versions)
        try:
            handled = handler.run_jointly(decided.command, aggregates)
        except BaseException:  # as in `handle`
            _must_restore(residents, True)
            raise
        return _joint_change(handled, residents, aggregates, versions, decided)

    async def _handle_jointly_async(
        self,
        decided: Decided,
        residents: Sequence[ResidentAggregate],
        aggregates: Sequence[Aggregate],
        versions: Sequence[int],
    ) -> JointRow | None:
        _must_restore(residents, True)  # in case it is cancelled
        handled = await cast(JointHandler, decided.handler).run_jointly_async(decided.command, aggregates)
        _must_restore(residents, False)
        return _joint_change(handled, residents, aggregates, versions, decided)

    def _refusal(self, decided: Decided) -> EventStoreError:
        """Returns why a command about several aggregates is handled on its first one alone."""
        names = cast(JointHandler, decided.handler).aggregate_ids(decided.command)
        error = None if self._across is None else self._across(names)
        return error or CrossShard(names[0], names[1])

    async def _handle_async(
        self, decided: Decided, resident: ResidentAggregate, aggregate: Aggregate, version: int
    ) -> CommitRow | None:
        resident.must_restore = True  # in case it is cancelled
        handled = await decided.handler.run_async(decided.command, aggregate)
        resident.must_restore = False
        return self._change(handled, resident, aggregate, version, decided)

    def _change(
        self, handled: Handled, resident: ResidentAggregate, aggregate: Aggregate, version: int, decided: Decided
    ) -> CommitRow | None:
        if handled.error is not None:
            resident.must_restore = handled.touched and not self._made_again(resident, aggregate)
            raise sendable(handled.error, decided.handler)
        if not handled.events:
            return None
        if resident.kept is not None:
            try:
                resident.kept.add(handled.events, handled.event_count, aggregate)
            except Unwritable as error:
                self._cannot_keep(resident, type(aggregate), error)
        return (
            aggregate._aggregate_id,
            version,
            decided.command_id,
            None,
            (handled.events, handled.event_count, decided.fingerprint),
        )

    def _made_again(self, resident: ResidentAggregate, aggregate: Aggregate) -> bool:
        """Replaces an aggregate that a failed command may have modified. Returns False if only the store knows how it was."""
        kind, kept = type(aggregate), resident.kept
        if kept is None:
            if kind not in self._unkept:
                self._touched.add(kind)
            return False
        try:
            resident.aggregate = kept.made_again(kind, aggregate._aggregate_id)
        except EventStoreError as error:  # the events do not apply again: the store's own decide
            _log.warning("%s cannot be made again in memory: %s", class_path(kind), error)
            return False
        return True

    def _keep_state(self, resident: ResidentAggregate, aggregate: Aggregate) -> None:
        kind = type(aggregate)
        try:
            resident.kept = KeptState(aggregate)
            if kind not in self._proven:
                resident.kept.check(aggregate)
                self._proven.add(kind)
        except Unwritable as error:
            self._cannot_keep(resident, kind, error)

    def _cannot_keep(self, resident: ResidentAggregate, kind: type[Aggregate], error: Unwritable) -> None:
        resident.kept = None
        self._touched.discard(kind)
        if kind not in self._unkept:
            self._unkept.add(kind)
            _log.warning("each rejection restores an aggregate of class %s from the store: %s", class_path(kind), error)

    async def restore_any(self, name: str) -> ResidentAggregate | DecisionScope:
        """Does what `restore` does, also for a lane of decisions."""
        assert self.decisions is not None
        return self.decisions.restore(name) or await self.restore(name)

    async def refresh_any(self, name: str, resident: ResidentAggregate | DecisionScope) -> ResidentAggregate | DecisionScope:
        """Does what `refresh` does. Decisions need it not: what they refuse was read just before."""
        return resident if isinstance(resident, DecisionScope) else await self.refresh(name, resident)

    async def restore(self, aggregate_id: str) -> ResidentAggregate:
        """Returns the aggregate as it is in the store; events are read no further than a class of the domain knows them.

        Raises:
            Unrestorable: its events cannot be read or applied.
            EventStoreError: the store cannot be reached.
        """
        snapshots = self.snapshots
        if snapshots is not None and snapshots.may_have(aggregate_id):
            found = await snapshots.find(aggregate_id)
            restored = None if found is None else await self._from_snapshot(snapshots, aggregate_id, found)
            if restored is not None:
                return restored
        resident, classes, last = ResidentAggregate(None, []), self._candidates.all, _NO_EVENTS

        def take(page: list[Event]) -> bool:
            nonlocal classes, last
            last = page
            if resident.aggregate is None and not resident.events:
                kind = self._candidates.only(page[0].type)
                resident.aggregate = None if kind is None else new(kind, aggregate_id)
            if resident.aggregate is not None:
                replay(resident.aggregate, page)
                return True
            classes, kept = self._candidates.narrow(classes, page)
            resident.events += kept
            return bool(classes)

        await self._read(aggregate_id, 1, take)
        if snapshots is not None and resident.aggregate is not None:
            await self._keep(snapshots, resident, last)
        return resident

    async def _from_snapshot(self, snapshots: Snapshots, aggregate_id: str, found: FoundSnapshot) -> ResidentAggregate | None:
        """Returns the aggregate after the events that follow its snapshot; None if the snapshot does not fit the store."""
        aggregate = found.aggregate
        version, last = aggregate._aggregate_version, _NO_EVENTS

        def take(page: list[Event]) -> bool:
            nonlocal last
            if not last:
                if page[0].version != version or event_identity(page[0]) != found.event:
                    return False
                replay(aggregate, page[1:])
            else:
                replay(aggregate, page)
            last = page
            return True

        try:
            await self._read(aggregate_id, version, take)
        except Unrestorable:  # whether it can be is decided by all its events
            last = _NO_EVENTS
        if not last:
            await snapshots.refuse(aggregate_id)
            return None
        if type(aggregate) in snapshots.differing:  # since it was read
            return None
        resident = self._of_snapshots[aggregate_id] = ResidentAggregate(aggregate, _NO_EVENTS)
        resident.snapshot_version = version
        snapshots.was_used(aggregate, self._read_events)
        await self._keep(snapshots, resident, last)
        return resident

    async def _keep(self, snapshots: Snapshots, resident: ResidentAggregate, last: list[Event]) -> None:
        """Has a snapshot written of an aggregate that has just been restored, if that took long."""
        aggregate = resident.aggregate
        assert aggregate is not None
        if last and snapshots.is_due(aggregate, resident.snapshot_version or 0):
            kept = await snapshots.keep(aggregate, last[-1], self._read_events)
            resident.snapshot_version = aggregate._aggregate_version if kept else None

    def evicted(self, aggregate_id: str, resident: ResidentAggregate | DecisionScope) -> None:
        """Has a snapshot written of an aggregate that is dropped from memory, if restoring it would take long."""
        if isinstance(resident, DecisionScope):
            return
        aggregate, version, snapshots = resident.aggregate, resident.snapshot_version, self.snapshots
        if snapshots is None or aggregate is None or version is None or resident.must_restore:
            return
        if snapshots.is_due(aggregate, version):
            snapshots.evicted(aggregate, self._read_events)

    def of_snapshots(self, kind: type[Aggregate]) -> list[str]:
        """Returns the ids of the aggregates of a class that are in memory and were restored from snapshots."""
        return [each for each, resident in list(self._of_snapshots.items()) if type(resident.aggregate) is kind]

    async def refresh(self, aggregate_id: str, resident: ResidentAggregate) -> ResidentAggregate:
        """Applies the stored events after its version. Raises as `restore`; the aggregate must not be used then."""
        aggregate = resident.aggregate
        if aggregate is None or not aggregate._aggregate_version:
            return await self.restore(aggregate_id)

        def take(page: list[Event]) -> bool:
            resident.kept = None  # it lacks these events
            replay(aggregate, page)
            return True

        await self._read(aggregate_id, aggregate._aggregate_version + 1, take)
        return resident

    async def _read(self, aggregate_id: str, from_version: int, take: Callable[[list[Event]], bool]) -> None:
        """Passes the pages to `take`, until it returns False."""
        try:
            async with aclosing(self._read_events(aggregate_id, from_version)) as pages:
                async for page in pages:
                    if not take(page):
                        return
        except Corrupt as error:
            raise Unrestorable(error) from error
        except EventStoreError as error:
            if error.retriable:
                raise
            raise Unrestorable(error) from error

    def unmodified(self, resident: ResidentAggregate | DecisionScope) -> bool:
        """Returns whether the aggregate is as it was before the last command failed."""
        return not resident.must_restore


def _as_class_of(resident: ResidentAggregate, decided: Decided, kind: type[Aggregate], aggregate_id: str) -> Aggregate:
    """Returns the aggregate as an instance of the class that the handler takes."""
    if resident.aggregate is not None and resident.aggregate.version:
        raise InvalidArgument(
            f"aggregate {resident.aggregate.id!r} is a {class_path(type(resident.aggregate))}, but {decided.handler.name} "
            f"handles commands of a {class_path(kind)}; use another id",
            field="aggregate_id",
            value=resident.aggregate.id,
        )
    aggregate = new(kind, aggregate_id)
    if resident.events:  # another command may be for another class, as long as there is no snapshot of this one
        resident.snapshot_version = None
    replay(aggregate, resident.events)
    resident.aggregate, resident.events = aggregate, _NO_EVENTS
    return aggregate


def _must_restore(residents: Sequence[ResidentAggregate], must_restore: bool) -> None:
    for resident in residents:
        resident.must_restore = must_restore


def _joint_change(
    handled: HandledJointly,
    residents: Sequence[ResidentAggregate],
    aggregates: Sequence[Aggregate],
    versions: Sequence[int],
    decided: Decided,
) -> JointRow | None:
    """Returns what is written to those that got events; the others must be as they were decided on."""
    if handled.error is not None:
        for resident, part in zip(residents, handled.parts, strict=True):
            resident.must_restore = part.touched
        raise sendable(handled.error, decided.handler)
    for resident, part in zip(residents, handled.parts, strict=True):
        if part.events:
            resident.kept = None  # it lacks these events
    found = list(zip(aggregates, versions, handled.parts, strict=True))
    writes = tuple(
        (aggregate._aggregate_id, version, (part.events, part.event_count, decided.fingerprint))
        for aggregate, version, part in found
        if part.events
    )
    if not writes:
        return None
    only_if = tuple((aggregate._aggregate_id, version) for aggregate, version, part in found if not part.events)
    return JointWrites(writes, only_if), ANY, decided.command_id, None, b""
