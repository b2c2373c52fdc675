"""Entries of the queue index: their bytes and CRCs."""

from __future__ import annotations

import struct
from array import array

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from eventstore.records.queue_entry import first_bad, make_entries


@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), min_size=1, max_size=50), st.integers(0, 2**40))
def test_the_crcs_of_many_entries_are_those_of_each(rows: list[tuple[int, int, int, int]], first: int) -> None:
    key = (7, 3)
    columns = (array("Q"), array("I"), array("I"), array("I"))
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    raw_entries = make_entries(key, first, *columns).tobytes()
    for place, (position, length, tag, key_hash) in enumerate(rows):
        covered = struct.pack("<QQIII", first + place, position + 1, length, tag, key_hash)
        assert raw_entries[32 * place : 32 * place + 28] == covered
        assert raw_entries[32 * place + 28 : 32 * place + 32] == struct.pack("<I", crc32c(struct.pack("<II", *key) + covered))
    assert first_bad(key, first, make_entries(key, first, *columns)) is None
    assert first_bad((7, 4), first, make_entries(key, first, *columns)) == 0
    assert first_bad(key, first + 1, make_entries(key, first, *columns)) == 0
