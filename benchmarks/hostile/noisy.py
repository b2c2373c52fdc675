"""A client that asks for all that it gets, under a name: `python -m benchmarks.hostile.noisy ADDRESS`, with EVENTSTORE_TOKEN.

Connections with many appends in flight each, until it is killed. As the other hostile clients it gives way on the processor.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from typing import Final

import trio

import eventstore as es

CONNECTIONS: Final = 8
_IN_FLIGHT: Final = 64  # on each
_PAYLOAD: Final = b"x" * 1_000


async def _append(store: es.NetworkStore, name: str) -> None:
    for version in count():
        await store.append(name, [es.NewEvent("Happened", _PAYLOAD)], version)


async def _connection(address: str, number: int) -> None:
    async with es.connect(address) as store, trio.open_nursery() as appends:
        for each in range(_IN_FLIGHT):
            appends.start_soon(_append, store, f"bench-noisy-{os.getpid()}-{number}-{each}")


async def main(address: str) -> None:
    """Runs until it is cancelled."""
    async with trio.open_nursery() as connections:
        for number in range(CONNECTIONS):
            connections.start_soon(_connection, address, number)


if __name__ == "__main__":
    os.nice(19)
    trio.run(main, sys.argv[1])
