"""The embedded store: the public methods, in the process of its user, on trio, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import trio

from eventstore.allocator import expect_large_buffers
from eventstore.chunks.files import Files
from eventstore.config import StoreSettings
from eventstore.errors import Closed, EventStoreError, InvalidArgument, VersionConflict, again
from eventstore.fields import check_int, check_text
from eventstore.model import VERSION_MAX, CaughtUp, Commit, Committed, Event, ExpectedVersion, NewEvent
from eventstore.store import appending
from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE
from eventstore.store.committer import Committer
from eventstore.store.cursors import AggregateCursor, LogCursor
from eventstore.store.engine import Engine
from eventstore.store.event_filter import EventFilter, event_filter
from eventstore.store.maintenance import ChildSorter, Maintenance, ThreadSorter
from eventstore.store.opening import DIRECTORY, OpenReport, OpenStore, open_folder
from eventstore.store.page import decode_page
from eventstore.store.raw_commit import Outcome, RawCommit, encode_commit, encode_commits, named_expected
from eventstore.store.reading import IN_PLACE_BYTES_MAX, NotCached, Page
from eventstore.store.scanning import ScanPage
from eventstore.store.streams import EventStream, Item, SubscriptionStream

# So many commits of one call are one batch, and then others have their turn: about a millisecond.
_COMMITS_PER_TURN: Final = 256
# Threads that may wait for the disk at once: apart, so that slow scans do not hold up replays, nor either of them what runs on
# trio's own threads (the switch of a sorted file, the preload file, closing). Writes and syncs have threads of their own.
_SCANS_MAX: Final = 8
_REPLAYS_MAX: Final = 16
Read = TypeVar("Read")
Stats = dict[str, str | int | bool | None]


class EmbeddedStore:
    """An open store. Made by `open_store`; safe to use from any task of the same trio run."""

    def __init__(self, opened: OpenStore, committer: Committer, maintenance: Maintenance) -> None:
        self.opened = opened
        self.engine: Engine = opened.engine
        self.committer = committer
        self.maintenance = maintenance
        self._closed = False
        self._reading = 0
        self._read = trio.lowlevel.ParkingLot()
        self._scans = trio.CapacityLimiter(_SCANS_MAX)
        self._replays = trio.CapacityLimiter(_REPLAYS_MAX)

    @property
    def report(self) -> OpenReport:
        return self.opened.report

    async def append(
        self, aggregate_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion,
        command_id: str | None = None, timestamp: int | datetime | None = None,
    ) -> Committed:  # fmt: skip
        """Appends the events of one command; durable on return.

        Cancelled while it waits for the disk, it leaves open whether the commit is stored; the same command id tells.

        Raises:
            VersionConflict: the aggregate is at another version than `expected_version`.
            CommandIdReused: the command id was used for other content.
            InvalidArgument: a limit is broken.
            StorageFull, Poisoned: the disk does not take it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        raw = encode_commit(aggregate_id, events, expected_version, command_id, timestamp)
        await self._wait_for_room()
        submission = self._submit([raw])
        await submission.wait()
        outcome = _public(raw, submission.outcomes[0])
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def append_many(self, commits: Iterable[Commit]) -> list[Outcome]:
        """Appends each commit, whole or not at all, in this order; what became of each: Committed or an error.

        Cancelled while it waits for the disk, it leaves open which commits are stored; the same command ids tell.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        submissions: list[tuple[list[RawCommit | InvalidArgument], _Submission]] = []
        remaining = iter(commits)
        while group := list(islice(remaining, _COMMITS_PER_TURN)):
            if submissions:
                await trio.lowlevel.checkpoint()
            raw = encode_commits(group)
            await self._wait_for_room()
            submissions.append((raw, self._submit([each for each in raw if not isinstance(each, InvalidArgument)])))
        outcomes: list[Outcome] = []
        for raw, submission in submissions:
            await submission.wait()
            stored = iter(submission.outcomes)
            outcomes += [each if isinstance(each, InvalidArgument) else _public(each, next(stored)) for each in raw]
        return outcomes

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    async def _wait_for_room(self) -> None:
        await self.committer.wait_for_room()
        self._check_open()

    def _submit(self, commits: list[RawCommit]) -> _Submission:
        submission = _Submission()
        self.committer.submit(commits, submission.deliver, trio.lowlevel.current_task())
        self.committer.kick()
        return submission

    def read(
        self, aggregate_id: str, from_version: int = 1, to_version: int | None = None,
        backwards: bool = False, limit: int | None = None,
    ) -> EventStream:  # fmt: skip
        """The aggregate's events in order of version, both ends inclusive; none where it does not exist."""
        cursor = AggregateCursor(aggregate_id, from_version, to_version, backwards, limit)

        async def turn_page() -> list[Event]:
            high = VERSION_MAX if cursor.high is None else cursor.high
            return cursor.take(await self.read_page(aggregate_id, cursor.low, high, backwards))

        return EventStream(cursor, turn_page)

    async def read_page(self, aggregate_id: str, low: int, high: int, backwards: bool) -> Page:
        """One page of raw records (see `Engine.replay`): at once where they are cached, else on a worker thread."""
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
        return await self._on_thread(lambda: replay(aggregate_id, low, high, backwards, bytes_max), self._replays)

    async def _on_thread(self, read: Callable[[], Read], limiter: trio.CapacityLimiter) -> Read:
        """What `read` says; files stay open for it."""
        self._reading += 1
        try:
            return await trio.to_thread.run_sync(read, limiter=limiter)
        finally:
            self._reading -= 1
            self._read.unpark_all()

    async def version(self, aggregate_id: str) -> int:
        """The version of the aggregate's last event; 0 where it does not exist."""
        check_text("aggregate_id", aggregate_id)
        await trio.lowlevel.checkpoint()
        self._check_open()
        return self.engine.version(aggregate_id)

    async def find_command(self, aggregate_id: str, command_id: str) -> Committed | None:
        """What the command became, if it was appended."""
        check_text("aggregate_id", aggregate_id)
        check_text("command_id", command_id)
        await trio.lowlevel.checkpoint()
        self._check_open()
        view = self.engine.find_command(aggregate_id, command_id)
        return None if view is None else Committed(aggregate_id, view.last_version, view.last_sequence, duplicate=True)

    def read_all(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None,
        limit: int | None = None, from_time: int | datetime | None = None, to_time: int | datetime | None = None,
    ) -> EventStream:  # fmt: skip
        """The events behind sequence `after`, in commit order, that pass every filter given; ends at the present.

        Times are microseconds since 1970 or aware datetimes, both ends inclusive.
        """
        cursor = LogCursor(after, limit, types, aggregate_prefix, from_time, to_time)

        async def turn_page() -> list[Event]:
            return cursor.take(await self.scan_page(cursor.after, cursor.wanted, cursor.left))

        return EventStream(cursor, turn_page)

    async def scan_page(self, after: int, wanted: EventFilter, events_max: int | None = None) -> ScanPage:
        """One page of raw records (see `Engine.scan`), read on a worker thread."""
        self._check_open()
        bytes_max = self.opened.settings.page_bytes
        return await self._on_thread(lambda: self.engine.scan(after, wanted, bytes_max, events_max), self._scans)

    def subscribe(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> SubscriptionStream:
        """As `read_all`, but goes on with what is appended, until the store is closed; CaughtUp comes once, between the
        two. Iterating raises Closed in the end.
        """
        check_int("after", after, 0, VERSION_MAX)
        wanted, told = event_filter(types, aggregate_prefix), False

        async def follow_on() -> list[Item]:
            nonlocal after, told
            while told and self.engine.visible_sequence <= after and not self._closed:
                await self.committer.advanced.park()
            page = await self.scan_page(after, wanted)
            items: list[Item] = list(wanted.select(decode_page(page.records), after))
            after = max(after, page.next)
            if page.at_end and not told:
                told = True
                items.append(CaughtUp(after))
            return items

        return SubscriptionStream(follow_on)

    async def stats(self) -> Stats:
        """Figures of this store, by name."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        return collect_stats(self)

    async def aclose(self) -> None:
        """Waits for appends and reads on their way, and refuses new ones; subscriptions end with Closed."""
        self._closed = True
        await self.committer.drain()
        self.committer.advanced.unpark_all()
        while self._reading:
            await self._read.park()


class _Submission:
    """Commits on their way to the disk, and the task that waits for their outcomes, if it does."""

    def __init__(self) -> None:
        self.outcomes: list[appending.Outcome] = []
        self._delivered = False
        self._waiting: trio.lowlevel.Task | None = None

    def deliver(self, outcomes: list[appending.Outcome]) -> None:
        self.outcomes, self._delivered = outcomes, True
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self) -> None:
        """Returns when the outcomes are there."""
        if self._delivered:
            await trio.lowlevel.cancel_shielded_checkpoint()  # the others have their turn, the answer is not lost
        else:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _give_up(self, _: object) -> trio.lowlevel.Abort:
        self._waiting = None  # the commits are on their way and will be there or not; nobody waits for the answer
        return trio.lowlevel.Abort.SUCCEEDED


@asynccontextmanager
async def open_store(
    path: str | Path,
    settings: StoreSettings | None = None,
    *,
    files: Files | None = None,
    directory: Path | None = None,
) -> AsyncIterator[EmbeddedStore]:
    """Opens, or creates, the store in the folder `path` for this process alone. On trio only.

    `files` and `directory` replace the disk; they are for tests.

    Raises:
        FolderRefused, Corrupt: the folder cannot be opened.
        InvalidArgument: the caller runs on another event loop.
    """
    if not trio.lowlevel.in_trio_run():
        raise InvalidArgument(
            "an embedded store needs trio; run the program with trio.run(main), or connect to a server, also on asyncio",
            field="event loop",
        )
    settings, path = settings or StoreSettings(), Path(path)
    expect_large_buffers()
    opened = await trio.to_thread.run_sync(lambda: open_folder(path, settings, files=files, directory=directory))
    try:
        committer = Committer(
            opened.engine, waiting_bytes_max=settings.waiting_bytes_max,
            sync=settings.durability == "sync", flush_interval_s=settings.flush_interval_s,
        )  # fmt: skip
        sorter = ChildSorter(path, directory or path / DIRECTORY) if files is None else ThreadSorter(opened.engine)
        maintenance = Maintenance(opened.engine, sorter)
        committer.on_completed = lambda _: maintenance.wake()
        store = EmbeddedStore(opened, committer, maintenance)
        async with trio.open_nursery() as nursery:
            await nursery.start(committer.run)
            if settings.sort:
                nursery.start_soon(maintenance.run)
            nursery.start_soon(_write_preload, opened, settings)
            error = None
            try:
                yield store
            except Exception as raised:  # leaves the nursery as what it is, not in an ExceptionGroup
                error = raised
            finally:
                with trio.CancelScope(shield=True):
                    await store.aclose()
                    committer.stop()
                nursery.cancel_scope.cancel()
        if error is not None:
            raise error
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(opened.close)


async def _write_preload(opened: OpenStore, settings: StoreSettings) -> None:
    while settings.preload_aggregates:
        await trio.sleep(settings.preload_interval_s)
        recent = opened.engine.known.recent(settings.preload_aggregates)
        await trio.to_thread.run_sync(opened.preload.write, recent)


def collect_stats(store: EmbeddedStore) -> Stats:
    engine, committer = store.engine, store.committer
    headers = engine.files.headers
    return {
        "store": str(store.opened.uuid),
        "durability": store.opened.settings.durability,
        "events": engine.visible_sequence,
        "event_files": len(headers),
        "sorted_files": sum(header.sorted for header in headers),
        "unsorted_files": len(engine.tail.files),
        "known_aggregates": len(engine.known),
        "known_misses": engine.known.misses,
        "duplicates": engine.appender.duplicates,
        "conflicts": engine.appender.conflicts,
        "refused": engine.appender.refused,
        "batches": committer.batches,
        "batches_in_place": committer.batches_in_place,
        "write_microseconds": round(committer.write_seconds * 1_000_000),
        "waiting_bytes": committer.waiting_bytes,
        "sort_failures": store.maintenance.failures,
        "sort_stopped_at_file": store.maintenance.stopped_at,
        "directory_damaged": engine.directory.distrusted is not None,
        "attention": store.maintenance.attention or store.maintenance.index_attention or engine.directory.attention,
        "torn_bytes_at_start": store.report.torn_bytes,
        "poisoned": engine.failed is not None,
    }


def _public(commit: RawCommit, outcome: appending.Outcome) -> Outcome:
    status, first, second = outcome
    if isinstance(first, EventStoreError):
        return again(first)
    if status == CONFLICT:
        return VersionConflict(commit[0], named_expected(commit[1]), first)
    assert status in (COMMITTED, DUPLICATE)
    return Committed(commit[0], first, second, duplicate=status == DUPLICATE)
