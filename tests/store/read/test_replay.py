"""Replay of one aggregate: every range, both directions, any page size, over sorted and unsorted files."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from eventstore.chunks.files import NotCached
from eventstore.errors import StorageFull
from eventstore.event_identity import LogPosition
from eventstore.model import Event, NewEvent
from eventstore.records.cursors import ManyCursor
from eventstore.records.event_page import decode_page
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import SMALL, Stepped, raw

COUNTS = (1, 3, 1, 1, 5, 2, 1, 4, 1, 2, 2, 1)  # events in each commit


@pytest.fixture
def long_history(opened: Maker) -> Stepped:
    """One aggregate in two sorted files, a completed and the ongoing one, its commits interleaved with others."""
    store = opened()
    number = 0
    for round_ in range(4):
        for count in COUNTS:
            number += 1
            store.append(
                raw("other-before", f"b{number}", NewEvent("Other", bytes(40))),
                raw("wanted", f"w{number}", *(NewEvent("Wanted", bytes([place]) * 30) for place in range(count))),
                raw("other-behind", f"a{number}", NewEvent("Other", bytes(40))),
            )
        store.append(raw("other-before", f"large-{round_}", NewEvent("Large", bytes(5_000))))  # the next goes to another file
        if round_ in (0, 1):
            store.sort()
    return store


def test_every_range_in_both_directions_with_any_page_size_is_right(long_history: Stepped) -> None:
    everything = [event for event in long_history.state() if event.aggregate_id == "wanted"]
    last = len(everything)
    assert last == 4 * sum(COUNTS)
    bounds = [1, 2, 3, 23, 24, 25, 26, 30, 47, 48, 49, 50, 72, 73, last - 1, last, last + 1, last + 50]
    for low, high in itertools.product(bounds, [0, *bounds, None]):
        due = [event for event in everything if low <= event.version and (high is None or event.version <= high)]
        for page_bytes in (1, 200, 1_000, 1 << 20):
            assert long_history.read("wanted", low, high, page_bytes=page_bytes) == due
            assert long_history.read("wanted", low, high, backwards=True, page_bytes=page_bytes) == due[::-1]


def test_an_aggregate_that_does_not_exist_is_empty(long_history: Stepped) -> None:
    for backwards in (False, True):
        assert long_history.read("nobody", backwards=backwards) == []
        assert long_history.read("wante", backwards=backwards) == []


def test_a_page_holds_at_least_one_commit_and_little_more_than_its_limit(long_history: Stepped) -> None:
    for backwards in (False, True):
        page = long_history.engine.replay("wanted", 1, None, backwards, 1)
        assert len({event.command_id for event in decode_page(page.records)}) == 1
        page = long_history.engine.replay("wanted", 1, None, backwards, 600)
        assert 600 <= len(page.records) < 600 + 700


def test_the_last_page_has_no_next_version(long_history: Stepped) -> None:
    last = long_history.engine.version("wanted")
    assert long_history.engine.replay("wanted", 1, None, False, 1 << 20).next is None
    assert long_history.engine.replay("wanted", last, None, False, 1).next is None
    assert long_history.engine.replay("wanted", 1, 1, True, 1).next is None
    assert long_history.engine.replay("wanted", last + 1, None, False, 1).next is None


def test_a_long_walk_through_an_unsorted_file_is_not_made_on_an_event_loop(opened: Maker) -> None:
    store = opened(settings=replace(SMALL, file_size_bytes=4 * 1024 * 1024))
    for name in ("hot", "hotter"):
        store.append(*(raw(name, f"c-{number}") for number in range(3_000)))
    store.append(*(raw("cool", f"c-{number}") for number in range(1_000)))

    def quickly(name: str) -> int:
        page = store.engine.replay(name, 1, None, False, 1_000, cached_only=True)
        return decode_page(page.records)[0].version

    assert quickly("cool") == 1
    for name in ("hot", "hotter"):
        with pytest.raises(NotCached):
            quickly(name)
    assert [len(store.read(name)) for name in ("hot", "hotter")] == [3_000, 3_000]
    assert [quickly(name) for name in ("hot", "hotter", "hot", "hotter")] == [1, 1, 1, 1]


def test_a_replay_does_not_see_unwritten_commits(long_history: Stepped) -> None:
    before = long_history.read("wanted")
    long_history.engine.append_batch([raw("wanted", "pending"), raw("new", "pending")])
    assert long_history.read("wanted") == before
    assert long_history.read("wanted", backwards=True) == before[::-1]
    assert long_history.read("new") == []
    assert long_history.engine.version("wanted") == len(before)
    assert long_history.engine.find_command("wanted", "pending") is None
    long_history.persist()
    assert len(long_history.read("wanted")) == len(before) + 1
    assert len(long_history.read("new")) == 1
    assert long_history.engine.find_command("wanted", "pending") is not None


def test_paging_continues_while_the_aggregate_grows_and_is_sorted(long_history: Stepped) -> None:
    found: list[Event] = []
    version, number = 1, 0
    while True:
        page = long_history.engine.replay("wanted", version, None, False, 500)
        found += [event for event in decode_page(page.records) if event.version >= version]
        if page.next is None:
            break
        version = page.next
        number += 1
        if number < 20:
            long_history.append(raw("wanted", f"more-{number}"))
        if number == 10:
            long_history.sort()
    assert [event.version for event in found] == list(range(1, long_history.engine.version("wanted") + 1))


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Switches threads after microseconds, so that they interrupt each other often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_readers_on_threads_never_see_half_a_rollback(opened: Maker) -> None:
    store = opened(SimulatedDisk(0))
    for number in range(30):
        store.append(raw(f"order-{number % 3}", f"command-{number}"))
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    disk.capacity_bytes = disk.allocated_bytes

    def fail_to_append(attempt: int) -> None:
        commits = (raw(f"order-{(attempt + n) % 3}", f"{attempt}-{n}", NewEvent("N", bytes(300))) for n in range(300))
        with pytest.raises(StorageFull):
            store.append(*commits)

    fail_to_append(-1)  # uses up the reserved space
    expected = {name: store.read(name) for name in ("order-0", "order-1", "order-2")}
    everything = store.state()
    stop, wrong = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            for name, events in expected.items():
                if store.read(name, page_bytes=300) != events or store.read(name, backwards=True) != events[::-1]:
                    wrong.append(name)
            if store.read_all(page_bytes=300) != everything:
                wrong.append("everything")

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for attempt in range(60):
            fail_to_append(attempt)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert store.state() == everything


def test_several_aggregates_at_every_place_with_any_page_size_are_right(long_history: Stepped) -> None:
    everything, engine = long_history.state(), long_history.engine
    ends = [event.sequence for event, after in itertools.pairwise([*everything, None]) if not _same_commit(event, after)]
    for place, page_bytes in itertools.product(ends[::7], (1, 400, 1 << 20)):
        cursor = ManyCursor(["other-behind", "nobody", "wanted"])
        while not cursor.done:
            cursor.take(engine.replay_many(cursor.rows, LogPosition(place), page_bytes))
        before = [event for event in everything if event.sequence <= place]
        assert cursor.events == {name: [each for each in before if each.aggregate_id == name] for name in cursor.events}
        assert cursor.place is not None
        assert cursor.place.sequence == place


def _same_commit(event: Event, after: Event | None) -> bool:
    return after is not None and after.command_id == event.command_id


def test_a_place_within_a_commit_is_that_of_its_end(long_history: Stepped) -> None:
    commit = [event for event in long_history.state() if event.command_id == "w5"]
    assert len(commit) == COUNTS[4]
    for event in commit:
        assert long_history.engine.replay_many([("wanted", 1)], LogPosition(event.sequence), 1).next == commit[-1].sequence


def test_a_read_up_to_an_early_place_reads_nothing_of_the_files_after_it(long_history: Stepped) -> None:
    engine = long_history.engine
    first = engine.files.headers[0]
    page = engine.replay("wanted", 1, None, False, 1 << 20, through=first.first_sequence)
    assert max(event.sequence for event in decode_page(page.records)) <= first.last_sequence
    assert page.next is None
