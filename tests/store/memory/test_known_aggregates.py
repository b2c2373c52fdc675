"""What the store knows of its aggregates survives a sort and a restart: appends and reads of them ask no directory."""

from __future__ import annotations

import errno
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.chunks.files import NotCached
from eventstore.errors import ReadFailed
from eventstore.model import NewEvent
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE
from eventstore.store.memory.preload import NAME
from eventstore.store.memory.recent import RecentAggregates
from eventstore.store.memory.version_cache import (
    ABSENT,
    BLOCK_FILES,
    VersionCache,
    entry_of,
    may_contain,
    pack,
    ranges_with,
    version_of,
)
from eventstore.store.sorted.directory_entry import DirectoryEntry, RowRange
from eventstore.store.sorted.sorting import sort_file, switch
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import DATA, SMALL, Stepped, raw, spare_the_probe

AGGREGATES = 1_000
LARGER = replace(SMALL, file_size_bytes=128 * 1024, preload_aggregates=200)


def zipf(seed: int, aggregates: int = AGGREGATES) -> list[str]:
    """Returns 6,000 aggregates, the nth most wanted 1/n as often as the first."""
    weights = [1 / rank for rank in range(1, aggregates + 1)]
    return [f"order-{rank}" for rank in random.Random(seed).choices(range(aggregates), weights, k=6_000)]


def append_all(store: Stepped, names: list[str], tag: str) -> None:
    """Appends an event to each, in batches, and sorts every file as soon as it is complete."""
    numbered = itertools.count()
    for first in range(0, len(names), 50):
        outcomes = store.append(*(raw(name, f"{tag}-{next(numbered)}") for name in names[first : first + 50]))
        assert {outcome[0] for outcome in outcomes} == {COMMITTED}
        store.sort()


def preloaded(store: Stepped) -> list[str]:
    assert isinstance(store.disk, SimulatedDisk)
    names: list[str] = json.loads(store.disk.content(DATA / NAME))
    return names


def test_a_sort_forgets_nothing_that_the_version_cache_knew(opened: Maker) -> None:
    store = opened(settings=LARGER)
    append_all(store, [f"order-{number}" for number in range(AGGREGATES)], "first")
    cache, directory = store.engine.version_cache, store.engine.directory
    asked, misses, lookups = cache.asked, cache.misses, directory.lookups
    sorted_before = sum(header.sorted for header in store.engine.files.headers)
    append_all(store, zipf(1), "then")
    assert sum(header.sorted for header in store.engine.files.headers) - sorted_before >= 5
    assert cache.asked - asked == 6_000
    assert (cache.misses - misses, directory.lookups - lookups) == (0, 0)
    assert len(cache) == AGGREGATES
    state = store.state()
    hottest = [event for event in state if event.aggregate_id == "order-0"]
    assert store.read("order-0") == hottest
    assert directory.lookups == lookups, "a replay of what is known asks no directory"
    assert store.append(raw("order-0", hottest[5].command_id, NewEvent("Happened", hottest[5].data)))[0][0] == DUPLICATE
    assert store.append(raw("order-0", "new", expected=0))[0][:2] == (CONFLICT, len(hottest))
    cache.clear()
    assert store.read("order-0") == hottest
    assert directory.lookups > lookups


@pytest.mark.parametrize("stopped", ["cleanly", "killed"])
def test_after_a_restart_appends_to_what_changed_last_ask_no_directory(stopped: str, opened: Maker, tmp_path: Path) -> None:
    store = opened(settings=LARGER)
    names = zipf(2)
    append_all(store, names, "before")
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    if stopped == "cleanly":
        store.close()
    else:
        store.opened.preload.write(store.engine.recent_aggregates())
        store.abandon()
        spare_the_probe(tmp_path / "lmdb")
        disk = disk.crash("kept")
    store = opened(disk, settings=LARGER)
    lookups = store.engine.directory.lookups
    latest = list(dict.fromkeys(reversed(names)))[: LARGER.preload_aggregates]
    hot = set(latest)
    append_all(store, [name for name in zipf(3) if name in hot][:1_000], "after")
    assert store.engine.directory.lookups == lookups
    assert store.engine.version_cache.misses == 0


