"""The embedded store: the public methods in the caller's own process, on trio, without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeVar, cast

import trio

from eventstore.aggregate_info import AGGREGATES_PER_PAGE_MAX, AggregateInfo, id_range
from eventstore.chunks.files import NotCached
from eventstore.errors import Closed, Corrupt, EventStoreError, InvalidArgument, ReadFailed, copy_error
from eventstore.event_identity import LogPosition, check_start
from eventstore.fields import check_text
from eventstore.forks import of_parent, tell_of_forks
from eventstore.metrics import MetricSource, StatValues, read_stats
from eventstore.model import (
    ANY,
    VERSION_MAX,
    At,
    CaughtUp,
    Commit,
    Committed,
    Event,
    ExpectedVersion,
    NewEvent,
    Replicas,
    Unchanged,
    Write,
    sequence_of,
)
from eventstore.position import END, After, Position, begin_of_read, position_at, start_of, stored_start
from eventstore.query import Query, check_query
from eventstore.records.commit import NO_FINGERPRINT, CommitView
from eventstore.records.cursors import AggregateCursor, LogCursor, ManyCursor
from eventstore.records.event_filter import EventFilter, event_filter
from eventstore.records.event_page import decode_page, settle
from eventstore.records.raw_commit import (
    CommitResult,
    RawCommit,
    RawJointCommit,
    Unless,
    condition_of,
    encode_commit,
    encode_commits,
    encode_joint_commit,
)
from eventstore.store.append import AppendOutcome, NewCommit, aggregates_of, alone, refused
from eventstore.store.committer import EventCommitter, Submission, to_each_result, to_result
from eventstore.store.engine import StoreEngine
from eventstore.store.maintenance import Maintenance
from eventstore.store.opening import OpenStore, StoreOpenReport
from eventstore.store.projection_waits import ProjectionWaits
from eventstore.store.read.checked_reads import IN_PLACE_BYTES_MAX
from eventstore.store.read.reader_place import check_place, placed
from eventstore.store.read.reader_threads import ReaderThreads
from eventstore.store.read.replay import ReplayPage
from eventstore.store.read.scan import ScanPage
from eventstore.store.store_stats import STORE_METRICS
from eventstore.store.streams import (
    EmbeddedEventStream,
    EmbeddedLogStream,
    EmbeddedRecordBatches,
    EmbeddedSubscriptionStream,
    Item,
)

T = TypeVar("T")
# Commits of one call that form one batch before other tasks may run: about a millisecond.
_COMMITS_PER_TURN: Final = 256
_ARROW_PAGE_BYTES: Final = 2 * 1024 * 1024  # numpy has a price for each page
_LOADS_MAX: Final = 3  # a sort makes outdated what a thread has looked up meanwhile; then an append looks it up itself


class EmbeddedStore:
    """An open store. Create it with `open_store`; any task of the same trio run may use it. A forked child is refused."""

    def __init__(self, opened: OpenStore, committer: EventCommitter, maintenance: Maintenance) -> None:
        self.opened = opened
        self.engine: StoreEngine = opened.engine
        self.committer = committer
        self.maintenance = maintenance
        self.waits = ProjectionWaits()
        self._closed = False
        self._refusal = Closed("the store is closed")
        self._threads = ReaderThreads()
        self.background: trio.Nursery | None = None
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child: refuses every call. Folder, files and threads are the parent's, and nothing here touches them."""
        if self._closed:
            return
        self._closed = True
        self._refusal = of_parent("the store", "open that of another folder here, or serve it, and connect")
        if self.committer.is_on_this_loop:  # which goes on here, too
            if self.background is not None:
                self.background.cancel_scope.cancel()
            self.committer.abandon(self._refusal)

    @property
    def report(self) -> StoreOpenReport:
        return self.opened.report

    @property
    def shards(self) -> dict[int, EmbeddedStore]:
        """Returns no shards: an embedded store has none. `NetworkStore.shards` has the same form."""
        return {}

    async def append(
        self,
        aggregate_id: str,
        events: Sequence[NewEvent],
        expected_version: ExpectedVersion,
        command_id: str | None = None,
        timestamp: int | datetime | None = None,
        *,
        replicas: Replicas | None = None,
    ) -> Committed:
        """Appends the events of one command; durable on return. `replicas`: see `NetworkStore.append`; an embedded store is one
        replica.

        If the call is cancelled while it waits for the disk, the commit may or may not be stored; append again with the same
        command id to find out.

        Raises:
            VersionConflict: the aggregate is at another version than `expected_version`.
            CommandIdReused: the command id was used for other content.
            InvalidArgument: a limit is broken.
            StorageFull, Poisoned: it cannot be written to disk.
        """
        return await self._append(encode_commit(aggregate_id, events, expected_version, command_id, timestamp, replicas))

    async def _append(self, raw: NewCommit) -> Committed:
        assert isinstance(raw[0], str)
        outcome = to_result(raw, await self._outcome(raw, {raw[0]}), self.committer.durability())
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def _outcome(self, raw: NewCommit, aggregate_ids: set[str]) -> AppendOutcome:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        await self.load(aggregate_ids)
        await self._wait_for_room()
        submission = self._submit([raw])
        await submission.wait()
        return submission.outcomes[0]

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        only_if: Sequence[At] = (),
        unless: Query | None = None,
        after: After | None = None,
        scope: str | None = None,
        command_id: str | None = None,
        timestamp: int | datetime | None = None,
    ) -> list[Committed]:
        """Appends the events of one command to up to 1,000 aggregates, to all of them or to none; durable on return. Returns
        what became of each, in the order of `writes`.

        `only_if`: aggregates that are not written, and the versions that they must have for the others to be written. `unless`:
        nothing is written if an event after `after` passes this query, of those whose aggregates are in the slot of `scope`, an
        id or a text in braces; without it, in the slot of the aggregates that are written. `after`: a sequence, or the position
        of the `query` that was decided on.

        The same command again returns the first outcome. If the call is cancelled while it waits for the disk, the commit may
        or may not be stored; make it again with the same command id to find out.

        Raises:
            VersionConflict: one of the aggregates is at another version; it is named.
            ConditionFailed: an event passes the query.
            Diverged: the event at `after` is another one now, or there is none.
            CommandIdReused: one of the aggregates has this command id with other content, or with other aggregates beside it.
            InvalidArgument: a limit is broken, or an aggregate is given twice.
            UnsupportedVersion: the store has format 1; see the setting `upgrade_format`.
            StorageFull, Poisoned: it cannot be written to disk.
        """
        condition = condition_of(unless, after, scope, writes)
        raw = encode_joint_commit(writes, only_if, command_id, timestamp, condition)
        if condition is not None:
            condition = condition._replace(after=stored_start(after or 0, self.opened.uuid.bytes))
            raw = await self.look_ahead((raw[0]._replace(unless=condition), *raw[1:]), self._threads.scan)
        commit = alone(raw)
        outcome = to_each_result(commit, await self._outcome(commit, set(raw[0].aggregate_ids)), self.committer.durability())
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def append_reserved(self, aggregate_id: str, event: NewEvent, command_id: str | None = None) -> Committed:
        """Appends an event of the server's own to an id that begins with `$`. Raises the errors of `append`."""
        _, expected, command_id, when, events = encode_commit(aggregate_id, [event], ANY, command_id, None)
        return await self._append((aggregate_id, expected, command_id, when, (events, 1, NO_FINGERPRINT)))

    async def append_timers(self, rows: Sequence[tuple[str, str, NewEvent]]) -> list[CommitResult]:
        """Appends an event to each of these reserved ids, under its command id. Returns what became of each."""
        commits: list[NewCommit] = []
        for aggregate_id, command_id, event in rows:
            _, expected, _, when, events = encode_commit(aggregate_id, [event], ANY, command_id, None)
            commits.append((aggregate_id, expected, command_id, when, (events, 1, NO_FINGERPRINT)))
        await self.load({row[0] for row in rows})
        await self._wait_for_room()
        submission = self._submit(commits)
        await submission.wait()
        durability = self.committer.durability()
        return [to_result(each, outcome, durability) for each, outcome in zip(commits, submission.outcomes, strict=True)]

    async def check_parking(self) -> None:
        """Permits the reactions of this process to record what they have parked: it is the server itself."""

    async def append_many(self, commits: Iterable[Commit], *, replicas: Replicas | None = None) -> list[CommitResult]:
        """Appends each commit, whole or not at all, in this order. Returns Committed or an error for each.

        If the call is cancelled while it waits for the disk, any of the commits may be stored; append them again with the same
        command ids to find out.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        submissions: list[tuple[Sequence[RawCommit | InvalidArgument], Submission]] = []
        remaining = iter(commits)
        while group := list(islice(remaining, _COMMITS_PER_TURN)):
            if submissions:
                await trio.lowlevel.checkpoint()
            raw: Sequence[RawCommit | InvalidArgument] = encode_commits(group, replicas)
            await self.load({each[0] for each in raw if not isinstance(each, InvalidArgument)})
            await self._wait_for_room()
            submissions.append((raw, self._submit([each for each in raw if not isinstance(each, InvalidArgument)])))
        outcomes: list[CommitResult] = []
        for encoded, submission in submissions:
            await submission.wait()
            stored, durability = iter(submission.outcomes), self.committer.durability()
            outcomes += [
                each if isinstance(each, InvalidArgument) else to_result(each, next(stored), durability) for each in encoded
            ]
        return outcomes

    async def _append_copies(self, commits: Sequence[NewCommit]) -> list[list[Committed] | EventStoreError]:
        """Appends commits of another store, of one aggregate or several, with their fingerprints, in this order. Returns for
        each what became of its aggregates, or the error.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        submissions: list[tuple[Sequence[NewCommit], Submission]] = []
        remaining = iter(commits)
        while group := list(islice(remaining, _COMMITS_PER_TURN)):
            if submissions:
                await trio.lowlevel.checkpoint()
            await self.load(set(chain.from_iterable(map(aggregates_of, group))))
            await self._wait_for_room()
            submissions.append((group, self._submit(group)))
        outcomes: list[list[Committed] | EventStoreError] = []
        for commits_of_turn, submission in submissions:
            await submission.wait()
            durability = self.committer.durability()
            for commit, outcome in zip(commits_of_turn, submission.outcomes, strict=True):
                outcomes.append(to_each_result(commit, outcome, durability))
        return outcomes

    async def look_ahead(
        self, commit: RawJointCommit, on_thread: Callable[[Callable[[], Unless]], Awaitable[Unless]]
    ) -> RawJointCommit:
        """Has threads look for what a commit's condition forbids, as far as the log is visible; an append looks at what is
        left. A commit whose condition cannot be checked, as at a place of another history, is returned without it, to be
        refused: if its command was committed before, that is found all the same.
        """
        unless, engine = commit[0].unless, self.engine
        try:
            while unless is not None and not engine.is_quick(unless):
                end = engine.visible_sequence
                unless = await on_thread(partial(engine.look_ahead, unless))
                if unless.after.sequence >= end:
                    break
        except EventStoreError as error:
            commit, unless = cast("RawJointCommit", refused([commit], error)[0]), None
        return commit[0]._replace(unless=unless), *commit[1:]

    async def load(self, aggregate_ids: set[str]) -> None:
        """Has a thread look up the aggregates for which an append would open many files on the event loop."""
        for _ in range(_LOADS_MAX):
            slow = self.engine.unloaded(aggregate_ids)
            for aggregate_id in slow:
                with suppress(Corrupt, ReadFailed):  # the append reports it
                    await self._threads.replay(partial(self.engine.offer, aggregate_id))
            if not slow:
                return

    def _check_open(self) -> None:
        if self._closed:
            raise copy_error(self._refusal)

    async def _wait_for_room(self) -> None:
        await self.committer.wait_for_room()
        self._check_open()

    def _submit(self, commits: Sequence[NewCommit]) -> Submission:
        submission = Submission()
        self.committer.submit(commits, submission.deliver, trio.lowlevel.current_task())
        self.committer.kick()
        return submission

    def read(
        self,
        aggregate_id: str,
        from_version: int = 1,
        to_version: int | None = None,
        backwards: bool = False,
        limit: int | None = None,
    ) -> EmbeddedEventStream:
        """Iterates over the aggregate's events by version, both ends inclusive; yields nothing if it does not exist."""
        cursor = AggregateCursor(aggregate_id, from_version, to_version, backwards, limit)

        async def turn_page() -> list[Event]:
            high = VERSION_MAX if cursor.high is None else cursor.high
            return cursor.take(await self.read_page(aggregate_id, cursor.low, high, backwards))

        return EmbeddedEventStream(cursor, turn_page)

    async def read_page(self, aggregate_id: str, low: int, high: int, backwards: bool) -> ReplayPage:
        """Reads one page of raw records (see `StoreEngine.replay`): in place if they are cached, else on a worker thread."""
        self._check_open()
        try:
            page = self.engine.replay(aggregate_id, low, high, backwards, IN_PLACE_BYTES_MAX, cached_only=True)
        except NotCached:
            pass
        else:
            await trio.lowlevel.checkpoint()
            return page
        bytes_max = self.opened.settings.page_bytes
        replay = self.engine.replay
        return await self._threads.replay(lambda: replay(aggregate_id, low, high, backwards, bytes_max))

    async def replay_many(self, ids: Iterable[str], at: After | None = None) -> tuple[dict[str, list[Event]], Position]:
        """Returns the events of each of 1 to 1,000 aggregates, all as they were at one position of the log, and that position:
        a joint commit is in all of them or in none. An aggregate that did not exist then has no events.

        `at`: a sequence or a position; if a commit is not complete there, where it is complete. None: the end of the log. The
        position can be given here again, and as `after` of a commit.

        Raises:
            Diverged: the event at `at` is another one now, or there is none.
        """
        start = start_of(END if at is None else at, self.opened.uuid.bytes, field="at")
        cursor, bytes_max = ManyCursor(ids), self.opened.settings.page_bytes
        while not cursor.done:
            self._check_open()
            read = partial(self.engine.replay_many, cursor.rows, cursor.place or start, bytes_max)
            cursor.take(await self._threads.replay(read))
        return cursor.events, position_at(cursor.place, self.opened.uuid.bytes)

    async def version(self, aggregate_id: str) -> int:
        """Returns the version of the aggregate's last event; 0 if it does not exist."""
        check_text("aggregate_id", aggregate_id)
        self._check_open()
        version = self.engine.version(aggregate_id)
        await trio.lowlevel.checkpoint()
        return version

    async def find_command(self, aggregate_id: str, command_id: str) -> Committed | None:
        """Returns the result of a command that was appended, else None."""
        view = await self.look_up_command(aggregate_id, command_id)
        durability = self.committer.durability()
        return None if view is None else Committed(aggregate_id, view.last_version, view.last_sequence, True, durability)

    async def look_up_command(self, aggregate_id: str, command_id: str) -> CommitView | None:
        """Returns the commit of a command that was appended, else None: in place if it is in memory, else from a thread."""
        check_text("aggregate_id", aggregate_id)
        check_text("command_id", command_id)
        self._check_open()
        try:
            found = self.engine.look_up_command(aggregate_id, command_id, cached_only=True)
        except NotCached:
            return await self._threads.replay(partial(self.engine.look_up_command, aggregate_id, command_id))
        await trio.lowlevel.checkpoint()
        return found

    def read_all(
        self,
        after: After = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        limit: int | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        *,
        aggregate_id: str | None = None,
        query: Query | None = None,
        backwards: bool = False,
        before: After | None = None,
    ) -> EmbeddedLogStream:
        """Iterates over the events after `after`, a sequence or a position, in commit order, that pass all filters; ends at the
        last event. Raises Diverged if the event at the position is another one now.

        `aggregate_id`: of this aggregate alone. `query`: by types and tags, in place of `types`. Times are microseconds since
        1970 or aware datetimes, both ends inclusive.
        `backwards`: the newest event first, of those before `before` (as `after`; None: of all), down to the first.
        """
        begin, field = begin_of_read(after, before, backwards)
        start = stored_start(begin, self.opened.uuid.bytes, field=field)
        wanted = event_filter(types, aggregate_prefix, from_time, to_time, aggregate_id, query)
        cursor = LogCursor(start, limit, wanted, backwards=backwards)

        async def turn_page() -> list[Event]:
            if backwards:
                return cursor.take(await self._scan_page_back(cursor))
            return cursor.take(await self.scan_page(cursor.place, cursor.wanted, cursor.left))

        return EmbeddedLogStream(cursor, turn_page, self.opened.uuid.bytes)

    def read_all_arrow(
        self,
        after: After = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        *,
        aggregate_id: str | None = None,
        query: Query | None = None,
    ) -> EmbeddedRecordBatches:
        """As `read_all`, in Arrow record batches of some thousand events: for pandas, polars, DuckDB, without an object for
        each event. `domain.EventColumns` makes columns of the fields of an event class. `position` is that after the last
        batch. Needs the extra `arrow`.

        Columns: sequence, aggregate_id, version, type, timestamp, command_id, data, is_json, metadata, tags.
        """
        from eventstore.records.arrow_page import ArrowCursor

        start = stored_start(after, self.opened.uuid.bytes)
        cursor = ArrowCursor(start, event_filter(types, aggregate_prefix, from_time, to_time, aggregate_id, query))

        async def turn_page() -> list[Any]:
            page = await self.scan_page(cursor.place, cursor.wanted, bytes_max=_ARROW_PAGE_BYTES)
            return await trio.to_thread.run_sync(cursor.take, page)

        return cast(EmbeddedRecordBatches, EmbeddedLogStream(cursor, turn_page, self.opened.uuid.bytes))

    async def query(self, query: Query, after: After = 0, limit: int | None = None) -> tuple[list[Event], Position]:
        """Returns the events after `after` that pass the query, of all aggregates, and the position after what was examined: a
        decision that is made of them is committed `unless` others have come up after it. `limit`: how many events at most.

        Raises:
            Diverged: the event at `after` is another one now, or there is none.
        """
        stream = self.read_all(after, limit=limit, query=check_query(query))
        events = [event async for event in stream]
        return events, stream.position

    async def scan_page(
        self,
        after: LogPosition | int,
        wanted: EventFilter,
        events_max: int | None = None,
        durable: bool = False,
        whole: bool = False,
        bytes_max: int | None = None,
    ) -> ScanPage:
        """Reads one page of raw records on a thread (see `StoreEngine.scan`). `whole`: unfiltered. `bytes_max`: None: as the
        settings say.

        Raises:
            Diverged: `after` is a position, and the event there is another one, or there is none.
            Corrupt, ReadFailed
        """
        self._check_open()
        start = after if isinstance(after, LogPosition) else LogPosition(after)
        page_bytes = self.opened.settings.page_bytes if bytes_max is None else bytes_max
        own = None if whole else self.engine.slot_filter

        def page() -> ScanPage:
            check_place(self.engine.scan, start)
            found = self.engine.scan(start.sequence, wanted, page_bytes, events_max, durable, own, whole=whole)
            return found if wanted.everything and own is None else placed(self.engine.scan, found)

        found = await self._threads.scan(page)
        if found.identity:
            self.engine.note_identity(found.next, found.identity)
        return found

    async def _scan_page_back(self, cursor: LogCursor) -> ScanPage:
        self._check_open()
        bytes_max, own = self.opened.settings.page_bytes, self.engine.slot_filter

        def page() -> ScanPage:
            check_place(self.engine.scan, cursor.place)
            found = self.engine.scan_back(cursor.after, cursor.wanted, bytes_max, cursor.left, own)
            return found if cursor.wanted.everything and own is None else placed(self.engine.scan, found)

        return await self._threads.scan(page)

    def subscribe(
        self,
        after: After = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        *,
        aggregate_id: str | None = None,
        query: Query | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
    ) -> EmbeddedSubscriptionStream:
        """Iterates like `read_all`, then continues with new events until the store is closed, and raises Closed. Yields
        CaughtUp once, between the two; with `after=END` it is the first item. Yields only durable events, so that no checkpoint
        gets ahead of the store; with durability `async` they come up to `flush_interval_s` later than from `read_all`.
        """
        start = start_of(after, self.opened.uuid.bytes)
        place, caught_up, stored = start, False, self.engine.visible_sequence
        wanted = event_filter(types, aggregate_prefix, from_time, to_time, aggregate_id, query)

        async def follow_on() -> tuple[list[Item], LogPosition | None]:
            nonlocal place, caught_up
            if place is None:
                self._check_open()
                place, caught_up = LogPosition(self.engine.visible_sequence), True
                await self._wait_until_durable(place.sequence)
                begin = ScanPage(b"", place.sequence, True)
                return [CaughtUp(place.sequence)], _end_of(await self._threads.scan(partial(placed, self.engine.scan, begin)))
            position = place.sequence
            if not caught_up:
                check_start(position, stored)
            if caught_up or position < stored:
                await self._wait_until_durable(position + 1)
            page = await self.scan_page(place, wanted, durable=True)
            events = wanted.select(decode_page(page.records), position)
            settle(events, page.next)
            items: list[Item] = list(events)
            place, end = LogPosition(max(position, page.next)), _end_of(page)
            if page.at_end and not caught_up and place.sequence >= stored:
                caught_up = True
                items.append(CaughtUp(place.sequence))
            return items, end

        return EmbeddedSubscriptionStream(follow_on, start, self.opened.uuid.bytes)

    async def _wait_until_durable(self, sequence: int) -> None:
        while self.engine.durable_sequence < sequence and not self._closed:
            await self.committer.advanced.park()

    async def aggregates(
        self, prefix: str | None = None, after: str | None = None, limit: int = AGGREGATES_PER_PAGE_MAX
    ) -> list[AggregateInfo]:
        """Returns up to `limit` aggregates whose ids begin with `prefix` and follow `after`, in order, with their versions."""
        wanted = id_range(prefix, after, limit)
        self._check_open()
        return await self._threads.scan(lambda: self.engine.list_aggregates(wanted, limit, self.engine.slot_filter))

    async def wait_for(self, projection: str, *done: Committed | Unchanged) -> None:
        """Returns once the tables of a projection, which run on this store (`d.project`), have these events; without any, all
        events that there are now. Waits for a projector if there is none. Raises Overloaded, Closed.
        """
        check_text("projection", projection)
        self._check_open()
        ended, errors = trio.Event(), list[EventStoreError]()

        def end(error: EventStoreError | None) -> None:
            errors.extend(() if error is None else (error,))
            ended.set()

        wait = self.waits.begin(projection, sequence_of(done) or self.engine.visible_sequence, end)
        try:
            await ended.wait()
        finally:
            self.waits.cancel(wait)
        if errors:
            raise errors[0]

    async def ask_waits(self, projection: str, number: int, projector: int) -> tuple[int, int]:
        """Returns the number of the newest wait for a projection, once that is another one, and the greatest sequence that is
        waited for. `projector`: a number of its own for each that runs; it has ended when it is cancelled here.
        """
        self._check_open()
        ended, answers = trio.Event(), list[tuple[int, int]]()

        def answer(number: int, sequence: int) -> None:
            answers.append((number, sequence))
            ended.set()

        self.waits.ask(projection, projector, number, answer, lambda: False)
        try:
            await ended.wait()
        except BaseException:
            self.waits.leave(projection, projector)
            raise
        return answers[0]

    async def tell_place(self, projection: str, number: int, position: int, projector: int) -> None:
        """Says that a table is complete up to a sequence, looked at after the wait of this number was known."""
        self._check_open()
        self.waits.tell(projection, projector, number, position)

    async def stats(self) -> StatValues:
        """Returns statistics of this store, by name."""
        self._check_open()
        stats = read_stats([MetricSource(STORE_METRICS, lambda: self)])
        await trio.lowlevel.checkpoint()
        return stats

    async def aclose(self) -> None:
        """Refuses new calls and waits for appends and reads in flight; subscriptions end with Closed."""
        if self.committer.abandoned:
            return
        self._closed = True
        self.waits.end_all(self._refusal)
        await self.committer.drain()
        self.committer.advanced.unpark_all()
        await self._threads.finished()


def _end_of(page: ScanPage) -> LogPosition | None:
    return LogPosition(page.next, page.identity) if page.identity else None
