"""A store on a simulated disk that a test drives step by step, on one thread: nothing else happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventstore import flat
from eventstore.chunks.files import Files
from eventstore.errors import EventStoreError
from eventstore.model import ANY, VERSION_MAX, Event, NewEvent
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.records.raw_commit import AppendCondition, JointWrites
from eventstore.records.splits import SlotFilter
from eventstore.settings.store import StoreSettings
from eventstore.store.append import AppendOutcome, NewCommit
from eventstore.store.engine import StoreEngine
from eventstore.store.memory.unsorted_tail import TailFile
from eventstore.store.opening import OpenStore, open_folder
from eventstore.store.sorted.sorting import sort_file, switch
from tests.simulated_disk import SimulatedDisk

DATA = Path("/data")
EVENTS = DATA / "events"
SMALL = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False, preload_aggregates=100)
EVERYTHING = EventFilter()


def events_bytes(events: Iterable[NewEvent]) -> bytes:
    return flat.encode(flat.chain(events))


def raw(
    aggregate_id: str, command_id: str, *events: NewEvent, expected: AppendCondition = ANY, when: int | None = 1_000_000
) -> NewCommit:
    """Returns a commit as the engine takes it; the time is fixed, so that two runs write the same bytes."""
    return aggregate_id, expected, command_id, when, events_bytes(events or [NewEvent("Happened", command_id.encode())])


def together(
    command_id: str,
    *writes: tuple[str, AppendCondition, list[NewEvent]],
    only_if: Sequence[tuple[str, AppendCondition]] = (),
    when: int | None = 1_000_000,
) -> NewCommit:
    """Returns a commit of several aggregates as the engine takes it."""
    encoded = tuple((name, expected, events_bytes(events)) for name, expected, events in writes)
    return JointWrites(encoded, tuple(only_if)), ANY, command_id, when, b""


@dataclass
class Stepped:
    """An open store and its disk. `directory`: the folder of LMDB, which is always a real one. `epoch`: of what is
    appended.
    """

    disk: Files
    directory: Path
    settings: StoreSettings = SMALL
    clock: Callable[[], float] = lambda: 1_000.0
    epoch: int | None = None
    opened: OpenStore = field(init=False)

    def __post_init__(self) -> None:
        self.opened = open_folder(
            DATA, self.settings, files=self.disk, directory=self.directory, clock=self.clock, epoch=self.epoch
        )

    @property
    def engine(self) -> StoreEngine:
        return self.opened.engine

    def append(self, *commits: NewCommit) -> list[AppendOutcome]:
        """Appends the commits as one batch, and writes and syncs it."""
        outcomes = self.engine.append_batch(commits)
        self.persist()
        return outcomes

    def persist(self) -> None:
        """Writes and syncs all waiting commits, as a committer does."""
        engine = self.engine
        while (segment := engine.take()) is not None:
            try:
                engine.write(segment)
            except EventStoreError as error:
                engine.roll_back(error)
                raise
            engine.mark_written(segment, durable=True)

    def unsorted(self) -> list[TailFile]:
        """Returns the completed files that are not sorted yet, oldest first."""
        return [file for file in self.engine.tail.files if self.engine.files.headers[file.number - 1].completed]

    def sort(self, files: int = 1_000_000) -> int:
        """Sorts up to `files` files, each step as `maintenance` does it. Returns their number."""
        chosen = self.unsorted()[:files]
        for file in chosen:
            self.sort_file(file)
        return len(chosen)

    def sort_file(self, file: TailFile) -> None:
        engine = self.engine
        if not engine.files.headers[file.number - 1].sorted:
            sort_file(engine.files.folder, file.number)
            switch(engine.files.folder, file.number)
            engine.use_sorted(file.number)
        engine.directory.add_file(engine.files.index(file.number))
        engine.recent_aggregates()
        engine.extend_cache(file.number)
        engine.release(file)

    def read(
        self, aggregate_id: str, low: int = 1, high: int | None = None, *, backwards: bool = False, page_bytes: int = 1 << 20
    ) -> list[Event]:
        """Reads the aggregate's events in this range, page by page, as a client does."""
        found: list[Event] = []
        stop = high if high is not None else 2**63 - 1
        start = low
        while True:
            page = self.engine.replay(aggregate_id, start, stop, backwards, page_bytes)
            events = [event for event in decode_page(page.records) if start <= event.version <= stop]
            found += reversed(events) if backwards else events
            if page.next is None:
                return found
            start, stop = (start, page.next) if backwards else (page.next, stop)

    def read_all(
        self, after: int = 0, wanted: EventFilter = EVERYTHING, *, page_bytes: int = 1 << 20, events_max: int | None = None,
        own: SlotFilter | None = None,
    ) -> list[Event]:  # fmt: skip
        """Reads all wanted events after `after`, page by page, as a client does."""
        found: list[Event] = []
        while True:
            page = self.engine.scan(after, wanted, page_bytes, events_max, own=own)
            found += [event for event in decode_page(page.records) if event.sequence > after and wanted.matches(event)]
            assert page.next > after or page.at_end, "a page without progress"
            after = max(after, page.next)
            if page.at_end:
                return found

    def read_back(
        self, before: int = VERSION_MAX, wanted: EventFilter = EVERYTHING, *, page_bytes: int = 1 << 20,
        events_max: int | None = None, own: SlotFilter | None = None,
    ) -> list[Event]:  # fmt: skip
        """Reads all wanted events before `before`, newest first, page by page, as a client does."""
        found: list[Event] = []
        while True:
            page = self.engine.scan_back(before, wanted, page_bytes, events_max, own)
            events = decode_page(page.records)
            found += [event for event in reversed(events) if event.sequence < before and wanted.matches(event)]
            assert page.next < before or page.at_end, "a page without progress"
            before = page.next
            if page.at_end:
                return found

    def state(self) -> list[Event]:
        """Returns all events, in commit order."""
        return self.read_all()

    def close(self) -> None:
        self.opened.close()

    def abandon(self) -> None:
        """Releases what a crashed process would have lost anyway, so that the folder of LMDB can be opened again."""
        self.opened.engine.directory.close()

    def reopen(self) -> Stepped:
        """Closes the store cleanly and opens it again."""
        self.close()
        return Stepped(self.disk, self.directory, self.settings, self.clock)


def forget_directory(directory: Path) -> None:
    """Deletes the LMDB folder: it is derived, and a store must not need it."""
    shutil.rmtree(directory, ignore_errors=True)


def spare_the_probe(directory: Path) -> None:
    """Makes the directory look cleanly closed: the probe starts a process, which takes too long in these loops. Other tests
    cover the probe.
    """
    (directory / "in-use").unlink(missing_ok=True)


def contents(disk: SimulatedDisk, *, without: Sequence[str] = ("/data/lock",)) -> dict[str, bytes]:
    """Returns the contents of every file on the disk except the lock, which holds a process id."""
    return {
        f"{folder}/{name}": bytes(node.live)
        for folder, names in disk._names.live.items()
        for name, node in names.items()
        if f"{folder}/{name}" not in without
    }


def document(disk: SimulatedDisk, path: Path) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(disk.content(path))
    return parsed


def order_of_files(store: Stepped) -> list[str]:
    """Returns the state of each event file."""
    return [header.state for header in store.engine.files.headers]
