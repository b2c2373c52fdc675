"""The store that docs/FORMAT.md shows is what the engine writes: byte for byte, step by step, file by file."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import pytest
import trio
from crc32c import crc32c

import eventstore as es
from eventstore import flat
from eventstore.chunks import witness
from eventstore.chunks.documents import write_document
from eventstore.model import ANY, NewEvent
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import event_folder
from eventstore.store.opening import OpenStore, open_folder
from eventstore.store.sorted import command_hash
from eventstore.store.sorted import index_format as index
from eventstore.store.sorted.directory_recovery import OPEN_MARK
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.sorted.sorting import sort_file, switch
from tests.documents.format_page import TEXT, blocks, example_bytes, read, steps, table
from tests.simulated_disk import SimulatedDisk

DATA, EVENTS = Path("/data"), Path("/data/events")
FIRST, INDEX = EVENTS / "0000000001.events", EVENTS / "0000000001.index"
STORE = uuid.UUID(bytes=bytes(range(16)))
KEY = bytes(range(16, 32))


@dataclass
class Example:
    """The store that the page shows, its first file in three states, and the operations between them."""

    disk: SimulatedDisk
    opened: OpenStore
    folder: Path
    ongoing: bytes
    completed: bytes
    sorted: bytes
    roll: list[str]
    sort: list[str]

    @property
    def index(self) -> EventIndex:
        return self.opened.engine.files.index(1)


def append(opened: OpenStore, aggregate_id: str, command_id: str, *events: NewEvent) -> None:
    engine = opened.engine
    engine.append_batch([(aggregate_id, ANY, command_id, None, flat.encode(flat.chain(events)))])
    while (segment := engine.take()) is not None:
        engine.write(segment)
        engine.mark_written(segment, durable=True)


def traced(disk: SimulatedDisk, act: Callable[[], object]) -> list[str]:
    """Runs `act` and returns its operations as the page writes them: without numbers, folders and offsets."""
    before = len(disk.trace)
    act()
    found = []
    for line in disk.trace[before:]:
        _, operation, *words = line.split()
        found.append(" ".join([operation, *(Path(word).name for word in words if word.startswith("/"))]))
    return found


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    monkeypatch.setattr(witness, "new_key", lambda: witness.NO_KEY)  # otherwise it is random, and the records with it
    monkeypatch.setattr(command_hash, "new_key", lambda: KEY)
    disk = SimulatedDisk(0)
    disk.make_folder(EVENTS)
    event_folder(disk, DATA, STORE).create()
    write_document(disk, DATA / "store.json", {"format": 1, "store": str(STORE), "created": 1_700_000_000_000_000})
    settings = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False)
    opened = open_folder(DATA, settings, files=disk, directory=tmp_path, clock=lambda: 1_700_000_000.0)
    append(opened, "order-7", "c-1", NewEvent("OrderPlaced", {"total": 12}))
    append(opened, "order-42", "c-2", NewEvent("OrderPlaced", {"total": 5}, {"by": "web"}), NewEvent("OrderPaid", b"\x01\x02"))
    ongoing = disk.content(FIRST)
    roll = traced(disk, lambda: append(opened, "order-7", "c-3", NewEvent("OrderPrinted", bytes(4000))))
    completed = disk.content(FIRST)
    engine = opened.engine
    sort = traced(disk, lambda: sort_file(engine.files.folder, 1)) + traced(disk, lambda: switch(engine.files.folder, 1))
    file = engine.use_sorted(1)
    engine.directory.add_file(engine.files.index(1))
    engine.release(file)
    yield Example(disk, opened, tmp_path, ongoing, completed, disk.content(FIRST), roll, sort)
    engine.directory.close()


def test_the_header_and_the_records_of_the_example_are_what_the_engine_writes(example: Example) -> None:
    raw, first, second = example.ongoing, example_bytes("record-1"), example_bytes("record-2")
    assert raw[:128].hex(" ") == example_bytes("header-ongoing").hex(" ")
    assert raw[4096:4199].hex(" ") == first.hex(" ")
    assert raw[4199:4331].hex(" ") == second.hex(" ")
    assert not any(raw[128:4096] + raw[4331:])


def test_the_completed_and_the_sorted_file_are_what_the_document_says(example: Example) -> None:
    first, second, footer = example_bytes("record-1"), example_bytes("record-2"), example_bytes("footer")
    assert example.completed[4096:] == first + second + footer
    assert example.sorted[4096:] == second + first + footer
    assert example.sorted.index(first) == 4228
    for raw, flags in ((example.completed, 1), (example.sorted, 3)):
        header = read("chunk-header", raw)
        assert (header["flags"], header["last_sequence"], header["end"], header["records"]) == (flags, 3, 4331, 2)
        assert header["checksum"] == read("chunk-footer", footer)["checksum"] == 0x49CF07F9 + 0x9C2FAE7E
        assert header["crc"] == crc32c(raw[:124])


def test_a_record_reads_as_flat_msgpack_with_everything_where_the_document_says(example: Example) -> None:
    raw = example.completed[4199:4331]
    event_1, event_2 = (3, "OrderPlaced", b'{"total":5}', b'{"by":"web"}'), (0, "OrderPaid", b"\x01\x02", None)
    assert flat.decode_trusted(raw, 4 + 4 * 2) == (raw[2:56], "order-42", "c-2", *event_1, *event_2, 132)
    found = read("commit-header", raw)
    assert found == {
        "mark": 0xC4, "own_mark": 54, "crc": crc32c(raw[6:]), "witness": 0, "length": 132, "durable": 4199, "sequence": 2,
        "epoch": 1, "count": 2, "time": 1_700_000_000_000_000, "first_version": 1, "id_length": 8, "command_length": 3,
        "fingerprint": bytes(6),
    }  # fmt: skip
    assert read("record-trailer", raw[-5:]) == {"mark": 0xCE, "length": 132}
    assert len(raw) == 65 + 8 + 3 + len(flat.encode(event_1 + event_2))


def test_a_roll_is_made_of_these_steps(example: Example) -> None:
    assert example.roll == steps("roll")


def test_sorting_and_the_switch_are_made_of_these_steps(example: Example) -> None:
    assert example.sort == steps("sort")


def test_the_documents_are_those_of_the_example(example: Example) -> None:
    example.opened.engine.close()
    assert example.disk.content(DATA / "store.json").decode() == blocks("json")["store.json"]
    assert example.disk.content(EVENTS / "chunks.json").decode() == blocks("json")["chunks.json"]


def test_the_directory_holds_what_the_document_says(example: Example) -> None:
    example.opened.engine.directory.close()
    with lmdb.open(str(example.folder), max_dbs=2, readonly=True, lock=False) as environment, environment.begin() as txn:
        aggregates, files = (
            {key: bytes(value) for key, value in txn.cursor(environment.open_db(name, txn, create=False))}
            for name in (b"aggregates-2", b"files-2")
        )
    assert aggregates.keys() == {b"order-42", b"order-7"}
    value = aggregates[b"order-42"]
    assert read("directory-value", value) == {"crc": crc32c(value[4:], crc32c(b"order-42")), "version": 2}
    assert read("directory-place", value[12:]) == {"file": 1, "first_row": 0, "rows": 2}
    assert read("directory-place", aggregates[b"order-7"][12:]) == {"file": 1, "first_row": 2, "rows": 1}
    header = read("chunk-header", example.sorted)
    (key,) = files
    assert key == (1).to_bytes(4, "big")
    assert read("directory-file", files[key]) == {"checksum": header["checksum"], "end": header["end"]}


# -- the index ------------------------------------------------------------------------------------------------------------


def entry_of(raw: bytes, name: str) -> tuple[str, int, int]:
    """The dtype of a column, where it begins, and its items."""
    for place in range(int(read("index-header", raw)["columns"])):
        entry = read("index-entry", raw[88 + 32 * place :])
        if bytes(entry["name"]).rstrip(b"\0").decode() == name:
            dtype = bytes(entry["dtype"]).rstrip(b"\0").decode()
            width = int(dtype[1:]) if dtype[0] == "N" else np.dtype(dtype).itemsize
            begin, items = int(entry["offset"]), int(entry["items"])
            assert begin % 64 == 0
            assert crc32c(raw[begin : begin + items * width]) == entry["crc"]
            return dtype, begin, items
    raise AssertionError(f"there is no column {name}")


def planes_of(raw: bytes, name: str) -> list[bytes]:
    """The planes of a narrow column as the page describes them; of another column, its bytes."""
    dtype, begin, items = entry_of(raw, name)
    widths = [size for size in (8, 4, 2, 1) if int(dtype[1:]) & size] if dtype[0] == "N" else [np.dtype(dtype).itemsize]
    planes = []
    for size in widths:
        planes.append(raw[begin : begin + items * size])
        begin += items * size
    return planes


def column_of(raw: bytes, name: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """A column, found only by what the page says."""
    dtype, _, items = entry_of(raw, name)
    if dtype[0] != "N":
        return np.frombuffer(planes_of(raw, name)[0], dtype)
    narrow = [column for column, kind, *_ in table("index-columns") if kind == "N"]
    tables = ["first_row", "id_ends"]
    owners, frames = (tables, "id_frames") if name in tables else ([each for each in narrow if each not in tables], "frames")
    base, rise = column_of(raw, frames).reshape(-1, len(owners), 2)[0, owners.index(name)].tolist()
    values = [base + rise * place // 1024 for place in range(items)]
    shift = 0
    for plane in planes_of(raw, name):
        size = len(plane) // items
        for place in range(items):
            values[place] += int.from_bytes(plane[place * size : (place + 1) * size], "little") << shift
        shift += 8 * size
    return np.array(values)


def test_the_index_header_has_each_value_where_the_document_says(example: Example) -> None:
    raw, chunk = example.disk.content(INDEX), read("chunk-header", example.sorted)
    assert read("index-header", raw) == {
        "magic": index.MAGIC, "format": 3, "columns": len(index.COLUMNS), "header_bytes": 4096, "number": 1,
        "store": STORE.bytes, "first_sequence": 1, "rows": 3, "aggregates": 2, "types": 2,
        "checksum": chunk["checksum"], "end": chunk["end"], "size": len(raw),
    }  # fmt: skip
    assert raw[3056:3072] == KEY
    assert raw[3072:].startswith(b"\x08order-42\x07order-7\0")
    assert int.from_bytes(raw[4092:4096], "little") == crc32c(raw[:4092])


def test_the_columns_are_those_of_the_code() -> None:
    assert [(name, dtype) for name, dtype, *_ in table("index-columns")] == list(index.COLUMNS.items())
    assert [(name, dtype) for name, dtype, *_ in table("index-tag-columns")] == list(index.TAG_COLUMNS.items())


def test_each_column_has_as_many_items_as_the_document_says(example: Example) -> None:
    raw = example.disk.content(INDEX)
    counts = {"rows": 3, "aggregates": 2, "types": 2, "blocks": 2, "groups": 1, "id groups": 1}
    for name, dtype, items, _ in table("index-columns"):
        column = column_of(raw, name)
        assert entry_of(raw, name)[0].rstrip("012345678" if dtype == "N" else "") == dtype
        if items == "bytes":
            ends = {"ids": "id_ends", "types": "type_ends", "split_ids": "split_ends"}[name]
            assert len(column) == column_of(raw, ends)[-1]
        else:
            times, counted, more = re.fullmatch(r"(?:(\d+) )?(.+?)(?: \+ (\d+))?", items).groups()  # type: ignore[union-attr]
            assert len(column) == int(times or 1) * counts[counted] + int(more or 0)


def test_the_rows_of_the_example_are_those_of_its_index(example: Example) -> None:
    raw = example.disk.content(INDEX)
    names = re.findall(r"`(\w+)`", TEXT.split("<!-- example index-rows -->")[1].split("\n| ---")[0])
    for row, *cells in table("example index-rows"):
        assert cells == [str(column_of(raw, name)[int(row)]) for name in names]


def test_payloads_lie_where_the_index_says(example: Example) -> None:
    raw, file = example.disk.content(INDEX), example.sorted
    places, lengths = column_of(raw, "record")[:3] + column_of(raw, "data_at"), column_of(raw, "data_len")
    payloads = [file[place : place + length] for place, length in zip(places.tolist(), lengths.tolist(), strict=True)]
    assert payloads == [b'{"total":5}', b"\x01\x02", b'{"total":12}']
    meta, size = int(places[0] + lengths[0]) + 2, int(column_of(raw, "meta_size")[0])
    assert file[meta : meta + size - 1] == b'{"by":"web"}'
    assert column_of(raw, "record").tolist() == [4096, 4096, 4228, 4331]


def test_the_tables_and_checksums_of_the_index_are_those_the_document_describes(example: Example) -> None:
    raw, file = example.disk.content(INDEX), example.sorted

    def part(name: str, first: int, last: int) -> bytes:
        items = entry_of(raw, name)[2]
        return b"".join(
            [plane[len(plane) // items * first : len(plane) // items * min(last, items)] for plane in planes_of(raw, name)]
        )

    ids, ends = column_of(raw, "ids").tobytes(), column_of(raw, "id_ends").tolist()
    assert (ids, ends) == (b"order-42order-7", [0, 8, 15])
    assert column_of(raw, "split_ids").tobytes() == ids
    assert column_of(raw, "types").tobytes() == b"OrderPlacedOrderPaid"
    assert column_of(raw, "first_row").tolist() == [0, 2, 3]
    assert column_of(raw, "extent_crc").tolist() == [crc32c(file[4096:4228]), crc32c(file[4228:4331])]
    for block, (first, last) in enumerate([(0, 1), (1, 2)]):
        covered = (
            part("id_frames", 0, 4)
            + part("id_ends", first, last + 1)
            + part("first_row", first, last + 1)
            + part("extent_crc", first, last)
        )
        assert column_of(raw, "block_crc")[block] == crc32c(covered + ids[ends[first] : ends[last]])
    looked_up = ("frames", "ordinal", "version", "sequence", "record", "place", "left", "command")
    assert column_of(raw, "row_crc").tolist() == [crc32c(b"".join(part(name, 0, 1024) for name in looked_up))]


@pytest.mark.parametrize("aggregates", [1, 7, 99, 100, 101, 12_345])
def test_blocks_begin_where_the_document_says(aggregates: int) -> None:
    count = min(100, aggregates)
    assert index.blocks(aggregates) == [block * aggregates // count for block in range(count + 1)]


# -- the folder -----------------------------------------------------------------------------------------------------------


async def fill(path: Path, look: Callable[[], None]) -> None:
    """Appends three files' worth, waits until the first two are sorted, and lets the test look around."""
    async with es.open_store(path, StoreSettings(file_size_bytes=4096, preallocate_bytes=4096)) as store:
        for number in range(3):
            await store.append("order-1", [NewEvent("Printed", bytes(3000))], es.ANY, f"c-{number}")
        with trio.fail_after(20):
            await store.maintenance.wait_until_sorted()
        look()