def test_the_preload_file_names_what_changed_last_however_often_it_changed(opened: Maker) -> None:
    settings = replace(LARGER, preload_aggregates=20)
    store = opened(settings=settings)
    for number in range(300):
        store.append(raw("hot", f"hot-{number}"), raw(f"cold-{number}", f"cold-{number}", NewEvent("T", bytes(1_000))))
        if number % 70 == 0:
            store.sort()
    store.append(raw("cold-7", "again"))
    assert store.engine.files.headers[0].sorted
    store.close()
    expected = [*(f"cold-{number}" for number in range(282, 299)), "hot", "cold-299", "cold-7"]
    assert preloaded(store)[-3:] == expected[-3:]
    assert sorted(preloaded(store)) == sorted(expected)
    store = opened(store.disk, settings=settings)
    store.append(raw("cold-290", "later"))
    store.close()
    assert preloaded(store)[-4:] == ["hot", "cold-299", "cold-7", "cold-290"]


def test_the_ring_follows_only_what_is_visible_and_does_not_look_twice(opened: Maker) -> None:
    store = opened()
    store.append(raw("a", "1"), raw("b", "2"), raw("a", "3"))
    store.engine.append_batch([raw("c", "4")])
    assert store.engine.recent_aggregates() == ["b", "a"]
    store.persist()
    assert store.engine.recent_aggregates() == ["b", "a", "c"]
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    disk.fail("read_at", 1, errno.EIO)
    assert store.engine.recent_aggregates() == ["b", "a", "c"]
    with pytest.raises(ReadFailed):  # it has read nothing: the failure is still to come
        store.read("a")
    disk.fail("read_at", 1, errno.EIO)
    store.append(raw("d", "5"))
    assert store.engine.recent_aggregates() == ["b", "a", "c"], "what cannot be read now"
    assert store.engine.recent_aggregates() == ["b", "a", "c", "d"], "is read the next time"


def test_no_preload_means_no_ring(opened: Maker) -> None:
    store = opened(settings=replace(SMALL, preload_aggregates=0))
    store.append(raw("a", "1"))
    assert store.engine.recent_aggregates() == []
    ring = RecentAggregates(0)
    ring.begin(["a"])
    assert ring.follow([], 0) == []


def sorted_without_the_cache(store: Stepped) -> None:
    """Does the steps of a sort up to the one that extends the version cache."""
    (file,) = store.unsorted()
    engine = store.engine
    sort_file(engine.files.folder, file.number)
    switch(engine.files.folder, file.number)
    engine.use_sorted(file.number)
    engine.directory.add_file(engine.files.index(file.number))


def with_two_files(opened: Maker) -> Stepped:
    """One aggregate with two commits in a sorted file and two in a completed one."""
    store = opened()
    for number in range(2):
        large = NewEvent("T", bytes(3_400 - 1_200 * number))
        store.append(raw("a", f"{number}.1"), raw("a", f"{number}.2"), raw("large", f"{number}", large))
        store.append(raw(f"next-{number}", f"next-{number}", NewEvent("T", bytes(1_000))))
        if number == 0:
            store.sort()
    return store


def test_an_entry_loaded_during_a_sort_gets_the_file_once(opened: Maker) -> None:
    store = with_two_files(opened)
    cache = store.engine.version_cache
    sorted_without_the_cache(store)
    cache.clear()
    assert store.engine.version("a") == 4
    store.engine._unique.sorted_part("a")  # now covers both files
    store.engine.extend_cache(2)
    store.engine.release(store.unsorted()[0])
    value = cache.get("a")
    assert value is not None
    assert [part.file for part in (entry_of(value) or DirectoryEntry(0, ())).row_ranges] == [1, 2]
    assert [event.version for event in store.read("a")] == [1, 2, 3, 4]
    assert store.append(raw("a", "new", expected=4))[0][:2] == (COMMITTED, 5)


def test_what_a_reader_found_before_a_sort_is_not_taken_after_it(opened: Maker) -> None:
    store = with_two_files(opened)
    engine = store.engine
    engine.version_cache.clear()
    assert engine.look_up_version("a") == 4
    assert [event.version for event in store.read("a")] == [1, 2, 3, 4]  # as a thread does: offers what it found
    sorted_without_the_cache(store)
    engine.extend_cache(2)
    engine.release(store.unsorted()[0])
    engine.version_cache.take_offers()
    assert engine.version_cache.get("a") is None
    assert store.append(raw("a", "0.1", expected=0))[0][0] == DUPLICATE
    assert store.append(raw("a", "new", expected=4))[0][:2] == (COMMITTED, 5)


def test_a_read_on_a_thread_makes_the_next_one_warm(opened: Maker) -> None:
    store = with_two_files(opened)
    store.sort()
    engine = store.engine
    engine.version_cache.clear()
    with pytest.raises(NotCached):
        engine.replay("a", 1, None, False, 1_000, cached_only=True)
    assert len(engine.replay("a", 1, None, False, 1_000).records) > 0
    lookups = engine.directory.lookups
    assert len(engine.replay("a", 1, None, False, 1_000, cached_only=True).records) > 0
    assert engine.look_up_version("a", cached_only=True) == 4
    assert store.append(raw("a", "new", expected=4))[0][:2] == (COMMITTED, 5)
    assert engine.directory.lookups == lookups


