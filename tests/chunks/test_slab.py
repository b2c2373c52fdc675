"""A slab walk finds the same records as `record.walk` for any bytes, and names the same fault in the same words."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eventstore.chunks import record, slab
from eventstore.chunks.record import LENGTH_AT, TRAILER, UNORDERED, Walk
from tests.chunks.sample_records import FRAMING, sealed
from tests.chunks.sample_records import record as made

bodies = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 3), st.integers(0, 2**32 - 1)), min_size=1, max_size=12)


def run_of(rows: list[tuple[int, int, int]], first: int) -> list[bytes]:
    """Returns contiguous records; each row is (bytes, sequences, known durable)."""
    records = []
    for size, count, durable in rows:
        records.append(made(first, bytes(range(size)), count=count, durable=durable))
        first += count
    return records


def walks_alike(data: bytes, base: int, first: int) -> Walk:
    found = slab.walk(data, base, first, FRAMING)
    assert found == record.walk(memoryview(data), base, first, FRAMING)
    assert slab.walk(data, base, UNORDERED, FRAMING) == record.walk(memoryview(data), base, UNORDERED, FRAMING)
    return found


@given(bodies, st.integers(1, 2**62), st.integers(0, 2**32 - 1))
def test_a_slab_of_good_records_is_walked_to_its_end(rows: list[tuple[int, int, int]], first: int, base: int) -> None:
    records = run_of(rows, first)
    found = walks_alike(b"".join(records), base, first)
    assert found.fault is None
    assert len(found.offsets) == len(records)


@given(bodies, st.data())
def test_a_flipped_bit_is_located(rows: list[tuple[int, int, int]], draw: st.DataObject) -> None:
    records = run_of(rows, 1)
    place = draw.draw(st.integers(0, len(records) - 1))
    damaged = bytearray(records[place])
    damaged[draw.draw(st.integers(0, len(damaged) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    records[place] = bytes(damaged)
    found = walks_alike(b"".join(records), 4096, 1)
    assert found.fault is not None
    assert len(found.offsets) == place


@given(bodies, st.data())
def test_truncated_data_says_how_much_it_wants(rows: list[tuple[int, int, int]], draw: st.DataObject) -> None:
    data = b"".join(run_of(rows, 1))
    cut = draw.draw(st.integers(0, len(data)))
    walks_alike(data[:cut], 4096, 1)
    walks_alike(data[:cut] + bytes(draw.draw(st.integers(0, 200))), 4096, 1)


@given(bodies, st.data())
def test_a_wrong_record_with_a_good_checksum_is_detected(rows: list[tuple[int, int, int]], draw: st.DataObject) -> None:
    """Forges another sequence, mark, or length before or after the body: faults that a checksum alone would not detect."""
    records = run_of(rows, 1)
    place = draw.draw(st.integers(0, len(records) - 1))
    wrong = bytearray(records[place])
    layout, at = draw.draw(
        st.sampled_from([("<Q", 16), ("<B", 0), ("<B", 1), ("<I", LENGTH_AT), (">I", -4), ("<B", -TRAILER.size)])
    )
    value = draw.draw(st.integers(0, 256 ** struct.calcsize(layout) - 1) | st.integers(0, 200))
    struct.pack_into(layout, wrong, at % len(wrong), value % 256 ** struct.calcsize(layout))
    records[place] = sealed(wrong)
    found = walks_alike(b"".join(records), 4096, 1)
    assert (found.fault is None) == (bytes(wrong) == run_of(rows, 1)[place])


def test_structs_are_gathered_from_any_offset() -> None:
    layout = np.dtype({"names": ["b"], "formats": [">u2"], "offsets": [1], "itemsize": 3})
    rows = slab.gather(bytes(range(10)), np.array([7, 0, 1]), layout)
    assert rows["b"].tolist() == [0x0809, 0x0102, 0x0203]


def test_sequences_do_not_wrap_after_the_largest() -> None:
    largest = 2**64 - 1
    data = made(largest, b"", count=1) + made(0, b"", count=1)
    assert walks_alike(data, 4096, largest).fault == f"a record of sequence 0, expected {largest + 1}"
    walks_alike(data, 4096, largest + 1)
