"""The top-k counter, retry delays."""

from __future__ import annotations

import random

from eventstore_mailbox.core.backoff import RetryDelay
from eventstore_mailbox.top_k import TopK


def test_the_most_frequent_keys_are_found_in_bounded_memory() -> None:
    chance, hottest = random.Random(7), TopK(32)
    for number in range(20_000):
        hottest.add("hot" if chance.random() < 0.1 else "warm" if chance.random() < 0.05 else f"cold {number}")
    assert [key for key, _ in hottest.top()[:2]] == ["hot", "warm"]
    assert len(hottest.top()) == 32


def test_retry_delays_double_up_to_a_bound() -> None:
    backoff = RetryDelay(1, 5)
    assert [backoff.next_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.next_s() == 1
