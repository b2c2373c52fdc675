"""A flipped bit in each region of each file: never cut, never treated as "not found", and other records stay readable.

Damage is detected by the reader that needs the bytes. Unsorted files are loaded into memory when the store is opened, so
opening raises `Corrupt`. Of a sorted file opening reads only the header; damage to the rest is reported to its readers and to
no other call. Derived files that opening finds damaged are rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eventstore.chunks.header import RECORDS_FROM
from eventstore.errors import Corrupt
from eventstore.model import Event
from eventstore.records.commit import HEADER_BYTES
from eventstore.store.append import COMMITTED, DUPLICATE, REFUSED
from eventstore.store.sorted.event_index import open_index
from eventstore.store.sorted.index_format import COLUMNS, LOOKED_UP
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker, fill, order
from tests.store.index_bytes import byte_of
from tests.store.stepped import EVENTS, Stepped, contents, order_of_files

AGGREGATES = [f"order-{number}" for number in range(5)]


@pytest.fixture
def truth(opened: Maker) -> tuple[SimulatedDisk, list[Event]]:
    """The disk of a cleanly closed store (two sorted files, two completed, one ongoing), and all its events."""
    store = fill(opened())
    assert order_of_files(store) == ["sorted", "sorted", "completed", "completed", "ongoing"]
    state = store.state()
    store.close()
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk, state


def events(number: int) -> Path:
    return EVENTS / f"{number:010d}.events"


def index(number: int) -> Path:
    return EVENTS / f"{number:010d}.index"


def of(state: list[Event], aggregate_id: str) -> list[Event]:
    return [event for event in state if event.aggregate_id == aggregate_id]


def damaged_by(read: Callable[[], object]) -> Corrupt | None:
    try:
        read()
    except Corrupt as error:
        return error
    return None


# A byte offset in each region of a record, from the start of a record whose aggregate id has 7 bytes and whose
# command id has at least 9.
REGIONS = {
    "mark": 0, "crc": 3, "length": 8, "durable": 13, "sequence": 16, "epoch": 25, "event count": 28, "time": 33,
    "first version": 41, "length of the aggregate id": 48, "reserved": 53,
    "aggregate id": HEADER_BYTES + 4,
    "command id": HEADER_BYTES + 2 + 7 + 2 + 1,
    "event type": HEADER_BYTES + 2 + 7 + 2 + 9 + 4,
    "payload": HEADER_BYTES + 2 + 7 + 2 + 9 + 1 + 6 + 6,
    "trailing length": -2,
}  # fmt: skip


def record_at(disk: SimulatedDisk, number: int, place: int) -> tuple[int, int]:
    """Returns where the record with this number in the file begins and ends."""
    raw, position = disk.content(events(number)), RECORDS_FROM
    for _ in range(place):
        position += int.from_bytes(raw[position + 8 : position + 12], "little")
    return position, position + int.from_bytes(raw[position + 8 : position + 12], "little")


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("number", [3, 5], ids=["completed", "ongoing"])
def test_damage_in_an_unsorted_file_is_reported_at_opening_with_file_and_offset(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], number: int, region: str
) -> None:
    disk, _ = truth
    start, stop = record_at(disk, number, 4)
    disk.flip(events(number), (start if REGIONS[region] >= 0 else stop) + REGIONS[region], 2)
    before = contents(disk)
    for _ in range(2):
        with pytest.raises(Corrupt) as damage:
            opened(disk)
        assert damage.value.fields["file"] == str(events(number))
        assert damage.value.fields["offset"] == start
    assert contents(disk) == before, "nothing was cut, nothing was written"


@pytest.mark.parametrize("number", [1, 3, 5], ids=["sorted", "completed", "ongoing"])
@pytest.mark.parametrize("at", range(0, 128, 5))
def test_damage_in_a_file_header_is_reported_at_opening(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], number: int, at: int
) -> None:
    disk, _ = truth
    disk.flip(events(number), at, 3)
    before = contents(disk)
    with pytest.raises(Exception, match=events(number).name):
        opened(disk)
    assert contents(disk) == before


@pytest.mark.parametrize("at", [-64, -50, -33, -1])
def test_damage_in_a_footer_is_reported_at_opening_if_the_file_is_read_and_harmless_otherwise(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], at: int
) -> None:
    disk, state = truth
    size = len(disk.content(events(1)))
    disk.flip(events(1), size + at, 1)
    store = opened(disk)
    assert store.state() == state
    store.close()
    size = len(disk.content(events(3)))
    disk.flip(events(3), size + at, 1)
    with pytest.raises(Corrupt, match=events(3).name) as damage:
        opened(disk)
    assert damage.value.fields["offset"] == size - 64


@pytest.mark.parametrize("region", REGIONS)
def test_damage_in_a_sorted_file_is_reported_to_its_readers_and_other_records_stay_readable(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], region: str
) -> None:
    disk, state = truth
    victim = "order-2"
    start, stop = _record_of(opened, disk, 1, victim)
    disk.flip(events(1), (start if REGIONS[region] >= 0 else stop) + REGIONS[region], 2)
    store = opened(disk)
    error = damaged_by(lambda: store.read(victim))
    assert error is not None, "never an answer that ignores the damage"
    assert error.fields["file"] == str(events(1))
    assert error.fields["offset"] == start
    for aggregate_id in AGGREGATES:
        if aggregate_id != victim:
            assert store.read(aggregate_id) == of(state, aggregate_id)
    last_in_file = store.engine.files.headers[0].last_sequence
    assert store.read_all(after=last_in_file) == [event for event in state if event.sequence > last_in_file]
    whole = damaged_by(store.read_all)
    assert whole is not None
    assert (whole.fields["file"], whole.fields["offset"]) == (str(events(1)), start)
    later = [event for event in of(state, victim) if event.sequence > last_in_file]
    assert store.read(victim, later[0].version) == later, "the same aggregate in other files"


def _record_of(opened: Maker, disk: SimulatedDisk, number: int, aggregate_id: str) -> tuple[int, int]:
    """Returns the first record of an aggregate in a sorted file."""
    mapped = open_index(disk, index(number))
    ordinal = mapped.find(aggregate_id.encode())
    assert ordinal is not None
    row, _ = mapped.rows_of(ordinal)
    return mapped.extent(row, row + 1)


@pytest.mark.parametrize("number", [1, 3], ids=["sorted", "in memory"])
def test_a_repeated_command_that_cannot_be_read_is_refused_and_not_appended_again(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], number: int
) -> None:
    disk, state = truth
    store = opened(disk)
    header = store.engine.files.headers[number - 1]
    event = next(event for event in state if header.first_sequence <= event.sequence <= header.last_sequence)
    command = int(event.command_id.removeprefix("command-"))
    start, stop = _extent_of(store, number, event)
    disk.flip(events(number), stop - 20, 1)
    (outcome,) = store.append(order(command))
    assert outcome[0] == REFUSED
    assert isinstance(outcome[1], Corrupt)
    assert outcome[1].fields["offset"] == start
    with pytest.raises(Corrupt):
        store.engine.find_command(event.aggregate_id, event.command_id)
    assert store.append(order(command + 5))[0][0] == DUPLICATE, "the other commands are found"
    assert store.append(order(1_000))[0][0] == COMMITTED, "and a new one is appended"


def _extent_of(store: Stepped, number: int, event: Event) -> tuple[int, int]:
    """Returns where the record of the event's commit begins and ends."""
    for file in store.engine.tail.files:
        if file.number == number:
            return file.extent(file.ordinal_at(event.sequence))
    mapped = store.engine.files.index(number)
    row = int(mapped.columns["permutation"][event.sequence - mapped.header.first_sequence])
    return mapped.extent(row, row + 1)


