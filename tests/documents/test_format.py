"""docs/FORMAT.md and the code have the same layouts, boxes, names and limits."""

from __future__ import annotations

import importlib
import re
import struct
import uuid

import pytest
from crc32c import crc32c

from eventstore import flat, model
from eventstore.chunks import header as chunk_header
from eventstore.chunks import record
from eventstore.chunks.header import ChunkHeader
from eventstore.domain.snapshots import snapshot_file
from eventstore.model import NewEvent
from eventstore.records import commit, message, state_record
from eventstore.records import queue_entry as entry
from eventstore.settings.setting_declaration import declared_settings
from eventstore.settings.store import StoreSettings
from eventstore.store import data_folder
from eventstore.store.event_checks import EventsCheck
from eventstore.store.sorted import directory, directory_entry
from eventstore.store.sorted import index_format as index
from tests.documents.format_page import TEXT, layout, read, table

STORE = uuid.UUID(bytes=bytes(range(16)))
LAYOUTS = {
    "chunk-header": chunk_header.HEADER,
    "chunk-footer": chunk_header.FOOTER,
    "record-prefix": record.PREFIX,
    "record-trailer": record.TRAILER,
    "commit-header": commit.HEADER,
    "commit-long-header": commit.LONG_HEADER,
    "index-header": index.HEADER,
    "index-entry": index.ENTRY,
    "directory-value": directory_entry._VALUE,
    "directory-place": directory_entry._ROW_RANGE,
    "directory-file": directory._FILE,
    "message-header": message.HEADER,
    "state-entry": state_record.ENTRY,
    "queue-entry": entry.LAYOUT,
    "snapshot": snapshot_file.PREFIX,
}


def test_every_layout_is_known() -> None:
    assert set(re.findall(r"<!-- layout (\S+) -->", TEXT)) == LAYOUTS.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_that_of_the_code(name: str) -> None:
    documented, coded = layout(name), LAYOUTS[name]
    ends = [field.offset + field.size for field in documented]
    begin = commit.HEADER.size if name == "commit-long-header" else 0  # it continues the short one
    assert [field.offset for field in documented] == [begin, *ends[:-1]]
    assert [field.size for field in documented] == [struct.calcsize(f"<{field.code}") for field in documented]
    assert [(field.name, field.offset, field.size) for field in documented] == [
        (field.name, field.offset, field.size) for field in coded.fields if field.offset >= begin
    ]
    assert [field.code for field in documented if field.name != "reserved"] == [
        coded[name].code for name in coded.names if coded[name].offset >= begin
    ]
    assert coded.order == (">" if any("big endian" in field.type for field in documented) else "<")
    assert ends[-1] == coded.size == coded.struct.size


def test_a_commit_header_begins_with_what_all_records_share() -> None:
    prefix = layout("record-prefix")
    assert layout("commit-header")[: len(prefix)] == prefix
    assert layout("message-header")[: len(prefix)] == prefix
    assert next(field.offset for field in prefix if field.name == "crc") + 4 == record.CRC_FROM
    assert next(field.offset for field in prefix if field.name == "length") == record.LENGTH_AT


@pytest.mark.parametrize("name", ["record-prefix", "record-trailer", "commit-header", "message-header", "queue-entry"])
def test_numpy_reads_each_field_where_the_document_says(name: str) -> None:
    documented = {field.name: (field.offset, field.size, field.type[0]) for field in layout(name)}
    for field, (kind, offset, *_) in (LAYOUTS[name].dtype().fields or {}).items():
        assert documented[field] == (offset, kind.itemsize, kind.kind)


BOXED = [
    "eventstore.chunks.header", "eventstore.chunks.record", "eventstore.records.commit", "eventstore.records.message",
    "eventstore.records.state_record", "eventstore.records.queue_entry",
]  # fmt: skip


