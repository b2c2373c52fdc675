"""What the router of the blocking client does for several shards, how it waits, and how it learns of a newer map."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
pause = time.sleep


def watch_map(entry: object, table: object) -> Callable[[], object]:
    """Does nothing: this client asks for the map when a shard refuses a request or cannot be reached."""
    return lambda: None


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Makes the calls at the same time, all but the first on threads, and returns their results in order.

    An exception in this thread, as of a signal handler, leaves the others to end by themselves.
    """
    if not calls:
        return []
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def keep(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=keep, args=(place,), daemon=True) for place in range(1, len(calls))]
    for thread in threads:
        thread.start()
    results[0] = calls[0]()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    return [results[place] for place in range(len(calls))]