def test_a_valid_record_at_the_wrong_offset_of_a_sorted_file_is_detected(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]]
) -> None:
    disk, _ = truth
    mapped = open_index(disk, index(1))
    starts, lengths = mapped.columns["record"][: mapped.header.rows], mapped.columns["length"][:]
    records = sorted(set(zip(starts.tolist(), lengths.tolist(), strict=True)))
    raw = bytearray(disk.content(events(1)))
    (source, length), (target, _) = next(
        (one, other) for one in records for other in records if one[1] == other[1] and one[0] < other[0]
    )
    raw[target : target + length] = raw[source : source + length]
    disk.replace(events(1), bytes(raw))
    store = opened(disk)
    errors = [damaged_by(partial(store.read, name)) for name in AGGREGATES]
    found = [error for error in errors if error is not None]
    assert [(error.fields["file"], error.fields["offset"]) for error in found] == [(str(events(1)), target)]
    paged = [damaged_by(partial(store.read, name, page_bytes=1)) for name in AGGREGATES]
    assert [error is None for error in paged] == [error is None for error in errors], "however it is read"
    assert damaged_by(store.read_all) is not None


def test_a_valid_record_at_the_wrong_offset_of_an_unsorted_file_is_detected(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]]
) -> None:
    disk, _ = truth
    store = opened(disk)
    file = next(file for file in store.engine.tail.files if file.number == 3)
    extents = [file.extent(ordinal) for ordinal in range(len(file.offsets))]
    (start, stop), (target, _) = next(
        (one, other) for one in extents for other in extents if one[1] - one[0] == other[1] - other[0] and one < other
    )
    raw = bytearray(disk.content(events(3)))
    raw[target : target + stop - start] = raw[start:stop]
    disk.replace(events(3), bytes(raw))
    error = damaged_by(store.read_all)
    assert error is not None
    assert (error.fields["file"], error.fields["offset"]) == (str(events(3)), target)
    assert sum(damaged_by(partial(store.read, name)) is not None for name in AGGREGATES) == 1
    store.close()
    with pytest.raises(Corrupt) as damage:
        opened(disk)
    assert damage.value.fields["offset"] == target


