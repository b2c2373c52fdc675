"""Decodes a page of commit records into `Event` objects: the hot path of every read, networked and embedded.

Everything runs in C loops: one msgpack call decodes the whole page, columns are strided slices of its values, and `map` over
`zip` builds the events (`Event` is a tuple for this reason). The number of values in a page is not stored, and walking the
headers to count them takes as long as building the events. So a page that begins with a commit of one event is decoded in one
call with a guess that is a little too high, padded with nils, and the headers found that way must then account for every byte
of the page. If they do not (commits of several events), the headers are walked.

The bytes come from a file whose checksums were verified, or from a server the user chose to trust: lengths, counts and shape
are checked here, contents are not. The box of the record is in `records.commit`.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from operator import add
from typing import Final, cast

import msgpack

from eventstore import flat
from eventstore.errors import ProtocolError
from eventstore.flat import Scalar
from eventstore.model import LEFT_SHIFT, STORED_FORMAT, Event, PersonalEvent
from eventstore.records.commit import FIXED_BYTES, HEADER, HEADER_BYTES, LONG_MARK, OWN_MARK_AT, joint_place_of
from eventstore.tags import SEALED

_COLUMNS: Final = ("length", "sequence", "count", "time", "first_version")
_HEADER_FIELDS: Final = HEADER.part(*_COLUMNS)
_HEADER_COLUMNS: Final = HEADER.columns(*_COLUMNS)
_COMMIT_VALUES: Final = 4  # header, aggregate id, command id, trailing length
_EVENT_VALUES: Final = 4  # format, type, data, metadata
_SINGLE_VALUES: Final = _COMMIT_VALUES + _EVENT_VALUES
_GUESS_SPARE_VALUES: Final = 64
_ARRAY32: Final = struct.Struct(">BI")

Values = Sequence[Scalar]
_Columns = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]]  # as in _COLUMNS


class PersonalPage(list[Event]):
    """The events of a page of which some have a subject: those are `PersonalEvent`."""


def decode_page(records: bytes | memoryview) -> list[Event]:
    """Returns the events of whole commit records, in their order in the page: a `PersonalPage`, if some have a subject.

    Raises:
        ProtocolError: the bytes are not a sequence of whole commit records.
    """
    if not records:
        return []
    collecting = gc.isenabled()
    gc.disable()  # no cycles are made here; searching new events for cycles takes half as long as making them
    try:
        return _decode(records)
    except (flat.Malformed, struct.error, TypeError, ValueError, IndexError) as error:
        raise ProtocolError(
            f"a page of {len(records)} bytes is malformed: {error}", field="records", value=len(records)
        ) from None
    finally:
        if collecting:
            gc.enable()


def commit_end(event: Event) -> int:
    """Returns the sequence of the last event of its commit, if that is a joint one; otherwise its own."""
    return event[7] + (event[8] >> LEFT_SHIFT)


def settle(events: list[Event], through: int) -> None:
    """Takes what passed a filter, of a page that was read up to the sequence `through`: if its last event belongs to a joint
    commit that ends there or before, the rest of the commit was left out, and does not follow.
    """
    if events and (left := events[-1][8] >> LEFT_SHIFT) and events[-1][7] + left <= through:
        last = events[-1]
        events[-1] = settled = tuple.__new__(type(last), (*last[:8], last[8] & STORED_FORMAT))
        if isinstance(last, PersonalEvent) and isinstance(settled, PersonalEvent):
            settled.place = last.place


def _decode(records: bytes | memoryview) -> list[Event]:
    length, _, count, _, _ = _HEADER_FIELDS.unpack_from(records)
    values: Values = ()
    if count == 1 and length >= FIXED_BYTES:
        values = _decode_guessing(records, length)
        columns = _columns_of_singles(values, len(records))
        if columns is not None:
            return _single_events(values, columns)
    columns, left = _walk(records)
    counts = columns[2]
    needed = _COMMIT_VALUES * len(counts) + _EVENT_VALUES * sum(counts)
    if len(values) < needed:
        values = flat.decode_trusted(bytes(records), needed)
    return _events(values, columns, left)


def _decode_guessing(records: bytes | memoryview, first_length: int) -> Values:
    """Returns the page's values followed by nils; or only its first values, if its records are much shorter than the first."""
    count = len(records) * (_SINGLE_VALUES + 1) // first_length + _GUESS_SPARE_VALUES
    packed = b"".join((_ARRAY32.pack(0xDD, count), records, b"\xc0" * count))
    try:
        whole = msgpack.unpackb(packed, use_list=False, max_array_len=count, unicode_errors="surrogateescape")
    except msgpack.ExtraData as left_over:  # usually the nils beyond the guess
        return cast(Values, left_over.unpacked)
    return cast(Values, whole)


