"""The embedded store: the public methods, in the process of its user, on trio, without a server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import trio

from eventstore import flat
from eventstore.chunks.files import Files
from eventstore.config import StoreSettings
from eventstore.errors import Closed, EventStoreError, InvalidArgument, VersionConflict
from eventstore.model import (
    ANY,
    VERSION_MAX,
    CaughtUp,
    Commit,
    Committed,
    Event,
    Expected,
    ExpectedVersion,
    NewEvent,
    micros,
)
from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE, Outcome, RawCommit
from eventstore.store.committer import Committer
from eventstore.store.engine import Engine
from eventstore.store.maintenance import ChildSorter, Maintenance, ThreadSorter
from eventstore.store.opening import DIRECTORY, OpenReport, OpenStore, open_folder
from eventstore.store.page import decode_page
from eventstore.store.reading import IN_PLACE_BYTES_MAX, NotCached, Page
from eventstore.store.scanning import EventFilter, ScanPage

Stats = dict[str, str | int | float | bool | None]


class EmbeddedStore:
    """An open store. Made by `open_store`; safe to use from any task of the same trio run."""

    def __init__(self, opened: OpenStore, committer: Committer, maintenance: Maintenance) -> None:
        self.opened = opened
        self.engine: Engine = opened.engine
        self.committer = committer
        self.maintenance = maintenance
        self._closed = False

    @property
    def report(self) -> OpenReport:
        return self.opened.report

    async def append(
        self, aggregate_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion,
        command_id: str | None = None, timestamp: int | datetime | None = None,
    ) -> Committed:  # fmt: skip
        """Appends the events of one command; durable on return.

        Raises:
            VersionConflict, CommandIdReused, InvalidArgument, StorageFull, Poisoned
        """
        commit = Commit(aggregate_id, events, expected_version, command_id or uuid.uuid4().hex, timestamp)
        (outcome,) = await self.append_many([commit])
        if isinstance(outcome, EventStoreError):
            raise outcome
        return outcome

    async def append_many(self, commits: Sequence[Commit]) -> list[Committed | EventStoreError]:
        """Appends each commit whole or not at all, in order; one batch. Returns the outcomes in order.

        Cancelled while it waits for the disk, it leaves open whether the commits are stored; the same command ids tell.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        raw = [_raw_or_error(commit) for commit in commits]
        await self.committer.wait_for_room()
        self._check_open()
        stored = iter(await self._submit([item for item in raw if not isinstance(item, EventStoreError)]))
        return [
            item if isinstance(item, EventStoreError) else public_outcome(commit, next(stored))
            for commit, item in zip(commits, raw, strict=True)
        ]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    async def _submit(self, commits: list[RawCommit]) -> list[Outcome]:
        task = trio.lowlevel.current_task()
        delivered: list[list[Outcome]] = []
        waiting = False

        def deliver(outcomes: list[Outcome]) -> None:
            delivered.append(outcomes)
            if waiting:
                trio.lowlevel.reschedule(task)

        def give_up(_: object) -> trio.lowlevel.Abort:
            nonlocal waiting
            waiting = False  # the commits are on their way and will be there or not; nobody waits for the answer
            return trio.lowlevel.Abort.SUCCEEDED

        self.committer.submit(commits, deliver, task)
        self.committer.kick()
        if delivered:
            await trio.lowlevel.cancel_shielded_checkpoint()  # the others have their turn, the answer is not lost
        else:
            waiting = True
            await trio.lowlevel.wait_task_rescheduled(give_up)
        return delivered[0]

    async def read(
        self, aggregate_id: str, from_version: int = 1, to_version: int | None = None,
        backwards: bool = False, limit: int | None = None,
    ) -> AsyncIterator[Event]:  # fmt: skip
        """The aggregate's events in [from_version, to_version], both included; none where there are none."""
        check_range(from_version, to_version, limit)
        low, high, left = from_version, to_version if to_version is not None else VERSION_MAX, limit
        while left is None or left > 0:
            page = await self.read_page(aggregate_id, low, high, backwards)
            events = [event for event in decode_page(page.records) if low <= event[1] <= high]
            if backwards:
                events.reverse()
            for event in events if left is None else events[:left]:
                yield event
            left = None if left is None else left - len(events)
            if page.next is None:
                return
            low, high = (low, page.next) if backwards else (page.next, high)

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
        return await trio.to_thread.run_sync(self.engine.replay, aggregate_id, low, high, backwards, bytes_max)

    async def version(self, aggregate_id: str) -> int:
        """The aggregate's version, 0 where it does not exist."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        return self.engine.version(aggregate_id)

    async def find_command(self, aggregate_id: str, command_id: str) -> Committed | None:
        """The commit of this command, if there is one."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        view = self.engine.find_command(aggregate_id, command_id)
        return None if view is None else Committed(aggregate_id, view.last_version, view.last_sequence, duplicate=True)

    async def read_all(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None,
        limit: int | None = None, from_time: int | datetime | None = None, to_time: int | datetime | None = None,
    ) -> AsyncIterator[Event]:  # fmt: skip
        """All events behind sequence `after` in commit order, up to what is stored when the end is reached."""
        check_position(after, limit)
        wanted = event_filter(types, aggregate_prefix, from_time, to_time)
        left = limit
        while left is None or left > 0:
            page = await self.scan_page(after, wanted)
            events = [event for event in decode_page(page.records) if event[7] > after and wanted.matches(event)]
            for event in events if left is None else events[:left]:
                yield event
            left = None if left is None else left - len(events)
            after = page.next
            if page.at_end:
                return

    async def scan_page(self, after: int, wanted: EventFilter) -> ScanPage:
        """One page of raw records (see `Engine.scan`), read on a worker thread."""
        self._check_open()
        return await trio.to_thread.run_sync(self.engine.scan, after, wanted, self.opened.settings.page_bytes, None)

    async def subscribe(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> AsyncIterator[Event | CaughtUp]:
        """Everything behind `after`, then `CaughtUp` once, then whatever is appended, until the store is closed.

        Raises:
            Closed
        """
        check_position(after, None)
        wanted = event_filter(types, aggregate_prefix, None, None)
        told = False
        while True:
            page = await self.scan_page(after, wanted)
            for event in decode_page(page.records):
                if event[7] > after and wanted.matches(event):
                    yield event
            after = max(after, page.next)
            if page.at_end and not told:
                told = True
                yield CaughtUp(after)
            while self.engine.visible_sequence <= after and not self._closed:
                await self.committer.advanced.park()

    async def stats(self) -> Stats:
        """Figures of this store, by name."""
        await trio.lowlevel.checkpoint()
        return collect_stats(self)

    async def aclose(self) -> None:
        """Waits for appends on their way, and refuses new ones; subscriptions end with `Closed`."""
        self._closed = True
        await self.committer.drain()
        self.committer.advanced.unpark_all()


@asynccontextmanager
async def open_store(
    path: str | Path,
    settings: StoreSettings | None = None,
    *,
    files: Files | None = None,
    directory: Path | None = None,
) -> AsyncIterator[EmbeddedStore]:
    """Opens, or creates, the store in the folder `path` for this process alone.

    `files` and `directory` replace the disk; they are for tests.

    Raises:
        FolderRefused, Corrupt
    """
    settings, path = settings or StoreSettings(), Path(path)
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
        "batches_in_place": committer.synced_in_place,
        "write_seconds": round(committer.sync_seconds, 6),
        "waiting_bytes": committer.waiting_bytes,
        "sort_failures": store.maintenance.failures,
        "torn_bytes_at_start": store.report.torn_bytes,
        "poisoned": engine.failed is not None,
    }


