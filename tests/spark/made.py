"""Stores for these tests, made by the engine itself, step by step: so that a test decides what is sorted and what is not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eventstore import flat
from eventstore.chunks.files import OsFiles
from eventstore.model import ANY, Event, NewEvent
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.settings.store import StoreSettings
from eventstore.store.append import NewCommit
from eventstore.store.data_folder import ShardIdentity
from eventstore.store.opening import OpenStore, open_folder
from eventstore.store.sorted.sorting import sort_file, switch


class MadeStore:
    """An open store on the real disk."""

    def __init__(self, path: Path, file_size_bytes: int = 16 * 1024, shard: ShardIdentity | None = None) -> None:
        self.path = path
        settings = StoreSettings(file_size_bytes=file_size_bytes, preallocate_bytes=4096, sort=False)
        self.opened: OpenStore = open_folder(path, settings, files=OsFiles(), clock=lambda: 1_700_000_000.0, shard=shard)

    @property
    def uuid(self) -> str:
        return str(self.opened.uuid)

    @property
    def sequence(self) -> int:
        return self.opened.engine.tail.current.next_sequence - 1

    def append(self, aggregate_id: str, *events: NewEvent, command_id: str, when: int = 1_700_000_000_000_000) -> None:
        self.append_all([(aggregate_id, ANY, command_id, when, flat.encode(flat.chain(events)))])

    def append_all(self, commits: Iterable[NewCommit]) -> None:
        """One batch, durable on return."""
        engine = self.opened.engine
        outcomes = engine.append_batch(list(commits))
        assert not any(outcome[0] for outcome in outcomes), outcomes
        while (segment := engine.take()) is not None:
            engine.write(segment)
            engine.mark_written(segment, durable=True)

    def sort(self, files: int = 1_000_000) -> int:
        """Sorts up to so many completed files, as the background does; returns how many there were."""
        engine = self.opened.engine
        headers = engine.files.headers
        chosen = [file for file in engine.tail.files if headers[file.number - 1].completed][:files]
        for file in chosen:
            sort_file(engine.files.folder, file.number)
            switch(engine.files.folder, file.number)
            engine.use_sorted(file.number)
            engine.directory.add_file(engine.files.index(file.number))
            engine.recent_aggregates()
            engine.extend_cache(file.number)
            engine.release(file)
        return len(chosen)

    def states(self) -> list[str]:
        return [header.state for header in self.opened.engine.files.headers]

    def events(self) -> list[Event]:
        """Everything there is, as the store itself reads it."""
        found: list[Event] = []
        after = 0
        while True:
            page = self.opened.engine.scan(after, EventFilter(), 1 << 20, None)
            found += [event for event in decode_page(page.records) if event.sequence > after]
            after = page.next
            if page.at_end:
                return found

    def file(self, number: int, ending: str = "events") -> Path:
        return self.path / "events" / f"{number:010d}.{ending}"

    def close(self) -> None:
        self.opened.close()


def commits(count: int, *, aggregates: int = 10, first: int = 0, payload: int = 40) -> list[NewCommit]:
    """Commits of one to three events: JSON, bytes, with and without metadata."""
    made: list[NewCommit] = []
    for place in range(first, first + count):
        events = [
            NewEvent(
                "Opened" if place % 5 == 0 else "Deposited", {"amount": place, "text": "ä" * (payload // 2)}, {"by": place % 3}
            ),
            NewEvent("Noted", bytes(range(place % 7)) + b"\xff" * payload),
            NewEvent("Zażółć", {"n": place}),
        ][: 1 + place % 3]
        when = 1_700_000_000_000_000 + place * 1_000_000
        made.append((f"acc-{place % aggregates:03d}", ANY, f"c-{place}", when, flat.encode(flat.chain(events))))
    return made


def three_states(path: Path, count: int = 400, **shape: int) -> MadeStore:
    """A store with sorted files, completed ones that are not sorted yet, and an ongoing one."""
    store = MadeStore(path)
    wanted = commits(count, **shape)
    half = -(-len(wanted) // 2)
    for place, part in enumerate((wanted[:half], wanted[half:])):
        for first in range(0, half, 20):
            store.append_all(part[first : first + 20])
        if place == 0:
            store.sort()
    assert {"sorted", "completed", "ongoing"} <= set(store.states())
    return store
