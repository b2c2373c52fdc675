"""The store without a server: `python -m benchmarks.store [--quick] [--json] [--only NAME,…]`.

own_path       the in-process append path as a share of the least Python could do (see `bare_loop`)
sort           sorting and indexing a full event file in the background, and its effect on appends
recovery       opening a store whose ongoing file is full
many_files     opening a store of many sorted files and aggregates; the first append; the rate; the memory
open_headers   opening completed files by header alone
cache          how many appends find their aggregate in memory, over sorts and after a restart: counts, not times
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import trio

from benchmarks.harness import synthesis
from benchmarks.harness.bare_loop import bare_rate, frames, store_rate
from benchmarks.harness.report import figures_table, machine, write_results
from benchmarks.harness.subject import EVENT_TYPE, PAYLOAD
from eventstore import ANY, NewEvent, flat
from eventstore.settings.setting_declaration import MIB
from eventstore.settings.store import StoreSettings
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.engine import StoreEngine
from eventstore.store.open_store import open_store
from eventstore.store.opening import open_folder

Figures = dict[str, float]
BATCH = 250


def own_path(folder: Path, quick: bool) -> Figures:
    payloads = frames(150 if quick else 800, "own")
    pairs = []
    for turn in range(3 if quick else 7):
        place = folder / str(turn)
        place.mkdir()
        pairs.append((bare_rate(place, payloads), store_rate(place, payloads)))
    return {
        "bare loop, ev/s": statistics.median(bare for bare, _ in pairs),
        "own path, ev/s": statistics.median(own for _, own in pairs),
        "share": statistics.median(own / bare for bare, own in pairs),
    }


def sort(folder: Path, quick: bool) -> Figures:
    size = (64 if quick else 512) * MIB
    return trio.run(_sort, folder, size)


async def _sort(folder: Path, size: int) -> Figures:
    async with open_store(folder, StoreSettings(file_size_bytes=size)) as store:
        events = synthesis.fill_bytes(store.engine, size - 2 * MIB, PAYLOAD)
        quiet = await _latencies(store, lambda done: done >= 2_000)
        while not store.engine.files.headers[0].completed:
            await store.append("filler", [NewEvent(EVENT_TYPE, PAYLOAD)] * 1_000, ANY)
        store.maintenance.wake()
        started = time.perf_counter()
        busy = await _latencies(store, lambda _: store.maintenance.sorted_files > 0)
        seconds = time.perf_counter() - started
    return {
        "file, MB": size / MIB,
        "events": events,
        "sort + index + directory, s": seconds,
        "append p99 quiet, ms": _p99(quiet),
        "append p99 while sorting, ms": _p99(busy),
        "p99 ratio": _p99(busy) / _p99(quiet),
    }


async def _latencies(store: EmbeddedStore, finished: Callable[[int], bool]) -> list[float]:
    """Seconds of one lone append after the other, until `finished`."""
    taken: list[float] = []
    version = await store.version("alone")
    while not finished(len(taken)):
        started = time.perf_counter()
        await store.append("alone", [NewEvent(EVENT_TYPE, PAYLOAD)], version)
        taken.append(time.perf_counter() - started)
        version += 1
    return taken


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1_000


def recovery(folder: Path, quick: bool) -> Figures:
    size = (64 if quick else 512) * MIB
    settings = StoreSettings(file_size_bytes=size + 64 * MIB)
    opened = open_folder(folder, settings)
    events = synthesis.fill_bytes(opened.engine, size, PAYLOAD)
    opened.engine.writer.close()
    opened.lock.release()  # as if killed: nothing else is closed
    started = time.perf_counter()
    again = open_folder(folder, settings)
    seconds = time.perf_counter() - started
    found = again.engine.visible_sequence
    again.close()
    if found != events:
        raise ValueError(f"{found} events after recovery, {events} before")
    return {"ongoing file, MB": size / MIB, "events": events, "recovery, s": seconds}


def many_files(folder: Path, quick: bool) -> Figures:
    files, aggregates = (50, 200_000) if quick else (1_000, 10_000_000)
    synthesis.many_files(folder / "large", files, aggregates)
    started = time.perf_counter()
    opened = open_folder(folder / "large", StoreSettings(sort=False))
    event = flat.encode((0, EVENT_TYPE, PAYLOAD, None))
    synthesis.write(opened.engine, [(synthesis.aggregate(9), 1, "first", None, event)])
    first = time.perf_counter() - started
    memory = _resident("after start")
    empty = open_folder(folder / "empty", StoreSettings(sort=False))
    working, cold = [], []
    for turn in range(3 if quick else 7):
        on_empty, on_large = (_rate(opening.engine, f"turn-{turn}") for opening in (empty, opened))
        working.append(on_large / on_empty)
        cold.append(_cold_rate(opened.engine, turn, aggregates) / on_empty)
    appended = opened.engine.visible_sequence - aggregates + empty.engine.visible_sequence
    memory |= {"appended meanwhile, to both": appended, **_resident("then")}
    opened.close()
    empty.close()
    return {
        "files": files,
        "aggregates": aggregates,
        "first append after start, s": first,
        "rate against an empty store": statistics.median(working),
        "rate, each append to another old aggregate": statistics.median(cold),
        **memory,
    }


def _rate(engine: StoreEngine, tag: str) -> float:
    """Events per second of a working set: 5,000 aggregates that are new to the store, 20 events each."""
    event = flat.encode((0, EVENT_TYPE, PAYLOAD, None))
    started = time.perf_counter()
    for version in range(20):
        for first in range(0, 5_000, BATCH):
            places = range(first, first + BATCH)
            synthesis.write(engine, [(f"{tag}-{n:08d}", version, f"{tag}-{version}-{n}", None, event) for n in places])
    return 100_000 / (time.perf_counter() - started)


def _cold_rate(engine: StoreEngine, turn: int, aggregates: int) -> float:
    """Events per second when every append is to an old aggregate that nothing in memory knows."""
    event = flat.encode((0, EVENT_TYPE, PAYLOAD, None))
    step = aggregates // 20_000
    started = time.perf_counter()
    for first in range(0, 20_000, BATCH):
        places = [place * step + turn for place in range(first, first + BATCH)]
        synthesis.write(engine, [(synthesis.aggregate(n), 1, f"cold-{n}", None, event) for n in places])
    return 20_000 / (time.perf_counter() - started)


def _resident(when: str) -> Figures:
    """Megabytes of this process: all, and without the pages of files that the system may drop at any time.

    Unsorted commits are in memory, some 190 bytes each, so the figure after the start is that of the sorted files.
    """
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        f"resident {when}, MB": int(fields["VmRSS"].split()[0]) / 1024,
        f"not mapped files {when}, MB": int(fields["RssAnon"].split()[0]) / 1024,
    }


def open_headers(folder: Path, quick: bool) -> Figures:
    files = 500 if quick else 10_000
    synthesis.many_files(folder, files, files * 10)
    started = time.perf_counter()
    open_folder(folder, StoreSettings(sort=False)).close()
    return {"files": files, "open, s": time.perf_counter() - started}


def cache(folder: Path, quick: bool) -> Figures:
    """Appends to 10,002 aggregates, the nth most wanted 1/n as often as the first, in files of 1 MiB."""
    aggregates, sorts = 10_002, 5 if quick else 50
    settings = StoreSettings(file_size_bytes=MIB, preallocate_bytes=MIB, sort=False)
    names = [f"order-{number:08d}" for number in range(aggregates)]
    weights = list(accumulate(1 / rank for rank in range(1, aggregates + 1)))
    draw = random.Random(1)
    opened = open_folder(folder, settings)
    _append(opened.engine, names, "first")
    known, directory = opened.engine.version_cache, opened.engine.directory
    asked, misses, lookups, files = known.asked, known.misses, directory.lookups, len(opened.engine.files.headers)
    while len(opened.engine.files.headers) < files + sorts:
        _append(opened.engine, draw.choices(names, cum_weights=weights, k=1_000), f"zipf-{known.asked}")
    row: Figures = {
        "sorts": sorts,
        "appends": known.asked - asked,
        "hit rate": 1 - (known.misses - misses) / (known.asked - asked),
        "directory look-ups": directory.lookups - lookups,
        "known aggregates": len(known),
        "bytes a known aggregate": known.size_bytes() / len(known),
    }
    opened.close()
    opened = open_folder(folder, settings)
    lookups = opened.engine.directory.lookups
    _append(opened.engine, draw.choices(names, cum_weights=weights, k=1_000), "again")
    row["directory look-ups of 1,000 appends after a restart"] = opened.engine.directory.lookups - lookups
    opened.close()
    return row


def _append(engine: StoreEngine, names: list[str], tag: str) -> None:
    event = flat.encode((0, EVENT_TYPE, PAYLOAD, None))
    for first in range(0, len(names), BATCH):
        synthesis.write(
            engine, [(name, ANY, f"{tag}-{first + n}", None, event) for n, name in enumerate(names[first : first + BATCH])]
        )
        synthesis.sort_completed(engine)


MEASURES: dict[str, Callable[[Path, bool], Figures]] = {
    "own_path": own_path,
    "sort": sort,
    "recovery": recovery,
    "many_files": many_files,
    "open_headers": open_headers,
    "cache": cache,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description="The store without a server.")
    parser.add_argument("--quick", action="store_true", help="smaller files, less than 45 seconds in all")
    parser.add_argument("--json", action="store_true", help="print the JSON document to stdout")
    parser.add_argument("--only", default=",".join(MEASURES), metavar="NAME[,NAME]", help=f"of: {', '.join(MEASURES)}")
    options = parser.parse_args()
    results: dict[str, Figures] = {}
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="eventstore-bench-") as folder:
            results[name] = MEASURES[name](Path(folder), options.quick)
        print(f"{name}: " + ", ".join(f"{key} {value:,.3g}" for key, value in results[name].items()), file=sys.stderr)
    table = figures_table(results, "measure")
    document = json.dumps({"benchmark": "store", "quick": options.quick, "machine": machine(), "results": results}, indent=2)
    write_results(f"store{'-quick' if options.quick else ''}", document, table)
    print(document if options.json else table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
