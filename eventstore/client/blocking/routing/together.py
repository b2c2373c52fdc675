"""What the router of the blocking client does for several shards, and how it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
pause = time.sleep


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Makes the calls one after the other, and returns their results in order."""
    return [call() for call in calls]