def hashes_of(numbers: range) -> bytes:
    return b"".join((number * 7919).to_bytes(8, "little") for number in reversed(numbers))


@pytest.mark.parametrize("before", [0, 3, 511, 512, 513, 2_000])
@pytest.mark.parametrize("added", [1, 600])
def test_an_extended_value_holds_both_files_and_every_command(before: int, added: int) -> None:
    cache, first = VersionCache(1 << 20), RowRange(3, 17, before)
    cache.put("a", pack(before, [first], [hashes_of(range(before))]) if before else ABSENT)
    cache.extend("a", before + added, RowRange(4, 0, added), before + 1, hashes_of(range(before, before + added)))
    value = cache.get("a") or b""
    assert version_of(value) == before + added
    assert entry_of(value) == DirectoryEntry(before + added, (*([first] if before else []), RowRange(4, 0, added)))
    assert all(may_contain(value, (number * 7919).to_bytes(8, "little")) for number in range(before + added))
    assert not any(may_contain(value, (number * 7919 + 1).to_bytes(8, "little")) for number in range(1, before + added))


def test_a_file_that_does_not_continue_an_entry_drops_it() -> None:
    cache = VersionCache(1 << 20)
    cache.put("a", pack(4, [RowRange(1, 0, 4)], [hashes_of(range(4))]))
    cache.extend("a", 9, RowRange(3, 0, 3), 7, hashes_of(range(3)))
    assert cache.get("a") is None
    cache.extend("b", 9, RowRange(3, 0, 3), 7, hashes_of(range(3)))
    assert cache.get("b") is None


def test_extensions_keep_to_the_bound() -> None:
    bytes_max = 200_000
    cache = VersionCache(bytes_max)
    for number in range(300):
        cache.put(f"a{number}", ABSENT)
    for file in range(1, 60):
        cache.begin_extension()
        for number in range(300):
            cache.extend(f"a{number}", file, RowRange(file, number, 1), file, hashes_of(range(10)))
        values = [*cache.young.values(), *cache._old.values()]
        assert sum(map(len, values)) + 230 * len(values) <= bytes_max + 2_000


@pytest.mark.parametrize("commands", [1, 60])
def test_a_repeated_command_opens_few_indexes_however_many_files_hold_its_aggregate(opened: Maker, commands: int) -> None:
    store, files = opened(), 30
    for file in range(files):
        store.append(*(raw("wide", f"{file}.{number}") for number in range(commands)))
        store.append(raw("filler", f"filler-{file}", NewEvent("T", bytes(7_500 - 110 * commands))))
    count = store.sort()
    assert count >= files - 1
    engine = store.engine
    for loaded in (False, True):  # what each sort has added; what is loaded at once
        if loaded:
            engine.version_cache.clear()
            engine.offer("wide")
        for file in range(files - 1):
            engine.files._indexes.clear()
            assert store.append(raw("wide", f"{file}.0"))[0][:2] == (DUPLICATE, file * commands + 1)
            assert count - engine.files.closed_indexes(range(1, count + 1)) <= BLOCK_FILES


@pytest.mark.parametrize("commands", [1, 200])
def test_a_value_of_many_files_names_the_few_that_may_hold_a_command(commands: int) -> None:
    def key(command_id: bytes) -> bytes:
        return command_id.rjust(8, b"-")

    parts = [RowRange(file, 5, commands) for file in range(1, 23)]
    hashes = [b"".join(key(b"%d" % (place * commands + number)) for number in range(commands)) for place in range(len(parts))]
    whole = pack(22, parts, hashes)
    cache = VersionCache(1 << 20)
    cache.put("a", ABSENT)
    for place, part in enumerate(parts):
        cache.extend("a", place + 1, part, place + 1, hashes[place])
    assert cache.get("a") == whole
    assert entry_of(whole) == DirectoryEntry(22, tuple(parts))
    for place in range(len(parts)):
        for number in {0, commands - 1}:
            command = f"{place * commands + number}"
            assert may_contain(whole, key(command.encode()))
            block = place // BLOCK_FILES * BLOCK_FILES
            assert ranges_with(whole, command, [key]) == tuple(parts[block : block + BLOCK_FILES])
    assert not may_contain(whole, key(b"unknown"))
    assert ranges_with(whole, "unknown", [key]) == ()
