"""Mailbox wiring: connects the command mailboxes of a server to the domain and to the store.

appends of a turn ──► Mailboxes.append ─┐
                                        ├─► Committer.submit … kick ──► outcomes ──► answers
commands of a turn ─► Mailboxes.submit ─┘
                      restore ◄── EmbeddedStore
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import trio

import eventstore_mailbox as mailbox
from eventstore.chunks.files import NotCached
from eventstore.domain.decisions import Decisions, QueryPlace, ReadByQuery
from eventstore.domain.restore import ReadEvents
from eventstore.domain.runtime import ChangeRow, Decided, DomainRuntime, same_command
from eventstore.errors import ConditionFailed, Diverged, Elsewhere, EventStoreError, Overloaded, ShuttingDown
from eventstore.event_identity import LogPosition
from eventstore.model import VERSION_MAX, Committed, Event
from eventstore.query import Query
from eventstore.records.commit import CommitView
from eventstore.records.cursors import LogCursor
from eventstore.records.event_filter import LOG_RECORDS, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.records.raw_commit import AfterCommand, Guarded, JointWrites, Unless
from eventstore.records.slots import slot_of
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, REFUSED, AppendOutcome, NewCommit
from eventstore.store.embedded import EmbeddedStore
from eventstore_mailbox import Batch, Entry, Mailboxes, Options, Ports

_log = logging.getLogger(__name__)

ServerBatch = Batch[ChangeRow, AppendOutcome]
ServerEntry = Entry[Decided, AppendOutcome]
ServerMailboxes = Mailboxes[Decided, Any, ChangeRow, AppendOutcome]
"""A command is handled on a `ResidentAggregate`, or on a `DecisionScope`."""

_ENVELOPE_BYTES: Final = 40
_LOG_INTERVAL_S: Final = 10.0
_REPLAYED_AT_ONCE: Final = 256  # events, in half a millisecond: a page of thousands would delay all other tasks


StoredOutcome: TypeAlias = tuple[Committed, bytes]
"""The first outcome of a command, as a duplicate has it, and the fingerprint of its commit."""

Found = Callable[["Sequence[StoredOutcome | EventStoreError | None]"], None]
"""Called with the commands that were looked up, None for one that is not stored; at once or later."""

LookUpCommands: TypeAlias = Callable[[str, Sequence[str], Found], None]
"""Looks up commands of an aggregate by their ids."""


class CommandMailboxes(Protocol):
    """Mailboxes as senders see them: those of a store, or of several shards. For the methods see `Mailboxes`."""

    def submit(self, entries: Sequence[ServerEntry]) -> list[ServerEntry]: ...

    def kick(self) -> None: ...

    async def execute(self, entry: ServerEntry) -> ServerEntry: ...


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The store under a set of mailboxes: in this process, or remote. `shared`: others write to it as well. `durability`: of
    what was committed so far, see `Committed`.
    """

    persist: Callable[[ServerBatch], None]
    flush: Callable[[], None]
    read_events: ReadEvents
    read_by_query: ReadByQuery
    find_commands: LookUpCommands
    durability: Callable[[], int | None]
    shared: bool
    unloaded: Callable[[set[str]], Collection[str]] | None = None
    load: Callable[[str], Awaitable[None]] | None = None
    is_quick: Callable[[Unless], bool] = lambda _: True

    def decisions(self, options: Options) -> Decisions:
        """Returns the models of one set of mailboxes."""
        return Decisions(self.read_by_query, self.is_quick, options.restores_max)


class Batcher(Protocol):
    """Collects requests of one kind for the mailboxes."""

    def hand_over(self) -> None: ...


class ArrivalOrder:
    """Keeps appends and commands in the order they arrived: only one batcher is `collecting` at a time.

    A batcher calls `switch_to` before it collects; what another one has collected is handed over first.
    """

    __slots__ = ("collecting",)

    def __init__(self) -> None:
        self.collecting: Batcher | None = None

    def switch_to(self, batcher: Batcher) -> None:
        if self.collecting is not None:
            self.end_turn()
        self.collecting = batcher

    def end_turn(self) -> None:
        """Hands over what was collected."""
        collecting, self.collecting = self.collecting, None
        if collecting is not None:
            collecting.hand_over()


