"""The index of a sorted file: its columns point at the right bytes, and a lookup touches few of them."""

from __future__ import annotations

import gc
import itertools
import struct
import weakref
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore.errors import Corrupt
from eventstore.model import Event, NewEvent
from eventstore.settings.store import StoreSettings
from eventstore.store.append import REFUSED
from eventstore.store.sorted import index_columns, index_format
from eventstore.store.sorted.command_hash import hash_with
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.index_format import ALIGN, COLUMNS, FORMAT, HEADER, HEADER_BYTES, NARROW_ROWS, blocks
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.index_bytes import byte_of
from tests.store.stepped import EVENTS, Stepped, raw

FILE = EVENTS / "0000000001.events"
INDEX = EVENTS / "0000000001.index"
LARGE_FILES = StoreSettings(file_size_bytes=8 << 20, preallocate_bytes=1 << 20, sort=False)

SIZES = (0, 1, 31, 32, 255, 256, 65_535, 65_536)
TYPES = ("t", "t" * 31, "t" * 32, "t" * 255, "ü" * 16, "€" * 85)


def sorted_file(opened: Maker, *batches: list[tuple[str, str, list[NewEvent]]]) -> tuple[Stepped, EventIndex, list[Event]]:
    """Returns a store whose first file holds these commits and is sorted, its index, and its events in commit order."""
    store = opened(settings=LARGE_FILES)
    for batch in batches:
        store.append(*(raw(name, command, *events, when=None) for name, command, events in batch))
    count = store.engine.visible_sequence
    state = store.state()
    store.append(raw("zzz", "zzz", *[NewEvent("Filler", bytes(4 << 20))] * 2))
    assert store.sort(files=1) == 1
    assert store.engine.files.headers[0].last_sequence == count
    return store, store.engine.files.index(1), state


def check_columns(store: Stepped, index: EventIndex, state: list[Event]) -> None:
    """Asserts that every column agrees with the events, and that every offset points exactly at its bytes."""
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    content = disk.content(FILE)
    columns, hash_of = index.columns, hash_with(index.header.command_key)
    rows = sorted(state, key=lambda event: (event.aggregate_id.encode(), event.version))
    assert index.header.rows == len(rows)
    types, previous = index.type_names(), None
    for row, event in enumerate(rows):
        ordinal = int(columns["ordinal"][row])
        assert index.aggregate_id(ordinal) == event.aggregate_id.encode()
        assert (int(columns["version"][row]), int(columns["sequence"][row])) == (event.version, event.sequence)
        assert int(columns["time"][row]) == event.timestamp
        assert types[int(columns["type"][row])] == event.type
        assert columns["command"][row : row + 1].tobytes() == hash_of(event.command_id.encode())
        assert int(columns["format"][row]) == event[8]
        start, size = int(columns["data"][row]), int(columns["data_len"][row])
        assert content[start : start + size] == event.data
        assert size == len(event.data)
        start, size = int(columns["meta"][row]), int(columns["meta_len"][row])
        assert (start > 0) == (event.metadata is not None)
        assert content[start : start + size] == (event.metadata or b"")
        assert size == len(event.metadata or b"")
        record, length = int(columns["record"][row]), int(columns["length"][row])
        assert content[record : record + 2] == b"\xc4\x36"
        assert struct.unpack_from("<I", content, record + 8) == (length,)
        assert record < int(columns["data"][row]) < record + length
        assert index.commit_begin(row) <= row < index.commit_end(row)
        same = previous is not None and (previous.aggregate_id, previous.command_id) == (event.aggregate_id, event.command_id)
        assert same == (row > 0 and int(columns["record"][row - 1]) == record)
        assert same == (int(columns["place"][row]) > 0)
        assert (index.commit_end(row) == row + 1) == (row + 1 == len(rows) or int(columns["record"][row + 1]) != record)
        previous = event
    assert int(columns["record"][len(rows)]) == index.header.end
    by_sequence = [rows[row].sequence for row in columns["permutation"][:].tolist()]
    assert by_sequence == list(range(1, len(rows) + 1)), "the permutation restores the commit order"
    index.verify()


@pytest.mark.parametrize("type_", TYPES, ids=lambda name: f"type of {len(name.encode())} bytes")
def test_columns_point_exactly_at_their_bytes_for_every_size_of_header(opened: Maker, type_: str) -> None:
    events = [
        NewEvent(type_, bytes([65 + place]) * size, meta)
        for place, size in enumerate(SIZES)
        for meta in (None, b"", b"m", b"n" * 255, b"o" * 256, b"p" * 65_536)
    ]
    single = [("order-1", f"single-{place}", [event]) for place, event in enumerate(events)]
    store, index, state = sorted_file(opened, single[:10], [("order-1", "all", events)], [("i" * 255, "c" * 255, events[:3])])
    check_columns(store, index, state)


