"""Runs a consumer as a process whose handler kills it: at each message `kill` it ends at once, without a word to the server.

    python -m tests.consumers.deadly_process ADDRESS KIND MODE CONCURRENCY [DELAY]

KIND: trio, asyncio or blocking. MODE: parallel, sequential or key. DELAY: seconds before a message is tried again. The message
`fail` fails. It writes a line for each other message that it has handled.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import trio

import eventstore as es

GROUP = "billing"
ATTEMPTS = 3


def handle(message: es.Delivery) -> None:
    if message.body == b"kill":
        os._exit(9)
    if message.body == b"fail":
        raise ValueError("as it always does")
    print(message.body.decode(), flush=True)


def options(mode: str, delay_s: float) -> dict[str, Any]:
    chosen = {"order": "key"} if mode == "key" else {"mode": mode}
    return {**chosen, "member": "m-1", "commit_interval": 0.5, "retries": es.Retries((delay_s,), attempts=ATTEMPTS)}


async def consume(address: str, mode: str, concurrency: int, delay_s: float) -> None:
    async with es.connect(address) as store, store.consumer(GROUP, "orders", **options(mode, delay_s)) as consumer:
        await consumer.run(handle, concurrency=concurrency)


def main(address: str, kind: str, mode: str, concurrency: str, delay: str = "0.01") -> None:
    if kind == "trio":
        trio.run(consume, address, mode, int(concurrency), float(delay))
    elif kind == "asyncio":
        asyncio.run(consume(address, mode, int(concurrency), float(delay)))
    else:
        chosen = options(mode, float(delay))
        with es.blocking.connect(address) as store, store.consumer(GROUP, "orders", **chosen) as consumer:
            consumer.run(handle, concurrency=int(concurrency))


if __name__ == "__main__":
    main(*sys.argv[1:])
