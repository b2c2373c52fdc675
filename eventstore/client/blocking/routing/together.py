"""What the router of the blocking client does for several shards, how it waits, and how it learns of a newer map."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
pause = time.sleep


def watch_map(entry: object, table: object) -> Callable[[], object]:
    """Does nothing: this client asks for the map when a shard refuses a request or cannot be reached."""
    return lambda: None


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Makes the calls one after the other, and returns their results in order."""
    return [call() for call in calls]