def test_every_file_of_a_data_folder_is_in_the_table_and_every_one_of_the_table_is_there(tmp_path: Path) -> None:
    seen: set[str] = set()

    def look() -> None:
        seen.update(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())

    trio.run(fill, tmp_path, look)
    assert not (tmp_path / "directory" / OPEN_MARK).exists()
    with open(max(tmp_path.glob("events/*.events")), "ab") as ongoing:
        ongoing.write(b"torn")
    trio.run(fill, tmp_path, look)
    patterns = {name: re.sub("NNNNNNNNNN", r"\\d{10}", re.escape(name)) for name, *_ in table("files")}
    patterns = {name: re.sub("OFFSET|PLACE", r"\\d+", pattern) for name, pattern in patterns.items()}
    assert {file for file in seen if not any(re.fullmatch(pattern, file) for pattern in patterns.values())} == set()
    del patterns["subjects/NNN.json"]  # only of a store with master keys, see tests/subjects
    unseen = [name for name, pattern in patterns.items() if not any(re.fullmatch(pattern, file) for file in seen)]
    assert unseen == []


def test_the_witness_of_the_page_is_what_the_engine_writes() -> None:
    _, key, _, chunk, _, durable, _, *expected = blocks("witness")["sample"].split()
    made = witness.witness(bytes.fromhex(key), int(chunk), int(durable))
    assert made.to_bytes(2, "little").hex(" ") == " ".join(expected)
