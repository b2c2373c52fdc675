"""The broker log in one process, without server and client: what a message costs, and how long a large backlog takes to open.

    python -m benchmarks.message_log [--quick] [--folder DIR]

Sends are timed with what a committer does around them (take, write, sync, show); pulls return raw records, `messages` decodes
them as a consumer does. Every workload runs in turns with the others; told are the median turn, the spread, and the time on
the processor, which says more on a machine that others use.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.opening import OpenBroker, open_broker_folder
from eventstore.records.message import RawMessage, decode_messages
from eventstore.settings.broker import BrokerSettings

BODY: Final = bytes(range(256))
BATCH: Final = 256
QUEUES: Final = 4
TURNS: Final = 5


def send(opened: OpenBroker, batch: list[RawMessage], batches: int) -> None:
    """Sends batch after batch; each is written, and synced where durability is `sync`, before the next."""
    engine, topic = opened.engine, opened.topics.get("bench")
    durable = opened.settings.durability == "sync"
    for _ in range(batches):
        engine.send(topic, batch)
        while (segment := engine.take()) is not None:
            engine.write(segment)
            engine.mark_written(segment, durable=durable)


def pull(engine: MessageEngine, start: int, messages: int, page: int, *, decode: bool = False) -> int:
    """Pulls messages of the first queue, page by page. Returns how many there were."""
    log, offset = next(iter(engine.queues.values())), start
    while offset < start + messages:
        pulled = engine.reader.pull(log, offset, engine.visible_position, page, 1 << 20)
        if decode:
            decode_messages(pulled.records, pulled.count)
        if not pulled.count:
            break
        offset = pulled.next_offset
    return offset - start


def opened_in(folder: Path, durability: str) -> OpenBroker:
    settings = BrokerSettings(durability=durability)  # type: ignore[arg-type] # one of two words
    opened = open_broker_folder(folder / durability, settings)
    if "bench" not in opened.topics.by_name:
        opened.topics.create("bench", QUEUES)
    return opened


def workloads(fast: OpenBroker, safe: OpenBroker, messages: int) -> dict[str, Callable[[], int]]:
    """Name → a turn, which returns how many messages it was about."""
    plain: list[RawMessage] = [(BODY, None, None, None, None)] * BATCH
    keyed: list[RawMessage] = [(BODY, f"order-{number}", "paid", None, None) for number in range(BATCH)]
    batches = messages // BATCH

    def sending(opened: OpenBroker, batch: list[RawMessage], count: int) -> Callable[[], int]:
        def turn() -> int:
            send(opened, batch, count)
            return count * len(batch)

        return turn

    def pulling(page: int, *, warm: bool, decode: bool = False) -> Callable[[], int]:
        def turn() -> int:
            engine = fast.engine
            log = next(iter(engine.queues.values()))
            kept = engine.recent._records_max // QUEUES - BATCH
            start = max(0, log.visible_end(engine.visible_position) - kept) if warm else 0
            rounds = max(1, messages // kept) if warm else 1
            return sum(pull(engine, start, kept if warm else messages // QUEUES, page, decode=decode) for _ in range(rounds))

        return turn

    return {
        "send, async, batches of 256": sending(fast, plain, batches),
        "send, async, with key and tag": sending(fast, keyed, batches),
        "send, sync, batches of 256": sending(safe, plain, max(1, batches // 20)),
        "send, sync, one by one": sending(safe, plain[:1], max(1, batches // 4)),
        "pull, from memory, 512 a page": pulling(512, warm=True),
        "pull, from memory, 64 a page": pulling(64, warm=True),
        "pull, from files, 512 a page": pulling(512, warm=False),
        "pull, from files, 64 a page": pulling(64, warm=False),
        "pull, from memory, as messages": pulling(512, warm=True, decode=True),
    }


def time_opening(folder: Path, messages: int, size: int) -> tuple[float, float, int]:
    """Returns wall and processor seconds to open a backlog of `messages` messages of `size` bytes, and its bytes on disk."""
    opened = opened_in(folder, "async")
    batch: list[RawMessage] = [(bytes(size), None, None, None, None)] * 64
    send(opened, batch, messages // 64)
    opened.engine.trim(opened.engine.index_completed())
    opened.close()
    bytes_ = sum(path.stat().st_size for path in (folder / "async" / "messages").iterdir())
    started, busy = time.perf_counter(), time.process_time()
    opened = opened_in(folder, "async")
    seconds = time.perf_counter() - started, time.process_time() - busy
    opened.close()
    return *seconds, bytes_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--folder", type=Path, help="folder for the scratch data; its disk is measured")
    arguments = parser.parse_args()
    messages = 25_600 if arguments.quick else 256_000
    scratch = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        fast, safe = opened_in(scratch, "async"), opened_in(scratch, "sync")
        runs = workloads(fast, safe, messages)
        costs: dict[str, list[float]] = {name: [] for name in runs}
        processor: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(TURNS):
            for name, turn in runs.items():
                started, busy = time.perf_counter(), time.process_time()
                done = turn()
                costs[name].append((time.perf_counter() - started) / done * 1e6)
                processor[name].append((time.process_time() - busy) / done * 1e6)
        fast.close()
        safe.close()
        for name, found in costs.items():
            median = statistics.median(found)
            spread = f"{min(found):.2f} to {max(found):.2f}"
            busy = statistics.median(processor[name])
            print(f"{name:34} {median:8.2f} µs a message ({spread}), {busy:6.2f} on the processor, {1e6 / median:12,.0f} /s")
        shutil.rmtree(scratch / "async")
        seconds, busy, size = time_opening(scratch, messages * 4, 4096 if not arguments.quick else 400)
        print(f"opening {messages * 4:,} messages, {size / 1e9:.1f} GB: {seconds:.2f} s, {busy:.2f} s on the processor")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