names = st.sampled_from(["a", "b", "ä", "i" * 255, "order-17"])
small_events = st.builds(
    NewEvent,
    st.sampled_from(TYPES),
    st.one_of(st.binary(max_size=40), st.just({"json": True})),
    st.one_of(st.none(), st.binary(max_size=3), st.just({"json": 1})),
)
commits = st.tuples(names, st.lists(small_events, min_size=1, max_size=5))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(st.lists(commits, min_size=1, max_size=25))
def test_columns_agree_with_the_events(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, list[NewEvent]]]
) -> None:
    stores: list[Stepped] = []

    def make(**changes: object) -> Stepped:
        stores.append(Stepped(SimulatedDisk(0), tmp_path_factory.mktemp("lmdb"), **changes))  # type: ignore[arg-type]
        return stores[-1]

    batch = [(name, f"command-{place}", events) for place, (name, events) in enumerate(made)]
    store, index, state = sorted_file(make, batch)
    check_columns(store, index, state)
    store.abandon()


@pytest.fixture
def wide(opened: Maker) -> tuple[Stepped, EventIndex]:
    """3,000 aggregates of two commits each in one sorted file."""
    ids = [f"customer-{number * 7919 % 3000:05d}" for number in range(3_000)]
    batches = [[(name, f"{turn}-{name}", [NewEvent("T", b"d")]) for name in ids] for turn in range(2)]
    store, _, _ = sorted_file(opened, *batches)
    return store, open_index(store.disk, INDEX)


def test_exactly_the_existing_aggregates_are_found(wide: tuple[Stepped, EventIndex]) -> None:
    _, index = wide
    for number in range(3_000):
        ordinal = index.find(f"customer-{number:05d}".encode())
        assert ordinal == number
        assert index.rows_of(ordinal) == (2 * number, 2 * number + 2)
    for missing in (b"", b"a", b"customer-", b"customer-00000x", b"customer-02999x", b"customer-03000", b"z", b"\xff" * 255):
        assert index.find(missing) is None


class Touched:
    """The bytes of a mapped index. It records which of them were read, by slices."""

    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.bytes: set[int] = set()

    def __getitem__(self, key: slice) -> memoryview:
        self.bytes.update(range(*key.indices(len(self.content))))
        return self.content[key]


def test_a_look_up_touches_one_block_of_a_hundred_and_one_group_of_rows(wide: tuple[Stepped, EventIndex]) -> None:
    _, index = wide
    watched = Touched(index._map)
    index._map = watched  # type: ignore[assignment] # it counts what the checksums cover, and reads the same
    ordinal = index.find(b"customer-01234")
    assert ordinal == 1_234
    first, last = index.rows_of(ordinal)
    assert sum(index._sound_blocks) == 1, "one block was verified"
    tables = [index.header.columns[name] for name in ("ids", "id_ends", "first_row", "extent_crc", "id_frames")]
    assert len(watched.bytes) <= sum(place.size for place in tables) // 50
    watched.bytes.clear()
    index.check_rows(first, last)
    assert sum(index._sound_rows) == 1, "one group was verified"
    looked_up = sum(index.header.columns[name].size for name in index_format.LOOKED_UP)
    assert len(watched.bytes) <= looked_up * 1024 / 6_000 + 16 * len(NARROW_ROWS)
    watched.bytes.clear()
    assert index.find(b"customer-01235") == 1_235
    assert not watched.bytes, "verified already"


def test_only_as_many_permutations_are_kept_as_fit(wide: tuple[Stepped, EventIndex], monkeypatch: pytest.MonkeyPatch) -> None:
    store, index = wide
    whole = index.columns["permutation"][:]
    again = open_index(store.disk, INDEX)
    monkeypatch.setattr(index_columns, "PERMUTATIONS_BYTES_MAX", whole.nbytes)
    assert again.columns["permutation"][:].tolist() == whole.tolist()
    assert len(index_columns._Permutation._kept) == 1
    assert index.columns["permutation"][5:9].tolist() == whole[5:9].tolist(), "it is made again"


def test_with_the_last_reference_to_an_index_its_map_goes(wide: tuple[Stepped, EventIndex]) -> None:
    """Collected only now and then, dropped indexes would hold descriptors until there are none left."""
    store, _ = wide
    gc.collect()
    gc.disable()
    try:
        index = open_index(store.disk, INDEX)
        assert len(index.columns["permutation"][:]) == len(index.columns["data"][:]) == 6_000
        index.verify()
        kept = [weakref.ref(index), weakref.ref(index.columns["sequence"]), weakref.ref(index.columns["permutation"])]
        del index
        assert [each() for each in kept] == [None, None, None]
    finally:
        gc.enable()