def embedded_access(store: EmbeddedStore, nursery: trio.Nursery) -> StoreAccess:
    """Access to a store in this process: changes and plain appends become batches for its committer, in order of arrival.
    The tasks of the nursery wait for what is not in memory.
    """
    committer = store.committer

    def persist(batch: ServerBatch) -> None:
        committer.submit(linked(batch), batch.deliver, batch.source)

    async def load(aggregate_id: str) -> None:
        await store.load({aggregate_id})

    async def read_events(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        await load(aggregate_id)
        low: int | None = from_version if store.engine.version(aggregate_id) >= from_version else None
        while low is not None:
            page = await store.read_page(aggregate_id, low, VERSION_MAX, False)
            events = decode_page(page.records)
            if events and events[0].version < low:
                events = [event for event in events if event.version >= low]
            for start in range(0, len(events), _REPLAYED_AT_ONCE):
                if start:
                    await trio.lowlevel.checkpoint()
                yield events[start : start + _REPLAYED_AT_ONCE]
            low = page.next

    async def read_by_query(
        query: Query, scope: str, place: QueryPlace
    ) -> AsyncGenerator[tuple[list[Event], QueryPlace], None]:
        wanted = EventFilter(query=query, slot=slot_of(scope))
        cursor = LogCursor(place or LogPosition(0), None, wanted)
        while not cursor.done:
            page = await store.scan_page(cursor.place, wanted)
            events = [event for event in cursor.take(page) if not event[0].startswith(LOG_RECORDS)]
            for start in range(0, len(events), _REPLAYED_AT_ONCE):
                if start:
                    await trio.lowlevel.checkpoint()
                some = events[start : start + _REPLAYED_AT_ONCE]
                yield some, LogPosition(some[-1].sequence)
            yield [], LogPosition(cursor.after)

    def find_commands(aggregate_id: str, command_ids: Sequence[str], found: Found) -> None:
        look_up = store.engine.look_up_command
        try:
            stored = [stored_command(look_up(aggregate_id, each, cached_only=True)) for each in command_ids]
        except NotCached:
            nursery.start_soon(find_later, aggregate_id, command_ids, found)
        except EventStoreError as error:
            found([error] * len(command_ids))
        else:
            found(stored)

    async def find_later(aggregate_id: str, command_ids: Sequence[str], found: Found) -> None:
        try:
            stored = [stored_command(await store.look_up_command(aggregate_id, each)) for each in command_ids]
        except EventStoreError as error:
            found([error] * len(command_ids))
        else:
            found(stored)

    return StoreAccess(
        persist,
        committer.kick,
        read_events,
        read_by_query,
        find_commands,
        committer.durability,
        shared=False,
        unloaded=store.engine.unloaded,
        load=load,
        is_quick=store.engine.is_quick,
    )


def stored_command(view: CommitView | None) -> StoredOutcome | None:
    if view is None:
        return None
    return Committed(view.aggregate_id, view.last_version, view.last_sequence, duplicate=True), view.fingerprint


def linked(batch: ServerBatch) -> Sequence[NewCommit]:
    """Returns the changes as commits.

    A commit that builds on another one of the batch names that one's command next to the version. Otherwise the version could
    match by accident although the other was not committed. A decision builds on no commit, and none builds on it: it may write
    to an aggregate between two commits of that one's lane.
    """
    commits: list[Any] = batch.changes
    if not batch.dependents:
        return commits
    dependents, named = set(batch.dependents), list[NewCommit](commits)
    followed = {commits[place][0] for place in dependents}
    latest: dict[str, str] = {}
    for place, commit in enumerate(commits):
        aggregate_id = commit[0]
        if aggregate_id in followed and commit[1].__class__ is not Guarded:  # few are; the others stay as they are
            if place in dependents:
                named[place] = (aggregate_id, AfterCommand(commit[1], latest[aggregate_id]), *commit[2:])
            latest[aggregate_id] = commit[2]
    return named


def make_mailboxes(
    runtime: DomainRuntime, store: StoreAccess, options: Options, answer: Callable[[Sequence[ServerEntry]], None]
) -> ServerMailboxes:
    """Returns the mailboxes of a domain on a store. `answer` gets settled commands."""
    decisions = runtime.decisions
    refresh = runtime.refresh if decisions is None else runtime.refresh_any

    def answer_decisions(entries: Sequence[ServerEntry]) -> None:
        """The aggregates that decisions have written may be in memory, without that."""
        mailboxes.forget(
            [each.aggregate_id for each in entries if each.command.handler.is_decision and each.status == COMMITTED]
        )
        answer(entries)

    mailboxes: ServerMailboxes = Mailboxes(
        Ports(
            handle=runtime.handle if decisions is None else runtime.handle_any,
            restore=runtime.restore if decisions is None else runtime.restore_any,
            refresh=refresh if store.shared else None,
            unloaded=store.unloaded,
            load=store.load,
            persist=store.persist if decisions is None else partial(_persist_guarded, store.persist),
            answer=answer if decisions is None else answer_decisions,
            lane=None if decisions is None else decisions.lane,
            clock=time.perf_counter,
            refusal=refused_append,
            others=runtime.others if runtime.is_joint else None,
            handle_jointly=runtime.handle_jointly,
            flush=store.flush,
            unmodified=runtime.unmodified,
            evicted=None if runtime.snapshots is None else runtime.evicted,
            same=same_command,
            look_up=partial(_look_up, store.find_commands),
            size=_size_bytes,
            slot=slot_of,
            creates=_creates,
            on_slow=_warn_of_slow,
            on_created=_CreationLog().created,
            passes=lambda error: isinstance(error, Elsewhere),
            on_error=_log_failure,
        ),
        options,
    )
    if runtime.snapshots is not None:
        runtime.snapshots.on_switched_off.append(lambda kind: mailboxes.forget(runtime.of_snapshots(kind)))
    return mailboxes


def _persist_guarded(persist: Callable[[ServerBatch], None], batch: ServerBatch) -> None:
    """Stores a batch with decisions in it. One that other events have come before is a conflict: it is decided again."""

    def ended(_: ServerBatch, result: Sequence[AppendOutcome] | BaseException) -> None:
        if isinstance(result, BaseException):
            batch.fail(result)
        else:
            batch.deliver([(CONFLICT, each[1], 0) if _is_outdated(each) else each for each in result])

    persist(Batch(batch.changes, batch.dependents, ended, batch.source))


def _is_outdated(outcome: AppendOutcome) -> bool:
    return outcome[0] == REFUSED and isinstance(outcome[1], ConditionFailed | Diverged)


async def _look_up(find_commands: LookUpCommands, entries: Sequence[ServerEntry]) -> list[AppendOutcome | None]:
    """Returns the first outcome of each command that the store has, all of one aggregate; an id that another command has is
    left to its append.
    """
    answer: list[AppendOutcome | None] = []
    answered = trio.Event()

    def told(stored: Sequence[StoredOutcome | EventStoreError | None]) -> None:
        for entry, found in zip(entries, stored, strict=True):
            outcome: AppendOutcome | None = None
            if found is not None and not isinstance(found, EventStoreError):
                committed, fingerprint = found
                if entry.command.handler.command.fingerprints.matches(fingerprint, entry.command.command):
                    outcome = DUPLICATE, committed.version, committed.sequence
            answer.append(outcome)
        answered.set()

    find_commands(entries[0].aggregate_id, [entry.command_id for entry in entries], told)
    await answered.wait()
    return answer


def refused_append(error: Exception) -> AppendOutcome:
    """Returns the outcome of an append that the mailboxes refused, or abandoned when they stopped."""
    refusal = Overloaded if isinstance(error, mailbox.MailboxFull) else ShuttingDown
    return REFUSED, refusal(str(error)), 0


def first_outcome_of(outcome: AppendOutcome) -> AppendOutcome:
    """Returns what became of the first aggregate, if an outcome is that of a commit of several."""
    status, first, _ = outcome
    if first.__class__ is not tuple:
        return outcome
    return (status, first[2], 0) if status == CONFLICT else (status, *first[0])


def _size_bytes(change: ChangeRow) -> int:
    every: Any = change  # mypy follows `isinstance` only, which is a call for each command
    aggregate_id, _, command_id, _, events = every
    if aggregate_id.__class__ is JointWrites:
        rows: list[Any] = [(name, 0, command_id, None, given) for name, _, given in aggregate_id.writes]
        return sum(map(_size_bytes, rows))
    size = len(events[0] if type(events) is tuple else events)  # bytes for a plain append
    return size + 4 * (len(aggregate_id) + len(command_id)) + _ENVELOPE_BYTES


def _creates(change: ChangeRow) -> bool:
    return change[1] == 0


class _CreationLog:
    """Logs commands that would have created an aggregate that another writer has created; one in a while, with their number."""

    def __init__(self) -> None:
        self._total = 0
        self._next_s = 0.0

    def created(self, entry: ServerEntry, outcome: AppendOutcome) -> None:
        self._total += 1
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + _LOG_INTERVAL_S
            _log.warning(
                "command %s would have created aggregate %s, which another writer has brought to version %s meanwhile; "
                "handler %s decides on that one (%d such commands so far)",
                ascii(entry.command_id),
                ascii(entry.aggregate_id),
                outcome[1],
                entry.command.handler.name,
                self._total,
            )


def _warn_of_slow(entry: ServerEntry, seconds: float) -> None:
    _log.warning(
        "handler %s blocked all others for %.0f ms on %s; make it async or do the work elsewhere, unless the machine was busy",
        entry.command.handler.name,
        seconds * 1000,
        ascii(entry.aggregate_id),
    )


def _log_failure(what: str, error: BaseException) -> None:
    trace = None if isinstance(error, EventStoreError) else error
    _log.warning("%s failed and is retried: %s", what, error, exc_info=trace)
