"""Decodes a page of commit records into an Arrow record batch: columns from bytes, without an object for each event.

A Python loop walks from record to record by their lengths; all else is done for the whole page by numpy: places of ids, types
and payloads follow from lengths in front of them, for the first event of each commit, then for the second, and so on. Arrow
gathers the bytes: a binary array over the page whose boundaries are `0, start 0, end 0, start 1, end 1, …` has what is wanted
as its odd items, and `take` copies these.

The bytes were verified where they were read, as those of `event_page`; shape and lengths are checked here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from eventstore.arrays import np
from eventstore.errors import ProtocolError
from eventstore.event_identity import LogPosition
from eventstore.extras import advice
from eventstore.model import DATA_IS_JSON, STORED_FORMAT, Event
from eventstore.records.commit import FIXED_BYTES, HEADER, IDS_FROM, OWN_MARK_AT
from eventstore.records.cursors import LogCursor, LogPage
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.tags import SEALED, TAGGED, metadata_in, tags_in

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Ints = npt.NDArray[np.int64]
    Raw = npt.NDArray[np.uint8]

_EVENTS_OF_COMMIT_MAX: Final = 64  # more rounds cost more than an object for each event
_FIELDS: Final = ("length", "sequence", "count", "time", "first_version", "id_length", "command_length")
_LENGTH: Final = struct.Struct("<I")
_LENGTH_AT: Final = HEADER["length"].offset
_TRAILER_BYTES: Final = 5
_FIXSTR, _FIXSTR_END, _STR8, _NIL, _BIN8, _BIN16, _BIN32 = 0xA0, 0xC0, 0xD9, 0xC0, 0xC4, 0xC5, 0xC6


def schema() -> pa.Schema:
    """Returns the columns of `read_all_arrow`."""
    pa = _pyarrow()
    return pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("aggregate_id", pa.string(), nullable=False),
            pa.field("version", pa.int64(), nullable=False),
            pa.field("type", pa.string(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("command_id", pa.string(), nullable=False),
            pa.field("data", pa.binary(), nullable=False),
            pa.field("is_json", pa.bool_(), nullable=False),
            pa.field("metadata", pa.binary()),
            pa.field("tags", pa.list_(pa.string()), nullable=False),
        ]
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"record batches need {error.name}; {advice('arrow')}", name=error.name) from None
    return pyarrow


class ArrowCursor(LogCursor):
    """As `LogCursor`, forwards, and takes each page as a record batch: a list of it, or an empty one of a page without
    events.
    """

    __slots__ = ()

    def __init__(self, after: LogPosition | int, wanted: EventFilter) -> None:
        """Raises ModuleNotFoundError: pyarrow is not installed."""
        _pyarrow()
        super().__init__(after, None, wanted)

    def take(self, page: LogPage) -> list[Any]:
        """As `LogCursor.take`."""
        records = page.records if isinstance(page.records, bytes) else bytes(page.records)
        batch, last = decode_arrow_page(records, self.after, self.wanted)
        self._identity = ""
        if page.next is None or not (page.at_end or page.next > self.after):
            raise ProtocolError(f"a page leads back to {page.next}, from which it was requested", value=page.next)
        end = LogPosition(page.next, page.identity) if page.identity else last
        self.end = end or LogPosition(max(self.after, page.next))
        self._last = end or self._last
        self.done = page.at_end
        self.after = page.next
        return [batch] if len(batch) else []


def decode_arrow_page(records: bytes, after: int, wanted: EventFilter) -> tuple[pa.RecordBatch, LogPosition | None]:
    """Returns the events after a sequence that pass the filter, and the place of the last one in the page, if it has any.

    Raises:
        ProtocolError: the bytes are not a sequence of whole commit records.
    """
    if not records:
        return _of_events([]), None
    try:
        starts = _starts(records)
        batch = None if wanted.query is not None or wanted.slot is not None else _decode(records, starts)
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(
            f"a page of {len(records)} bytes is malformed: {error}", field="records", value=len(records)
        ) from None
    last = LogPosition.at(decode_page(records[starts[-1] :])[-1])
    if batch is None:
        return _of_events(wanted.select(decode_page(records), after)), last
    return _selected(batch, after, wanted), last


def _starts(records: bytes) -> list[int]:
    """Returns where each record begins."""
    unpack, starts, position, end = _LENGTH.unpack_from, list[int](), 0, len(records)
    append, at_most = starts.append, end // FIXED_BYTES + 1
    for _ in range(at_most):
        append(position)
        position += unpack(records, position + _LENGTH_AT)[0]
        if position >= end:
            break
    if position != end:
        raise ValueError(f"its last record ends at byte {position} of {end}")
    return starts


def _decode(records: bytes, starts_of: Sequence[int]) -> pa.RecordBatch | None:
    """Returns the events of the page; None if a commit has many."""
    raw, starts = np.frombuffer(records, np.uint8), np.array(starts_of, np.int64)
    headers = raw[starts[:, None] + np.arange(HEADER.size)].view(HEADER.dtype(*_FIELDS))[:, 0]
    length, sequence, count, time, version, id_bytes, command_bytes = (headers[name].astype(np.int64) for name in _FIELDS)
    if int(length.min()) < FIXED_BYTES:
        raise ValueError(f"a record of {int(length.min())} bytes")
    if not 0 < int(count.min()) <= int(count.max()) <= _EVENTS_OF_COMMIT_MAX:
        return None
    ids = starts + raw[starts + OWN_MARK_AT] + IDS_FROM + 2
    commands = ids + id_bytes + 2
    commit, at, ends = np.arange(len(starts)), commands + command_bytes, starts + length - _TRAILER_BYTES
    rounds: list[tuple[Ints, ...]] = []
    for place in range(int(count.max())):  # the first events of all commits, then the second ones, …
        type_at, type_bytes = _text(raw, at + 1)
        data_at, data_bytes, _ = _binary(raw, type_at + type_bytes)
        meta_at, meta_bytes, has_meta = _binary(raw, data_at + data_bytes)
        found = (
            commit,
            np.full(len(commit), place),
            raw[at],
            type_at,
            type_bytes,
            data_at,
            data_bytes,
            meta_at,
            meta_bytes,
            has_meta,
        )
        rounds.append(found)
        at, more = meta_at + meta_bytes, count[commit] > place + 1
        if (at[~more] != ends[commit[~more]]).any():
            raise ValueError("the events of a commit do not end where its record does")
        commit, at = commit[more], at[more]
    columns = rounds[0]
    if len(rounds) > 1:
        order = np.argsort(np.concatenate([each[3] for each in rounds]), kind="stable")  # by their places in the page
        columns = tuple(np.concatenate(column)[order] for column in zip(*rounds, strict=True))
    commit, place_in, format_, type_at, type_bytes, data_at, data_bytes, meta_at, meta_bytes, has_meta = columns
    if int(format_.max()) > STORED_FORMAT:
        raise ValueError(f"an event has the format {int(format_.max())}")
    pa, alone = _pyarrow(), len(rounds) == 1
    of_commit = None if alone else pa.array(commit)
    metadata = _gathered(records, meta_at[has_meta], meta_bytes[has_meta])
    if not has_meta.all():
        places = np.where(has_meta, np.cumsum(has_meta) - 1, 0)
        metadata = metadata.take(pa.array(places, mask=~has_meta)) if len(metadata) else pa.nulls(len(commit), pa.binary())
    tags, metadata = _opened(format_, metadata)
    arrays = [
        pa.array(sequence[commit] + place_in),
        _of_commits(_gathered(records, ids, id_bytes).view(pa.string()), of_commit),
        pa.array(version[commit] + place_in),
        _gathered(records, type_at, type_bytes).view(pa.string()),
        pa.array(time[commit]).view(pa.timestamp("us", "UTC")),
        _of_commits(_gathered(records, commands, command_bytes).view(pa.string()), of_commit),
        _gathered(records, data_at, data_bytes),
        pa.array((format_ & (DATA_IS_JSON | SEALED)) == DATA_IS_JSON),
        metadata,
        tags,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _text(raw: Raw, at: Ints) -> tuple[Ints, Ints]:
    """Returns where the texts of these msgpack values begin, and their lengths in bytes."""
    head = raw[at]
    short = (head >= _FIXSTR) & (head < _FIXSTR_END)
    if short.all():
        return at + 1, (head & 31).astype(np.int64)
    if not (short | (head == _STR8)).all():
        raise ValueError("a type is no text")
    return np.where(short, at + 1, at + 2), np.where(short, head & 31, raw[at + 1]).astype(np.int64)


def _binary(raw: Raw, at: Ints) -> tuple[Ints, Ints, Any]:
    """Returns where the bytes of these msgpack values begin, how many they are, and which of them are not nil."""
    head = raw[at]
    there = head != _NIL
    if not there.any():
        return at + 1, np.zeros(len(at), np.int64), there
    small = head == _BIN8
    if (small | ~there).all():
        size = np.where(there, raw[np.minimum(at + 1, len(raw) - 1)], 0).astype(np.int64)
        return at + np.where(there, 2, 1), size, there
    middle, large = head == _BIN16, head == _BIN32
    if not (small | middle | large | ~there).all():
        raise ValueError("a payload is not bytes")
    one, two, three, four = (raw[np.minimum(at + ahead, len(raw) - 1)].astype(np.int64) for ahead in (1, 2, 3, 4))
    size = np.select([small, middle, large], [one, one << 8 | two, one << 24 | two << 16 | three << 8 | four], 0)
    return at + np.select([small, middle, large], [2, 3, 5], 1), size, there


def _gathered(records: bytes, starts: Ints, sizes: Ints) -> Any:
    """Returns the bytes of the page that begin at these places, in ascending order."""
    pa = _pyarrow()
    boundaries = np.zeros(2 * len(starts) + 1, np.int32)
    boundaries[1::2], boundaries[2::2] = starts, starts + sizes
    if len(starts) and ((np.diff(boundaries) < 0).any() or boundaries[-1] > len(records)):
        raise ValueError("a value reaches into the next one")
    whole = pa.Array.from_buffers(pa.binary(), 2 * len(starts), [None, pa.py_buffer(boundaries), pa.py_buffer(records)])
    return whole.take(pa.array(np.arange(1, 2 * len(starts), 2, dtype=np.int32)))


def _of_commits(values: Any, of_commit: Any) -> Any:
    return values if of_commit is None else values.take(of_commit)


def _opened(format_: Ints, stored: Any) -> tuple[Any, Any]:
    """Returns the tags, and the metadata out of the envelopes of events that have tags."""
    pa, kind = _pyarrow(), schema().field("tags").type
    tagged = np.flatnonzero(format_ & TAGGED)
    if not len(tagged):
        none = pa.array(np.zeros(len(format_) + 1, np.int32))
        return pa.ListArray.from_arrays(none, pa.array([], pa.string())), stored
    values, tags = stored.to_pylist(), list[tuple[str, ...]]([()] * len(format_))
    for row in tagged.tolist():
        tags[row], values[row] = tags_in(values[row]), metadata_in(values[row])
    return pa.array(tags, kind), pa.array(values, pa.binary())


def _selected(batch: Any, after: int, wanted: EventFilter) -> Any:
    """Returns the rows after a sequence that pass a filter without a query."""
    import pyarrow.compute as pc

    if batch["sequence"][0].as_py() <= after:
        batch = batch.filter(pc.greater(batch["sequence"], after))
    if wanted.everything:
        return batch
    pa, time = _pyarrow(), batch.schema.field("timestamp").type
    if wanted.types is not None:
        batch = batch.filter(pc.is_in(batch["type"], pa.array(sorted(wanted.types), pa.string())))
    if wanted.aggregate_prefix is not None:
        batch = batch.filter(pc.starts_with(batch["aggregate_id"], wanted.aggregate_prefix))
    if wanted.aggregate_id is not None:
        batch = batch.filter(pc.equal(batch["aggregate_id"], wanted.aggregate_id))
    if wanted.from_time is not None:
        batch = batch.filter(pc.greater_equal(batch["timestamp"], pa.scalar(wanted.from_time, pa.int64()).cast(time)))
    if wanted.to_time is not None:
        batch = batch.filter(pc.less_equal(batch["timestamp"], pa.scalar(wanted.to_time, pa.int64()).cast(time)))
    return batch


def _of_events(events: Sequence[Event]) -> Any:
    """Returns a record batch of events that were decoded: of few pages, and of those that only an object can be compared
    with.
    """
    pa, columns = _pyarrow(), schema()
    rows = [
        (e.sequence, e.aggregate_id, e.version, e.type, e.timestamp, e.command_id, e.data, e.is_json, e.metadata, e.tags)
        for e in events
    ]
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(values, columns, strict=True)], schema=columns
    )