def _columns_of_singles(values: Values, page_bytes: int) -> _Columns | None:
    """Returns the header fields if the page holds only commits of one event each and `values` holds all of it."""
    headers = values[0::_SINGLE_VALUES]
    try:
        count = headers.index(None)
        # with its two mark bytes before each header again, the fields are aligned
        joined = b"\0\0" + b"\0\0".join(cast("Sequence[bytes]", headers[:count]))
    except (ValueError, TypeError):
        return None
    if len(joined) != count * HEADER_BYTES:
        return None
    lengths, sequences, counts, times, versions = _HEADER_COLUMNS(joined)
    trailers = values[7 : _SINGLE_VALUES * count : _SINGLE_VALUES]
    if sum(lengths) != page_bytes or trailers != tuple(lengths) or counts.count(1) != count:
        return None
    return lengths, sequences, (), times, versions


def _single_events(values: Values, columns: _Columns) -> list[Event]:
    _, sequences, _, times, versions = columns
    step = _SINGLE_VALUES
    events = _make(
        values[1::step],
        versions,
        values[4::step],
        values[5::step],
        values[6::step],
        values[2::step],
        times,
        sequences,
        values[3::step],
    )
    formats = values[3 : step * len(sequences) : step]
    return _with_subjects(events, repeat(0)) if max(formats) >= SEALED else events  # type: ignore[type-var, operator]


def _walk(records: bytes | memoryview) -> tuple[_Columns, dict[int, int]]:
    """Returns the header fields of every record, walking from one to the next by their lengths; and of the records of joint
    commits, by their place, how many events of the commit follow the record's first one.
    """
    unpack = _HEADER_FIELDS.unpack_from
    rows, left = list[tuple[int, ...]](), dict[int, int]()
    position, end = 0, len(records)
    while position < end:
        row = unpack(records, position)
        if records[position + OWN_MARK_AT] == LONG_MARK:
            joint = joint_place_of(records, position)
            if joint is not None:
                left[len(rows)] = joint.events - joint.events_before - 1
        rows.append(row)
        position += row[0]
        if row[0] < FIXED_BYTES + row[2] or position > end:
            raise ValueError(f"a record of {row[0]} bytes with {row[2]} events at byte {position - row[0]} of {end}")
    return cast(_Columns, tuple(zip(*rows, strict=True))), left


def _events(values: Values, columns: _Columns, left: Mapping[int, int]) -> list[Event]:
    lengths, sequences, counts, times, versions = columns
    ends = list(accumulate(_COMMIT_VALUES + _EVENT_VALUES * count for count in counts))
    starts = [0, *ends[:-1]]
    if tuple(values[end - 1] for end in ends) != lengths:
        raise ValueError("the lengths before and after a record differ")
    inner = map(values.__getitem__, map(slice, [start + 3 for start in starts], [end - 1 for end in ends]))
    events = tuple(chain.from_iterable(inner))
    formats: Sequence[Scalar] = events[0::4]
    if left:
        formats = list(formats)
        firsts = [0, *accumulate(counts)]
        for record, following in left.items():
            for place in range(counts[record]):
                at = firsts[record] + place
                formats[at] = cast(int, formats[at]) | following - place << LEFT_SHIFT
    made = _make(
        _repeated([values[start + 1] for start in starts], counts),
        _counted(versions, counts),
        events[1::4],
        events[2::4],
        events[3::4],
        _repeated([values[start + 2] for start in starts], counts),
        _repeated(times, counts),
        _counted(sequences, counts),
        formats,
    )
    # those of joint commits are large also without a subject
    return _with_subjects(made, chain.from_iterable(map(range, counts))) if max(formats) >= SEALED else made  # type: ignore[type-var, operator]


def _with_subjects(events: list[Event], places: Iterable[int]) -> list[Event]:
    """Returns the events, those with a subject as `PersonalEvent`. `places`: of each among those of its record."""
    found = False
    for at, (event, place) in enumerate(zip(events, places, strict=False)):
        if event[8] & SEALED:
            personal = PersonalEvent(event)
            if place:
                personal.place = place
            events[at], found = personal, True
    return PersonalPage(events) if found else events


def _repeated(column: Iterable[Scalar], counts: Iterable[int]) -> Iterable[Scalar]:
    return chain.from_iterable(map(repeat, column, counts))


def _counted(firsts: Sequence[int], counts: Sequence[int]) -> Iterable[int]:
    return chain.from_iterable(map(range, firsts, map(add, firsts, counts)))


def _make(*columns: Iterable[Scalar]) -> list[Event]:
    """Builds the events from columns in the order of `Event`'s fields, without a line of Python for each."""
    return list(map(Event, zip(*columns, strict=False)))  # tuple.__new__ takes twice as long
