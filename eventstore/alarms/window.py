"""Samples of counters, which say what a counter was at the beginning of its window."""

from __future__ import annotations

from collections import deque
from typing import Final

_SAMPLES_MAX: Final = 60


class CounterWindow:
    """Samples of one or two counters over a time, at most `_SAMPLES_MAX` of them. Times are monotonic seconds."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()

    def increases(self, values: tuple[float, ...], now: float) -> tuple[float, ...]:
        """Takes the values of now; returns by how much they have grown since the window began, or since the first sample."""
        samples = self._samples
        if samples and any(value < last for value, last in zip(values, samples[-1][1], strict=True)):
            samples.clear()  # another process counts from 0 on
        if not samples or now - samples[-1][0] >= self._length_s / _SAMPLES_MAX:
            samples.append((now, values))
        while len(samples) > 1 and samples[1][0] <= now - self._length_s:
            samples.popleft()
        return tuple(value - first for value, first in zip(values, samples[0][1], strict=True))

    def is_whole(self, now: float) -> bool:
        """Whether the first sample is as old as the window is long."""
        return bool(self._samples) and now - self._samples[0][0] >= self._length_s
