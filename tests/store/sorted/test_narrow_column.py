"""A narrow column gives back the values that it was made from, by row, by slice and by an array of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.model import TIME_MAX, TIME_MIN, VERSION_MAX
from eventstore.store.sorted.narrow_column import GROUP, NarrowColumn, PackedColumn, planes_of


def column_of(values: list[int]) -> tuple[NarrowColumn, PackedColumn]:
    packed = PackedColumn(np.array(values, np.int64))
    kinds = [f"<u{size}" for size in planes_of(packed.width)]
    planes = [np.frombuffer(plane, kind) for plane, kind in zip(packed.planes, kinds, strict=True)]
    return NarrowColumn(packed.frames, planes, len(values)), packed


def check(values: list[int]) -> PackedColumn:
    column, packed = column_of(values)
    count = len(values)
    assert len(column) == count
    assert column[:].tolist() == values
    rows = np.arange(count)[:: max(1, count // 50)]
    assert [column.item(row) for row in rows.tolist()] == [values[row] for row in rows.tolist()]
    assert column[rows[::-1]].tolist() == column.take(rows[::-1]).tolist() == [values[row] for row in rows[::-1].tolist()]
    for first, last in ((0, 1), (count // 2, count), (1, count - 1), (GROUP - 1, GROUP + 1), (count, count)):
        assert column[first:last].tolist() == values[first:last]
    odd = np.arange(count) % 2 == 1
    assert column[odd].tolist() == values[1::2]
    return packed


RANGES = [(0, 3), (0, 1 << 20), (TIME_MIN, TIME_MAX), (0, VERSION_MAX)]
columns = st.sampled_from(RANGES).flatmap(lambda limits: st.lists(st.integers(*limits), min_size=1, max_size=40))


@given(columns, st.integers(1, 90))
def test_any_values_come_back(values: list[int], times: int) -> None:
    check(values * times)


@given(st.integers(-1000, 1000), st.integers(-(1 << 30), 1 << 30), st.integers(1, 3 * GROUP + 1))
def test_evenly_spaced_values_take_no_bytes(first: int, step: int, count: int) -> None:
    packed = check([first + place * step for place in range(count)])
    assert packed.width == 0


@pytest.mark.parametrize(
    ("largest", "width"), [(0, 0), (255, 1), (256, 2), (65_536, 3), (1 << 24, 4), (1 << 40, 6), (1 << 57, 8)]
)
def test_a_column_is_as_wide_as_its_largest_distance_needs(largest: int, width: int) -> None:
    packed = check([0, largest] * GROUP)
    assert packed.width == width
    assert sum(map(len, packed.planes)) == 2 * GROUP * width


def test_one_value_that_stands_out_does_not_bend_the_line_of_another_group() -> None:
    values = [7 * place for place in range(GROUP)] + [0] * GROUP
    values[GROUP + 500] = 200
    assert check(values).width == 1
