"""The range cache finds the sorted files that may hold an aggregate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eventstore.store.sorted.range_cache import RangeCache

ids = st.binary(min_size=1, max_size=3)


@given(st.lists(st.tuples(ids, ids), max_size=12), ids)
def test_exactly_the_files_whose_range_holds_the_id_are_found(ranges: list[tuple[bytes, bytes]], wanted: bytes) -> None:
    cache = RangeCache()
    for number, (one, other) in enumerate(ranges, 1):
        cache.add(min(one, other), max(one, other), number)
    assert bool(cache) == bool(ranges)
    assert cache.holding(wanted) == [number for number, pair in enumerate(ranges, 1) if min(pair) <= wanted <= max(pair)]
    for number in cache.with_prefix(wanted):
        low, high = min(ranges[number - 1]), max(ranges[number - 1])
        assert low <= wanted + b"\xff" * 256
        assert high >= wanted
    for number, (one, other) in enumerate(ranges, 1):
        if one.startswith(wanted) or other.startswith(wanted):
            assert number in cache.with_prefix(wanted)


def test_a_file_that_is_added_again_has_one_range() -> None:
    cache = RangeCache()
    cache.add(b"a", b"c", 1)
    cache.add(b"m", b"p", 1)
    assert cache.touching(b"a", b"z") == [1]
    assert cache.holding(b"b") == []
    assert cache.holding(b"n") == [1]
