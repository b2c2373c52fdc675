"""A layout: everything derived from its fields agrees with a struct written by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from eventstore.chunks.layout import FieldLayout

LAYOUT = FieldLayout(("mark", "B"), ("kind", "B"), ("small", "H"), ("crc", "I"), ("time", "q"), ("reserved", "4x"), ("id", "I"))
ODD = FieldLayout(("mark", "B"), ("number", "I"))
VALUES = [(1, 2, 3, 4, -5, 6), (7, 8, 65_535, 2**32 - 1, 2**62, 12)]
RAW = b"".join(struct.pack("<BBHIqII", *values[:-1], 0, values[-1]) for values in VALUES)


def test_the_struct_packs_every_field_and_zeros_where_bytes_are_reserved() -> None:
    assert b"".join(LAYOUT.struct.pack(*values) for values in VALUES) == RAW
    assert list(LAYOUT.struct.iter_unpack(RAW)) == VALUES


def test_offsets_follow_from_the_sizes_of_the_fields() -> None:
    assert [field.offset for field in LAYOUT.fields] == [0, 1, 2, 4, 8, 16, 20]
    assert (LAYOUT["time"].end, LAYOUT.size) == (16, 24)


def test_an_extended_layout_begins_with_the_fields_of_the_first() -> None:
    longer = ODD.extended(("flags", "H"))
    assert longer.names == ("mark", "number", "flags")
    assert longer.struct.format == "<BIH"


def test_a_part_reads_its_fields_alone_and_writes_zeros_elsewhere() -> None:
    part = LAYOUT.part("small", "time")
    assert [part.unpack_from(RAW, place) for place in (0, LAYOUT.size)] == [(3, -5), (65_535, 2**62)]
    assert part.pack(3, -5) == struct.pack("<HHIqII", 0, 3, 0, -5, 0, 0)


def test_parts_that_meet_pack_the_same_bytes_as_the_whole() -> None:
    first, second = LAYOUT.part("mark", "kind", stop=2), LAYOUT.part("small", "crc", "time", "id", start=2)
    assert first.pack(1, 2) + second.pack(3, 4, -5, 6) == LAYOUT.struct.pack(1, 2, 3, 4, -5, 6)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", [LAYOUT, ODD])
def test_columns_are_those_of_the_headers_one_by_one(layout: FieldLayout, order: str) -> None:
    layout = FieldLayout(*((field.name, field.code) for field in layout.fields), order=order)
    raw = b"".join(layout.struct.pack(*range(row, row + len(layout.names))) for row in range(5))
    rows = list(layout.struct.iter_unpack(raw))
    assert layout.columns(*layout.names)(raw) == [list(column) for column in zip(*rows, strict=True)]
    assert layout.columns("mark")(b"") == [[]]


def test_a_dtype_reads_what_the_struct_reads() -> None:
    assert np.frombuffer(RAW, LAYOUT.dtype()).tolist() == VALUES
    assert np.frombuffer(RAW, LAYOUT.dtype("crc", "id")).tolist() == [(4, 6), (2**32 - 1, 12)]
    big = FieldLayout(("mark", "B"), ("length", "I"), order=">")
    assert np.frombuffer(big.struct.pack(1, 2), big.dtype()).tolist() == [(1, 2)]
