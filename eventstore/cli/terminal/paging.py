"""Asks for lists that a server answers in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final, TypeVar

_ROWS: Final = 1_000  # of a full page, of clients, alarms and parked events alike
T = TypeVar("T")


def all_rows(page_after: Callable[[int], Sequence[T]]) -> Iterator[T]:
    """Yields the rows of all pages. `page_after`: returns the page after the first so many rows."""
    for skip in count(0, _ROWS):
        page = page_after(skip)
        yield from page
        if len(page) < _ROWS:
            return
