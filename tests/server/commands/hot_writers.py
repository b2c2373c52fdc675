"""Plain clients that write the same aggregates without a pause, so something of theirs is always on its way to the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

import eventstore as es
from tests.waiting import wait_until

TASKS = 16


@contextmanager
def hot_writers(address: str, write_of: Callable[[int], tuple[str, es.NewEvent]]) -> Iterator[list[int]]:
    """Has tasks on two connections append what `write_of` returns for the number of each; yields how often each has."""
    counts = [0] * TASKS
    ends = threading.Event()

    async def write(store: es.NetworkStore, number: int) -> None:
        name, event = write_of(number)
        while not ends.is_set():
            await store.append(name, [event], es.ANY)
            counts[number] += 1

    async def run() -> None:
        async with es.connect(address) as one, es.connect(address) as other, trio.open_nursery() as nursery:
            for number in range(TASKS):
                nursery.start_soon(write, (one, other)[number % 2], number)

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    try:
        wait_until(lambda: all(counts), "a writer has not begun")
        yield counts
    finally:
        ends.set()
        thread.join()