@pytest.mark.parametrize("column", LOOKED_UP)
def test_damage_in_an_index_column_is_reported_to_lookups_that_use_it(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], column: str
) -> None:
    disk, state = truth
    header = open_index(disk, index(1)).header
    disk.flip(index(1), byte_of(header, column, header.rows // 2), 0)
    store = opened(disk)
    for aggregate_id in AGGREGATES:
        error = damaged_by(partial(store.read, aggregate_id))
        assert error is not None, "a small file has one group of rows"
        assert error.fields["file"] == str(index(1))
    (outcome,) = store.append(order(0))
    assert outcome[0] == REFUSED, "the store cannot know whether the command is new"
    assert isinstance(outcome[1], Corrupt)
    last_in_file = store.engine.files.headers[0].last_sequence
    assert store.read_all(after=last_in_file) == [event for event in state if event.sequence > last_in_file]


@pytest.mark.parametrize("column", COLUMNS)
def test_damage_anywhere_in_an_index_never_changes_an_answer(
    opened: Maker, truth: tuple[SimulatedDisk, list[Event]], column: str
) -> None:
    disk, state = truth
    place = open_index(disk, index(2)).header.columns[column]
    for at in sorted({place.offset, place.offset + place.size // 2, place.offset + place.size - 1} if place.size else ()):
        disk.flip(index(2), at, 1)
        store = opened(disk)
        for aggregate_id in AGGREGATES:
            for low in (1, 2, 30):
                error = damaged_by(partial(_compare, store, state, aggregate_id, low))
                assert error is None or error.fields["file"] == str(index(2))
            assert store.engine.version(aggregate_id) == len(of(state, aggregate_id)), "the tail and the directory know it"
        error = damaged_by(partial(_compare_all, store, state))
        assert error is None or error.fields["file"] == str(index(2))
        store.close()
        disk.flip(index(2), at, 1)


def _compare(store: Stepped, state: list[Event], aggregate_id: str, low: int) -> None:
    assert store.read(aggregate_id, low) == of(state, aggregate_id)[low - 1 :]


def _compare_all(store: Stepped, state: list[Event]) -> None:
    assert store.read_all() == state


@pytest.mark.parametrize("at", [0, 9, 20, 60, 88, 120, 3_073, 4_095])
def test_an_index_with_a_damaged_header_is_rebuilt(opened: Maker, truth: tuple[SimulatedDisk, list[Event]], at: int) -> None:
    disk, state = truth
    before = disk.content(index(1))
    disk.flip(index(1), at, 2)
    store = opened(disk)
    assert store.opened.report.indexes_built == [1]
    assert disk.content(index(1)) == before
    assert store.state() == state
    _compare(store, state, "order-3", 1)
