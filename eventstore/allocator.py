"""Keeps glibc from returning memory to the kernel after every frame.

By default it does so as soon as 128 KB are free at the end of the heap, and a process that handles buffers of 30 KB then takes
page faults for each: 15 µs, as much as the rest of the work on a frame. Its thresholds are dynamic (mallopt(3)):
freeing one large block raises them to its size and to twice that, so up to 16 MB stay with the process. It needs glibc.
"""

from __future__ import annotations

_BLOCK_BYTES = 8 * 1024 * 1024


def expect_large_buffers() -> None:
    """Raises the thresholds. May be called any number of times; takes microseconds and touches no memory."""
    bytes(_BLOCK_BYTES)
