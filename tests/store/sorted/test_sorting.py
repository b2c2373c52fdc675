"""Sorting a completed file is a pure function with one commit point, and every step can be repeated."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from eventstore.chunks.header import RECORDS_FROM
from eventstore.errors import Corrupt
from eventstore.model import Event
from eventstore.store.sorted.sorting import sort_file, switch
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.conftest import Maker, fill, order
from tests.store.stepped import DATA, EVENTS, Stepped, forget_directory, order_of_files, spare_the_probe


def on_disk(store: Stepped) -> SimulatedDisk:
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk


def unsorted_store(opened: Maker, seed: int = 0, directory: str = "lmdb") -> Stepped:
    store = opened(SimulatedDisk(seed), directory)
    for number in range(60):
        store.append(order(number))
    return store


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_killed_at_any_step_of_sort_and_replace_one_generation_serves_and_the_sort_runs_again(
    mode: CrashMode, opened: Maker, tmp_path: Path
) -> None:
    rehearsal = unsorted_store(opened, directory="rehearsal")
    state, count = rehearsal.state(), -on_disk(rehearsal).operations
    rehearsal.sort(files=1)
    count += on_disk(rehearsal).operations
    for seed in range(3):
        for nth in range(1, count + 2):
            store = unsorted_store(opened, seed, f"{seed}-{nth}")
            disk = on_disk(store)
            if nth <= count:
                disk.crash_at(nth)
            with suppress(SimulatedCrash):
                store.sort(files=1)
            store.abandon()
            spare_the_probe(tmp_path / f"{seed}-{nth}")
            disk = disk.crash(mode)
            store = opened(disk, f"{seed}-{nth}")
            assert store.state() == state, (seed, nth, disk.trace[-5:])
            assert order_of_files(store)[0] == "sorted" if nth > count else order_of_files(store)[0] in ("completed", "sorted")
            assert not [name for name in disk.names(EVENTS) if name.endswith(".tmp")]
            assert ("0000000001.index" in disk.names(EVENTS)) == (order_of_files(store)[0] == "sorted")
            store.sort()
            assert store.state() == state
            assert set(order_of_files(store)[:-1]) == {"sorted"}
            store.close()


def test_between_any_two_steps_of_a_sort_all_requests_are_answered(opened: Maker) -> None:
    store = unsorted_store(opened)
    engine, state = store.engine, store.state()

    def look() -> None:
        assert store.state() == state
        for number in range(5):
            expected = [event for event in state if event.aggregate_id == f"order-{number}"]
            assert store.read(f"order-{number}") == expected
            assert store.read(f"order-{number}", backwards=True, page_bytes=500) == expected[::-1]
            assert engine.version(f"order-{number}") == len(expected)
        assert all(outcome[0] == 1 for number in range(60) for outcome in store.append(order(number))), "duplicates"

    (file, *_) = store.unsorted()
    look()
    sort_file(engine.files.folder, 1)
    look()
    switch(engine.files.folder, 1)
    look()
    engine.use_sorted(1)
    look()
    engine.directory.add_file(engine.files.index(1))
    look()
    for aggregate_id in file.heads:
        engine.version_cache.forget(aggregate_id)
        look()
    engine.release(file)
    look()


def records_of(raw: bytes, end: int) -> list[bytes]:
    found, position = [], RECORDS_FROM
    while position < end:
        length = int.from_bytes(raw[position + 8 : position + 12], "little")
        found.append(raw[position : position + length])
        position += length
    return found


def test_a_sorted_file_holds_the_same_records_under_the_same_checksum(opened: Maker) -> None:
    store = unsorted_store(opened)
    disk = on_disk(store)
    path = EVENTS / "0000000002.events"
    before, raw = store.engine.files.headers[1], disk.content(path)
    store.sort()
    after, sorted_raw = store.engine.files.headers[1], disk.content(path)
    assert (after.checksum, after.records, after.end) == (before.checksum, before.records, before.end)
    assert (after.first_sequence, after.last_sequence) == (before.first_sequence, before.last_sequence)
    unsorted, in_order = records_of(raw, before.end), records_of(sorted_raw, after.end)
    assert unsorted != in_order
    assert sorted(unsorted) == sorted(in_order), "copied, never re-encoded"
    assert raw[before.end :] == sorted_raw[after.end :], "and the same footer"


@pytest.mark.usefixtures("without_key")
def test_sorting_is_a_pure_function(opened: Maker) -> None:
    stores = [unsorted_store(opened, seed, f"{seed}") for seed in (0, 0)]
    contents = []
    for store in stores:
        disk = on_disk(store)
        raw = disk.content(DATA / "store.json")
        store.sort()
        contents.append([_without_uuid(disk.content(EVENTS / name), raw) for name in disk.names(EVENTS) if "0001" in name])
    assert contents[0] == contents[1]


def _without_uuid(raw: bytes, document: bytes) -> bytes:
    import json
    import uuid

    own = uuid.UUID(json.loads(document)["store"]).bytes
    covered = raw.replace(own, bytes(16))
    return covered[:124] + covered[128:4092] + covered[4096:]  # except in the checksums of the headers, which cover it


def test_sorting_a_sorted_file_writes_nothing_but_the_same_index_again(opened: Maker) -> None:
    store = unsorted_store(opened)
    store.sort()
    disk = on_disk(store)
    before = {name: disk.content(EVENTS / name) for name in disk.names(EVENTS)}
    sort_file(store.engine.files.folder, 1)
    assert "0000000001.events.tmp" not in disk.names(EVENTS)
    switch(store.engine.files.folder, 1)
    assert {name: disk.content(EVENTS / name) for name in disk.names(EVENTS)} == before


def closed_store(opened: Maker) -> tuple[SimulatedDisk, list[Event]]:
    store = fill(opened())
    state, disk = store.state(), on_disk(store)
    store.close()
    return disk, state


def test_an_index_of_another_file_is_detected_and_rebuilt(opened: Maker) -> None:
    disk, state = closed_store(opened)
    own = disk.content(EVENTS / "0000000001.index")
    disk.replace(EVENTS / "0000000001.index", disk.content(EVENTS / "0000000002.index"))
    store = opened(disk)
    assert store.opened.report.indexes_built == [1]
    assert disk.content(EVENTS / "0000000001.index") == own
    assert store.state() == state


def test_an_index_of_another_store_is_detected_and_rebuilt(opened: Maker) -> None:
    disk, state = closed_store(opened)
    other, _ = closed_store(lambda *args, **kwargs: opened(SimulatedDisk(5), "other"))
    disk.replace(EVENTS / "0000000001.index", other.content(EVENTS / "0000000001.index"))
    store = opened(disk)
    assert store.opened.report.indexes_built == [1]
    assert store.state() == state


@pytest.mark.parametrize("content", [b"", b"EVTINDEX", bytes(5_000)])
def test_a_file_that_is_not_an_index_is_rebuilt(opened: Maker, content: bytes) -> None:
    disk, state = closed_store(opened)
    disk.replace(EVENTS / "0000000002.index", content)
    store = opened(disk)
    assert store.opened.report.indexes_built == [2]
    assert store.state() == state


def test_an_index_of_an_unsorted_file_is_removed(opened: Maker) -> None:
    disk, state = closed_store(opened)
    disk.replace(EVENTS / "0000000003.index", disk.content(EVENTS / "0000000002.index"))
    store = opened(disk)
    assert "0000000003.index" not in disk.names(EVENTS)
    assert store.state() == state


def test_deleting_every_derived_file_loses_nothing(opened: Maker, tmp_path: Path) -> None:
    disk, state = closed_store(opened)
    for name in disk.names(EVENTS):
        if name.endswith((".index", ".previous")):
            disk.remove(EVENTS / name)
    for name in disk.names(DATA):
        if name.startswith("recent") or name.endswith(".previous"):
            disk.remove(DATA / name)
    forget_directory(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.indexes_built == [1, 2]
    assert store.state() == state
    for number in range(100):
        assert store.append(order(number))[0][0] == 1, "every repeated command is still known"
    assert store.state() == state


def test_an_unsorted_file_before_a_sorted_one_is_sorted_at_opening(opened: Maker) -> None:
    store = unsorted_store(opened)
    state, disk = store.state(), on_disk(store)
    sort_file(store.engine.files.folder, 2)
    switch(store.engine.files.folder, 2)
    store.close()
    store = opened(disk)
    assert order_of_files(store)[:2] == ["sorted", "sorted"]
    assert store.state() == state
    assert [store.append(order(number))[0][0] for number in range(60)] == [1] * 60


def test_a_damaged_file_is_not_sorted_and_its_readable_records_are_served(opened: Maker) -> None:
    store = unsorted_store(opened)
    disk, state = on_disk(store), store.state()
    file = store.unsorted()[0]
    start, stop = file.extent(5)
    disk.flip(EVENTS / "0000000001.events", stop - 30, 0)
    with pytest.raises(Corrupt) as damage:
        store.sort(files=1)
    assert damage.value.fields["offset"] == start
    assert order_of_files(store)[0] == "completed"
    last = store.engine.files.headers[0].last_sequence
    assert store.read_all(after=last) == [event for event in state if event.sequence > last]


def test_only_completed_files_are_ever_mapped(opened: Maker) -> None:
    store = fill(opened())
    store.state()
    for number in range(5):
        store.read(f"order-{number}")
    disk = on_disk(store)
    mapped = {name for name, node in disk._names.live[str(EVENTS)].items() if node.mapped}
    states = dict(enumerate(order_of_files(store), 1))
    assert mapped
    assert all(states[int(name[:10])] in ("completed", "sorted") for name in mapped)
    store.append(*(order(number) for number in range(200, 260)))
    store.sort()  # the simulated disk refuses to truncate a mapped file
    assert len(store.state()) == store.engine.visible_sequence