@pytest.mark.parametrize("module", BOXED)
def test_the_boxes_are_those_above_the_structs(module: str) -> None:
    boxes = re.findall(rf"^```text box:{module}\n(.*?)^```", TEXT, flags=re.M | re.S)
    assert boxes
    for box in boxes:
        assert box in f"{importlib.import_module(module).__doc__}\n"


def test_a_chunk_header_has_each_value_where_the_document_says() -> None:
    header = ChunkHeader(1, 2, STORE, 3, 4, -5, 0b11, 6, 4107, 8, 9)
    raw = header.encode()
    assert read("chunk-header", raw) == {
        "magic": chunk_header.MAGIC, "format": 1, "kind": 1, "flags": 0b11,
        "records_from": chunk_header.RECORDS_FROM, "epoch": 3, "number": 2, "store": STORE.bytes, "first_sequence": 4,
        "created": -5, "last_sequence": 6, "end": 4107, "records": 8, "checksum": 9, "crc": crc32c(raw[:124]),
    }  # fmt: skip
    footer = header.footer()
    assert read("chunk-footer", footer) == {
        "magic": chunk_header.FOOTER_MAGIC, "first_sequence": 4, "last_sequence": 6, "records": 8, "checksum": 9,
        "crc": crc32c(footer[:60]),
    }  # fmt: skip


def test_the_names_of_kinds_states_and_formats_are_those_of_the_code() -> None:
    assert (chunk_header.EVENTS, chunk_header.MESSAGES, chunk_header.QUEUE) == (1, 2, 3)
    assert (chunk_header.COMPLETED, chunk_header.SORTED) == (1, 2)
    assert chunk_header.FORMAT == data_folder.FORMAT == 2
    assert (index.WIDE_FORMATS, index.FORMAT) == ((1, 2), 3)
    assert table("layout chunk-header")[0][4] == chunk_header.MAGIC.decode()
    assert table("layout chunk-footer")[0][4] == chunk_header.FOOTER_MAGIC.decode()
    assert table("layout index-header")[0][4] == index.MAGIC.decode()


def test_the_lengths_of_heads_are_those_of_the_canonical_encoding() -> None:
    short, long = NewEvent("t" * 31, b"d" * 255), NewEvent("t" * 32, b"d" * 256, b"m" * 65_536)
    assert flat.encode(short)[1 + 1 + 31 + 2 :] == b"d" * 255 + b"\xc0"
    assert flat.encode(long)[1 + 2 + 32 + 3 :] == b"d" * 256 + b"\xc6\x00\x01\x00\x00" + b"m" * 65_536


def test_another_encoding_of_the_same_events_is_stored_as_the_shortest() -> None:
    longer = b"\xcc\x01" + b"\xd9\x01T" + b"\xc5\x00\x01d" + b"\xc4\x00"
    assert EventsCheck()(longer) == (1, flat.encode((1, "T", b"d", b"")))


def test_the_limits_are_those_of_the_code() -> None:
    sizes = declared_settings(StoreSettings)["file_size_bytes"].setting
    assert dict(table("limits")) == {
        "aggregate id, command id": f"1 to {model.ID_BYTES_MAX} bytes of UTF-8",
        "event type": f"1 to {model.TYPE_BYTES_MAX} bytes of UTF-8",
        "data and metadata of one event": f"{model.EVENT_BYTES_MAX:,} bytes",
        "aggregates of one commit": f"{model.WRITES_MAX:,}",
        "events of one commit, of all its aggregates": f"{model.COMMIT_EVENTS_MAX:,}",
        "the same, encoded": f"{model.COMMIT_BYTES_MAX:,} bytes",
        "record": f"{record.RECORD_BYTES_MAX:,} bytes",
        "version": f"{model.VERSION_MAX:,}",
        "time": f"{model.TIME_MIN:,} to {model.TIME_MAX:,}",
        "file size that can be set": f"{sizes.low:,} to {sizes.high:,} bytes",
        "blocks of an index": f"{index.BLOCKS_MAX}",
        "rows of a `row_crc": f"{index.ROWS_PER_CRC:,}",
    }
