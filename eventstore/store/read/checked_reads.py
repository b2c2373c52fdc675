"""Reads records of event files and checks them, on a worker thread or, if they are cached, on an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from eventstore.chunks import record
from eventstore.chunks.files import File, NotCached, read_range
from eventstore.errors import Corrupt
from eventstore.records import commit

IN_PLACE_BYTES_MAX: Final = 128 * 1024
"""Size of a page that may be read and checked on an event loop: about 0.2 ms. With its last commit it can be twice as large."""


def read_checked(file: File, name: str, start: int, stop: int, cached_only: bool = False) -> bytes:
    """Reads the bytes [start, stop) of an event file.

    Raises:
        ReadFailed, Corrupt: they could not be read, or the file ends before.
        NotCached: also if the range is so large that even a cached read takes too long.
    """
    if cached_only and stop - start > 2 * IN_PLACE_BYTES_MAX:
        raise NotCached
    data = read_range(file, name, start, stop - start, cached_only)
    if len(data) != stop - start:
        raise Corrupt(name, start + len(data), f"the file ends here; a record was indexed up to {stop}")
    return data


def check_records(data: bytes, name: str, base: int, sequences: Sequence[int]) -> None:
    """Raises Corrupt unless `data` consists of valid records with exactly these sequences."""
    found = record.walk(memoryview(data), base, record.UNORDERED, commit.FRAMING)
    if found.fault is not None:
        raise Corrupt(name, found.end, found.fault)
    if found.sequences != sequences:
        pairs = zip_longest(found.sequences, sequences)
        place = next(place for place, (is_, expected) in enumerate(pairs) if is_ != expected)
        offset = found.offsets[place] if place < len(found.offsets) else found.end
        raise Corrupt(name, offset, "a record that belongs elsewhere")


def read_records(file: File, name: str, start: int, stop: int, first_sequence: int, cached_only: bool = False) -> bytes:
    """Reads the bytes [start, stop) of an unsorted event file: consecutive valid records, the first with this sequence.

    Raises:
        ReadFailed, Corrupt
        NotCached
    """
    data = read_checked(file, name, start, stop, cached_only)
    found = record.walk(memoryview(data), start, first_sequence, commit.FRAMING)
    if found.fault is not None:
        raise Corrupt(name, found.end, found.fault)
    return data
