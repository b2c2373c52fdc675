"""A client process for `benchmarks.cluster`: `python -m benchmarks.harness.shard_client ADDRESS KIND COUNT`.

It prepares, writes `ready`, waits for a line, makes `COUNT` requests with 256 in flight, and writes a line of JSON: the
requests, the seconds they took, and its processor time. KIND: `append` (durable appends to aggregates of its own) or
`command` (deposits to accounts of its own, in the bank of docs/examples).
"""

from __future__ import annotations

import gc
import json
import sys
import time
import uuid
from typing import Any, Final

import trio

import eventstore as es
from benchmarks.harness.appender import check
from benchmarks.harness.processes import EXAMPLES
from eventstore.client.aio.store import NetworkStore
from eventstore.domain.import_path import load

IN_FLIGHT: Final = 256
ACCOUNTS: Final = 5_000
_PAYLOAD: Final = b"x" * 100


async def main(address: str, kind: str, count: int) -> None:
    own = uuid.uuid4().hex
    async with es.connect(address, silence_timeout=120.0) as store:
        request, rows = await _prepared(store, kind, own, count)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        gc.collect()
        gc.freeze()
        used, started = time.process_time(), time.perf_counter()
        for first in range(0, count, IN_FLIGHT):
            check(list(await request(rows[first : first + IN_FLIGHT])))
        seconds, used = time.perf_counter() - started, time.process_time() - used
    print(json.dumps({"requests": count, "seconds": seconds, "processor_s": used}), flush=True)


async def _prepared(store: NetworkStore, kind: str, own: str, count: int) -> tuple[Any, list[Any]]:
    if kind == "append":
        return store.append_many, [es.Commit(f"{own}-{n}", [es.NewEvent("Happened", _PAYLOAD)], 0) for n in range(count)]
    load("bank:app", EXAMPLES)
    bank: Any = sys.modules["bank"]
    check(list(await store.send_many([bank.Open(f"{own}-{n}", "Ada") for n in range(ACCOUNTS)])))
    return store.send_many, [bank.Deposit(f"{own}-{n * 7 % ACCOUNTS}", 1) for n in range(count)]


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
