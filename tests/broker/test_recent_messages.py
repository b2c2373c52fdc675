"""Recent messages are kept in memory, bounded by number and bytes."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from eventstore.broker.log.recent_messages import RecentMessages


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(0, 20), st.integers(0, 3_000))
def test_the_latest_records_are_kept_by_count_and_within_the_bytes(
    batches: list[int], records_max: int, bytes_max: int
) -> None:
    recent, position, sent = RecentMessages(records_max, bytes_max), 0, []
    for count in batches:
        positions = list(range(position, position + count))
        records = [bytes(number % 50) for number in positions]
        recent.add(positions, records, sum(map(len, records)))
        position += count
        sent += records
        kept = [number for number in range(position) if recent.get(number) is not None]
        assert kept == list(range(position - len(kept), position)), "the latest ones, without a gap"
        assert len(recent) == len(kept) <= records_max
        assert sum(len(sent[number]) for number in kept) <= bytes_max
        if sum(map(len, sent)) <= bytes_max:
            assert len(kept) == min(records_max, position)


def test_records_in_memory_take_little_more_than_their_bytes_after_any_number_of_batches() -> None:
    recent, count, size = RecentMessages(500, 1 << 30), 50, 2_000
    tracemalloc.start()
    try:
        for position in range(0, 10_000, count):
            recent.add(list(range(position, position + count)), [bytes(size) for _ in range(count)], count * size)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(recent) == 500
    assert 500 * size < taken < 600 * size
