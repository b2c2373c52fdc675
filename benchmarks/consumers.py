"""What the broker is like to live with: `python -m benchmarks.consumers [--quick] [--json]`.

latency      send to receive at a steady 1,000 messages a second, one sender and one consumer on separate connections
idle         processor time of the server while 1,000 pulls wait, as a share of one processor
slow reader  the rate of sending while a group that takes 0.2 ms for each message, at most 20 MB/s, reads old messages from
             files, to that of sending alone
opening      from the start of the server's process until it answers, empty and with a million of the old messages, 4 GB; Python
             itself takes most of both, so that what the messages cost is the difference

All against a real server process with durability `sync`. The old messages have 4 KiB each, and `--old-bytes` in all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import trio

import eventstore as es
from benchmarks.harness.report import write_results
from benchmarks.harness.subject import PAYLOAD, processor_s
from benchmarks.ours.broker import OurBroker, check
from eventstore.client.aio.store import NetworkStore
from eventstore.client.consumer.delivery import RawBatch

RATE: Final = 1_000
WAITING: Final = 1_000
OLD_BODY_BYTES: Final = 4_096
BACKLOG: Final = 1_000_000
SLOW_S: Final = 0.0002
SEND_BATCH: Final = 256
Figures = dict[str, float]


async def latency(broker: OurBroker, seconds: float) -> Figures:
    """Milliseconds from before the send to when the consumer has the message; `late` are sends that began after their time."""
    found: list[float] = []
    async with es.connect(broker.address) as sending, es.connect(broker.address) as receiving:
        broker.store.broker.create_topic("latency", 1, if_missing=True)
        async with receiving.consumer(uuid.uuid4().hex, topics="latency", from_end=True) as consumer:
            count = int(seconds * RATE)

            async def receive() -> None:
                async for message in consumer:
                    found.append(time.perf_counter() - float(message.body))
                    message.done()
                    if len(found) == count:
                        return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                late = await _send_steadily(sending, count)
    ordered = sorted(found)
    return {
        "latency p50 ms": statistics.median(ordered) * 1e3,
        "latency p99 ms": ordered[len(ordered) * 99 // 100] * 1e3,
        "latency max ms": ordered[-1] * 1e3,
        "latency late sends": late,
    }


async def _send_steadily(store: NetworkStore, count: int) -> int:
    """Sends `count` messages, each at its time, whether or not the previous ones were answered."""
    topic, late = store.topic("latency"), 0
    async with trio.open_nursery() as nursery:
        begun = trio.current_time() + 0.5
        for number in range(count):
            due = begun + number / RATE
            late += trio.current_time() > due + 0.001
            await trio.sleep_until(due)
            nursery.start_soon(topic.send, repr(time.perf_counter()).encode())
    return late


async def idle(broker: OurBroker, seconds: float) -> Figures:
    """Connections with one waiting pull each."""
    broker.store.broker.create_topic("silent", 256, if_missing=True)
    broker.store.broker.create_topic("quiet", 256, if_missing=True)
    async with trio.open_nursery() as nursery:

        async def wait(number: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with es.connect(broker.address) as store:
                want = ("silent" if number % 2 else "quiet", number % 256, 0, None)
                task_status.started()
                while True:
                    await store.broker.pull([want], wait=60.0)

        for number in range(WAITING):
            await nursery.start(wait, number)
        await trio.sleep(1.0)
        before = processor_s(broker.pid)
        await trio.sleep(seconds)
        used = processor_s(broker.pid) - before
        nursery.cancel_scope.cancel()
    return {"idle pulls": WAITING, "idle % of a processor": used / seconds * 100}


def fill_old(broker: OurBroker, messages: int) -> Figures:
    """Fills a separate topic with old messages of 4 KiB."""
    broker.store.broker.create_topic("old", 4, if_missing=True)
    topic, batch = broker.store.topic("old"), [os.urandom(OLD_BODY_BYTES)] * 1_000
    for _ in range(messages // len(batch)):
        check(topic.send_many(batch))
    return {}


def opening(broker: OurBroker) -> float:
    """Seconds until a new server answers; the median of three starts."""
    return statistics.median(broker.restart() for _ in range(3))


async def slow_reader(broker: OurBroker, rounds: int, turn_s: float) -> Figures:
    """Sends in turns with and without a group that reads the old messages; the median of the ratios of neighbouring turns."""
    ratios, read = [], 0
    async with es.connect(broker.address) as store, es.connect(broker.address) as reading:
        for _ in range(rounds):
            alone = await _rate(store, turn_s)
            async with trio.open_nursery() as nursery:
                async with reading.consumer(uuid.uuid4().hex, topics="old") as consumer:
                    counted = [0]
                    nursery.start_soon(_read_slowly, consumer.batches(), counted)
                    ratios.append(await _rate(store, turn_s) / alone)
                    read += counted[0]
                    nursery.cancel_scope.cancel()
    return {
        "slow reader: sending, to sending alone": statistics.median(ratios),
        "slow reader MB/s": read * OLD_BODY_BYTES / (rounds * turn_s) / 1e6,
    }


async def _read_slowly(batches: AsyncIterator[RawBatch], counted: list[int]) -> None:
    """A group that lags and is slower than the broker: its load on the broker does not depend on the size of batches."""
    async for batch in batches:
        counted[0] += batch.count
        batch.done()
        await trio.sleep(SLOW_S * batch.count)


async def _rate(store: NetworkStore, seconds: float) -> float:
    """Messages a second, 256 in flight."""
    topic, sent, started = store.topic("sent"), 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        check(await topic.send_many([PAYLOAD] * SEND_BATCH))
        sent += SEND_BATCH
    return sent / (time.perf_counter() - started)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the old messages, short turns")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--old-bytes", type=int, default=10_000_000_000, help="how much there is to read (%(default)s)")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    old = options.old_bytes // OLD_BODY_BYTES // (100 if options.quick else 1)
    backlog = min(old, BACKLOG)
    broker, figures = OurBroker(durable=True), Figures()

    def opening_backlog() -> Figures:
        seconds = opening(broker)
        return {
            "opening s": seconds,
            "opening, messages": backlog,
            "opening, s for these": seconds - figures["opening, empty s"],
        }

    try:
        broker.start()
        steps: list[tuple[str, Callable[[], Figures]]] = [
            ("opening, empty", lambda: {"opening, empty s": opening(broker)}),
            ("latency", lambda: trio.run(latency, broker, 3.0 if options.quick else 20.0)),
            ("idle", lambda: trio.run(idle, broker, 5.0 if options.quick else 20.0)),
            ("a backlog", lambda: fill_old(broker, backlog)),
            ("opening", opening_backlog),
            ("more old messages", lambda: fill_old(broker, old - backlog)),
            ("slow reader", lambda: trio.run(slow_reader, broker, 3 if options.quick else 7, 1.0 if options.quick else 3.0)),
        ]
        for name, step in steps:
            print(f"{name} …", file=sys.stderr, flush=True)
            figures |= step()
    finally:
        broker.stop()
    for name, value in figures.items():
        print(f"{name:45} {value:14,.2f}", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(figures, indent=2))
    write_results(f"consumers{'-quick' if options.quick else ''}", json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