def test_prefixes_are_ranges_of_ordinals(wide: tuple[Stepped, EventIndex]) -> None:
    _, index = wide
    assert index.with_prefix(b"customer-012") == (1_200, 1_300)
    assert index.with_prefix(b"customer-") == (0, 3_000)
    assert index.with_prefix(b"") == (0, 3_000)
    assert index.with_prefix(b"b") == (0, 0)
    assert index.with_prefix(b"d") == (3_000, 3_000)


def test_commands_are_found_by_their_hashes(wide: tuple[Stepped, EventIndex]) -> None:
    _, index = wide
    first, last = index.rows_of(77)
    assert index.rows_with_command(first, last, b"1-customer-00077") == [155]
    assert index.rows_with_command(first, last, b"2-customer-00077") == []
    hash_of = hash_with(index.header.command_key)
    assert index.command_hashes(first, last) == hash_of(b"0-customer-00077") + hash_of(b"1-customer-00077")


def test_blocks_divide_aggregates_evenly() -> None:
    for aggregates in (1, 2, 99, 100, 101, 250, 12_345):
        starts = blocks(aggregates)
        assert starts[0] == 0
        assert starts[-1] == aggregates
        assert len(starts) - 1 == min(100, aggregates)
        sizes = {end - start for start, end in itertools.pairwise(starts)}
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) > 0


def test_the_header_locates_each_column_and_columns_are_aligned(wide: tuple[Stepped, EventIndex]) -> None:
    store, index = wide
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    content = disk.content(INDEX)
    assert content[:8] == b"EVTINDEX"
    assert HEADER.size == 88
    assert struct.unpack_from("<HHI", content, 8) == (FORMAT, len(COLUMNS), HEADER_BYTES)
    assert (index.header.smallest, index.header.largest) == (b"customer-00000", b"customer-02999")
    position = HEADER_BYTES
    for name in COLUMNS:
        place = index.header.columns[name]
        assert place.offset == position
        assert place.offset % ALIGN == 0
        position += -(-place.size // ALIGN) * ALIGN
        assert place.items == 6_000 + (name == "record") or name not in NARROW_ROWS
    assert position == len(content)
    assert index.header.belongs_to(store.engine.files.headers[0])


def test_rows_of_another_aggregate_are_corrupt(wide: tuple[Stepped, EventIndex]) -> None:
    _, index = wide
    assert index.ordinal_of(b"customer-00005", 10, 12) == 5
    for name, first, last in ((b"customer-00006", 10, 12), (b"customer-00005", 10, 13), (b"customer-00005", 9_000, 9_002)):
        with pytest.raises(Corrupt):
            index.ordinal_of(name, first, last)


def test_damage_is_reported_with_the_path(wide: tuple[Stepped, EventIndex]) -> None:
    store, index = wide
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    disk.flip(INDEX, index.header.columns["ids"].offset + 14 * 1_234, 0)
    damaged = open_index(disk, INDEX)
    with pytest.raises(Corrupt) as damage:
        damaged.find(b"customer-01234")
    assert damage.value.fields["file"] == str(INDEX)
    assert damaged.find(b"customer-00001") == 1, "the other blocks are sound"
    with pytest.raises(Corrupt):
        damaged.verify()
    assert Path(str(damage.value.fields["file"])).suffix == ".index"


@pytest.mark.parametrize("column", index_format.LOOKED_UP)
def test_damage_in_the_middle_of_a_long_history_never_shortens_it(opened: Maker, column: str) -> None:
    """The history is longer than one checksum covers: the damage is in rows between its ends."""
    history = [
        [("order", f"command-{number}-{place}", [NewEvent("T", bytes(place % 7))]) for place in range(500)]
        for number in range(8)
    ]
    store, index, state = sorted_file(opened, *history)
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    at = byte_of(index.header, column, 2_000)
    store.close()
    disk.flip(INDEX, at, 3)
    store = opened(disk, settings=LARGE_FILES)
    for low, high in ((1, None), (1_990, 2_010), (2_000, None)):
        with pytest.raises(Corrupt) as damage:
            store.read("order", low, high, page_bytes=100_000)
        assert damage.value.fields["file"] == str(INDEX)
    ((status, error, _),) = store.append(raw("order", "command-4-0", NewEvent("T")))
    assert (status, type(error)) == (REFUSED, Corrupt), "the store cannot know whether the command is new"
    assert len(state) == 4_000


def test_an_event_takes_about_20_bytes_of_index(opened: Maker) -> None:
    """As OPERATIONS says, whatever its size: 8 for the hash of its command, and what the other columns need."""
    commits = [(f"order-{number % 1_000:08d}", f"command-{number}", [NewEvent("T", bytes(40))]) for number in range(8_000)]
    store, _, state = sorted_file(opened, commits)
    assert isinstance(store.disk, SimulatedDisk)
    assert 15 < (len(store.disk.content(INDEX)) - HEADER_BYTES) / len(state) < 25
