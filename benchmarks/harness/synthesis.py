"""Makes stores of a given size, through the engine itself: nothing is faked but the clock time it would take over a network."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.subject import EVENT_TYPE
from eventstore import flat
from eventstore.model import ANY
from eventstore.settings.store import StoreSettings
from eventstore.store.append import NewCommit
from eventstore.store.engine import StoreEngine
from eventstore.store.opening import open_folder
from eventstore.store.sorted.sorting import sort_file, switch

BATCH = 1_000


def write(engine: StoreEngine, commits: list[NewCommit]) -> None:
    """Appends, writes and syncs; raises if anything was refused."""
    outcomes = engine.append_batch(commits)
    while (segment := engine.take()) is not None:
        engine.write(segment)
        engine.mark_written(segment, durable=True)
    refused = next((outcome for outcome in outcomes if outcome[0]), None)
    if refused is not None:
        raise ValueError(f"an append was refused: {refused}")


def sort_completed(engine: StoreEngine) -> None:
    """What the background sorting does, in this process."""
    for file in engine.tail.files:
        if not engine.files.headers[file.number - 1].completed:
            continue
        sort_file(engine.files.folder, file.number)
        switch(engine.files.folder, file.number)
        engine.use_sorted(file.number)
        engine.directory.add_file(engine.files.index(file.number))
        engine.recent_aggregates()
        engine.extend_cache(file.number)
        engine.release(file)


def fill_bytes(engine: StoreEngine, size_bytes: int, payload: bytes, aggregates: int = 10_000) -> int:
    """Appends single events until about `size_bytes` of records were written; returns how many."""
    event = flat.encode((0, EVENT_TYPE, payload, None))
    written = number = 0
    while written < size_bytes:
        commits: list[NewCommit] = [
            (f"order-{place * 7919 % aggregates:08d}", ANY, f"{place:032x}", None, event)
            for place in range(number, number + BATCH)
        ]
        write(engine, commits)
        number += BATCH
        written += BATCH * (len(event) + 14 + 32 + 65)
    return number


def many_files(folder: Path, files: int, aggregates: int) -> None:
    """A store of `aggregates` aggregates of one event in `files` sorted files; their ids spread over all files."""
    event = flat.encode((0, EVENT_TYPE, bytes(64), None))
    per_file = aggregates // files
    record = len(event) + 12 + 32 + 65
    opened = open_folder(folder, StoreSettings(file_size_bytes=max(4096, per_file * record + 4096 + 64), sort=False))
    try:
        for file in range(files):
            for first in range(0, per_file, BATCH):
                places = range(file * per_file + first, file * per_file + min(first + BATCH, per_file))
                write(opened.engine, [(aggregate(place), 0, f"{place:032x}", None, event) for place in places])
            sort_completed(opened.engine)
    finally:
        opened.close()


def aggregate(place: int) -> str:
    """A well-spread id: neighbours in time are nowhere near each other in order."""
    return f"{place * 2_654_435_761 % 2**40:012x}"
