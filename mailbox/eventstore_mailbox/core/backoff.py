"""The delay before a failed operation is retried."""

from __future__ import annotations


class RetryDelay:
    """Doubles from `first_s` up to `max_s`; without jitter, so that a run can be repeated."""

    __slots__ = ("_first_s", "_max_s", "_next_s")

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    @property
    def longest(self) -> bool:
        """Whether the next delay is as long as any after it."""
        return self._next_s >= self._max_s

    def next_s(self) -> float:
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return delay

    def reset(self) -> None:
        self._next_s = self._first_s