def raw_commit(commit: Commit) -> RawCommit:
    """The commit as the engine takes it. Ids and events are checked there."""
    expected = commit.expected_version
    raw_expected: int | bool | None
    if isinstance(expected, Expected):
        raw_expected = None if expected is ANY else True
    elif expected.__class__ is int:
        raw_expected = expected
    else:
        raise InvalidArgument(
            f"expected_version is {expected!r}, allowed are a whole number from 0, ANY and EXISTS",
            field="expected_version",
        )
    try:
        events = flat.encode(flat.chain(commit.events))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"events cannot be encoded: {error}", field="events") from None
    return commit.aggregate_id, raw_expected, commit.command_id, micros(commit.timestamp), events


def _raw_or_error(commit: Commit) -> RawCommit | EventStoreError:
    try:
        return raw_commit(commit)
    except EventStoreError as error:
        return error


def public_outcome(commit: Commit, outcome: Outcome) -> Committed | EventStoreError:
    status, first, second = outcome
    if isinstance(first, EventStoreError):
        return first
    if status == CONFLICT:
        expected = commit.expected_version
        return VersionConflict(commit.aggregate_id, expected.value if isinstance(expected, Expected) else expected, first)
    assert status in (COMMITTED, DUPLICATE)
    return Committed(commit.aggregate_id, first, second, duplicate=status == DUPLICATE)


def event_filter(
    types: Iterable[str] | None, prefix: str | None, from_time: int | datetime | None, to_time: int | datetime | None
) -> EventFilter:
    if isinstance(types, str):
        raise InvalidArgument(f"types is {types!r}, a text; give a list of event types", field="types")
    try:
        (prefix or "").encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"aggregate_prefix is not valid UTF-8 text: {prefix!r}", field="aggregate_prefix") from None
    return EventFilter(None if types is None else frozenset(types), prefix or None, micros(from_time), micros(to_time))


def check_range(from_version: int, to_version: int | None, limit: int | None) -> None:
    """Raises InvalidArgument for a range no aggregate can have. Beyond the end is fine, and empty."""
    check_at_least("from_version", from_version, 1)
    check_at_least("to_version", to_version, 0)
    check_at_least("limit", limit, 0)


def check_position(after: int, limit: int | None) -> None:
    check_at_least("after", after, 0)
    check_at_least("limit", limit, 0)


def check_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and not least <= value <= VERSION_MAX:
        raise InvalidArgument(f"{name} is {value}, allowed are {least} to {VERSION_MAX}", field=name, limit=least, value=value)
