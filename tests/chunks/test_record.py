"""A walk over records: what it accepts, where it stops, and which fault it names."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.chunks import record
from eventstore.chunks.record import PREFIX_BYTES, TRAILER, UNORDERED, Framing, Walk
from tests.chunks.sample_records import FRAMING, OVERHEAD, crc_of, sealed
from tests.chunks.sample_records import record as made

LENGTH_AT = 8


def walk(data: bytes, sequence: int = 1, base: int = 4096) -> Walk:
    return record.walk(memoryview(data), base, sequence, FRAMING)


def with_length(raw: bytes, before: int, behind: int | None = None) -> bytes:
    """Returns the record with other lengths and a matching CRC."""
    changed = bytearray(raw)
    struct.pack_into("<I", changed, LENGTH_AT, before)
    if behind is not None:
        struct.pack_into(">I", changed, len(changed) - 4, behind)
    return sealed(changed)


def test_the_offsets_of_the_prefix_match_its_box() -> None:
    raw = record.PREFIX.struct.pack(0xC4, 30, 0x0A0B0C0D, 0, 0x01020304, 0x11121314, 0x2122232425262728, 0x31323334, 0x41424344)
    assert raw[0:2] == bytes((0xC4, 30))
    assert raw[2:6] == (0x0A0B0C0D).to_bytes(4, "little")
    assert raw[6:8] == bytes(2)
    assert raw[8:12] == (0x01020304).to_bytes(4, "little")
    assert raw[12:16] == (0x11121314).to_bytes(4, "little")
    assert raw[16:24] == (0x2122232425262728).to_bytes(8, "little")
    assert raw[24:28] == (0x31323334).to_bytes(4, "little")
    assert raw[28:32] == (0x41424344).to_bytes(4, "little")
    assert len(raw) == PREFIX_BYTES == 32
    assert record.TRAILER.struct.pack(0xCE, 0x01020304) == bytes((0xCE, 1, 2, 3, 4))


def test_a_run_of_records_is_walked_to_its_end() -> None:
    first, second = made(7, b"abc", durable=4096, count=3), made(10, b"", durable=5000)
    found = walk(first + second, 7)
    assert found.fault is None
    assert found.offsets == [4096, 4096 + len(first)]
    assert found.sequences == [7, 10]
    assert found.end == 4096 + len(first) + len(second)
    assert found.next_sequence == 11
    assert found.durable == 5000
    assert found.checksum == crc_of(first) + crc_of(second)


def test_an_empty_slab_has_no_fault() -> None:
    assert walk(b"") == Walk([], [], 4096, 1, 0, 0, None)


@given(st.integers(1, 200), st.integers(0, 7))
def test_every_flipped_bit_in_a_record_is_detected(at: int, bit: int) -> None:
    before, raw, behind = made(1), made(2, b"x" * 164), made(3)
    damaged = bytearray(raw)
    damaged[at] ^= 1 << bit
    found = walk(before + bytes(damaged) + behind)
    assert found.fault is not None
    assert found.end == 4096 + len(before), "it stops at the damaged record, and what came before counts"
    assert found.sequences == [1]


@pytest.mark.parametrize("length", [0, 1, OVERHEAD - 1, 2**31 - 1, 2**31, 2**32 - 1, record.RECORD_BYTES_MAX + 1])
def test_an_impossible_length_is_a_fault_and_is_not_read(length: int) -> None:
    found = walk(with_length(made(1), length))
    assert found.fault is not None
    assert "length" in found.fault
    assert found.wants == 0


def test_a_length_beyond_the_data_says_how_much_it_wants() -> None:
    raw = made(1, b"x" * 1000)
    found = walk(raw[:600])
    assert found.fault == "cut off"
    assert found.wants == len(raw)
    assert walk(raw[:20]).wants == OVERHEAD


def test_a_length_that_differs_after_the_record_is_a_fault() -> None:
    raw = made(1)
    found = walk(with_length(raw, len(raw), len(raw) + 1))
    assert found.fault is not None
    assert "after" in found.fault


def test_a_good_record_of_another_sequence_is_a_fault() -> None:
    found = walk(made(1) + made(3))
    assert found.fault == "a record of sequence 3, expected 2"
    assert found.sequences == [1]


def test_without_an_order_any_sequence_is_accepted() -> None:
    found = walk(made(5) + made(3), UNORDERED)
    assert found.fault is None
    assert found.sequences == [5, 3]


def test_another_kind_of_record_is_a_fault() -> None:
    assert record.walk(memoryview(made(1)), 0, 1, Framing(PREFIX_BYTES + 24)).fault is not None


def test_exactly_one_record_is_checked_as_one() -> None:
    raw = made(1)
    assert record.check(memoryview(raw), FRAMING) is None
    for wrong in (raw[:-1], raw + b"x", b"", raw[:10], b"x" + raw[1:], raw[:-6] + b"x" + raw[-5:]):
        assert record.check(memoryview(wrong), FRAMING) is not None


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_good_records_are_found_after_any_garbage(before: bytes, between: bytes) -> None:
    first, second = made(5, b"first", durable=4096), made(9, b"second", durable=4200)
    data = before + first + between + second
    assert record.find_valid(data, 0, FRAMING) == [
        (len(before), 4096),
        (len(before) + len(first) + len(between), 4200),
    ]
    assert record.find_valid(memoryview(data), len(before) + 1, FRAMING)[-1] == (len(data) - len(second), 4200)


def test_a_damaged_record_is_not_found_but_the_one_inside_its_data_is() -> None:
    inner = made(5, durable=4200)
    outer = bytearray(made(4, b"x" + inner + b"x"))
    outer[-6] ^= 1
    assert record.find_valid(bytes(outer), 0, FRAMING) == [(PREFIX_BYTES + 1, 4200)]
    assert record.find_valid(b"", 0, FRAMING) == []
    assert len(made(1)) == OVERHEAD + 4
    assert TRAILER.size == 5
