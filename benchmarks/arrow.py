"""Events as objects and as Arrow record batches, from a server to a table: how many a second.

    python -m benchmarks.arrow [--events 200000]

A server in a process of its own; the client in this one. Each way runs in turns with the others; told is the median of the
time on the client's processor, which says more on a machine that others use, and the ratio to objects.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import eventstore as es
import eventstore.domain as d
from eventstore.client.blocking.store import BlockingStore
from eventstore.records.arrow_page import schema

TURNS: Final = 5


@d.event("benchmark.Deposited")
@dataclass(frozen=True)
class Deposited:
    account: str
    cents: int
    rate: Decimal
    note: str


KIND: Final = d.event_type(Deposited)
COLUMNS: Final = d.EventColumns(Deposited)


def fill(store: BlockingStore, events: int) -> None:
    """Appends commits of one event."""
    event = [KIND.encode(Deposited(f"account-{place}", place, Decimal(place) / 4, "x" * 40)) for place in range(1_000)]
    for first in range(0, events, 1_000):
        store.append_many([es.Commit(f"account-{(first + place) % 5_000}", [event[place]], es.ANY) for place in range(1_000)])


def as_objects(store: BlockingStore) -> int:
    return sum(1 for _ in store.read_all())


def as_batches(store: BlockingStore) -> int:
    return sum(map(len, store.read_all_arrow()))


def table_of_objects(store: BlockingStore) -> int:
    rows = [
        (e.sequence, e.aggregate_id, e.version, e.type, e.timestamp, e.command_id, e.data, e.is_json, e.metadata, e.tags)
        for e in store.read_all()
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema()).num_rows  # type: ignore[no-any-return]


def table_of_batches(store: BlockingStore) -> int:
    return pa.Table.from_batches(store.read_all_arrow(), schema()).num_rows  # type: ignore[no-any-return]


def fields_of_objects(store: BlockingStore) -> int:
    rows = []
    for event in store.read_all():
        found = KIND.decode(event)
        rows.append((event.sequence, found.account, found.cents, found.rate, found.note))
    kinds = [COLUMNS.schema.field(name).type for name in ("sequence", "account", "cents", "rate", "note")]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.Table.from_arrays(arrays, names=["sequence", "account", "cents", "rate", "note"]).num_rows  # type: ignore[no-any-return]


def fields_of_batches(store: BlockingStore) -> int:
    return pa.Table.from_batches(map(COLUMNS.of, store.read_all_arrow()), COLUMNS.schema).num_rows  # type: ignore[no-any-return]


PAIRS: Final[dict[str, tuple[Callable[[BlockingStore], int], Callable[[BlockingStore], int]]]] = {
    "read": (as_objects, as_batches),
    "table": (table_of_objects, table_of_batches),
    "table with the fields of the class": (fields_of_objects, fields_of_batches),
}


def measured(way: Callable[[BlockingStore], int], store: BlockingStore, events: int) -> float:
    began = time.process_time()
    assert way(store) == events
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    events = parser.parse_args().events // 1_000 * 1_000
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "eventstore", "serve", "--data", str(Path(folder) / "data"), "--listen", "127.0.0.1:0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert server.stdout is not None
            address = next(word for line in server.stdout for word in line.split() if word.startswith("address=")).partition(
                "="
            )[2]
            with es.blocking.connect(address, timeout=None) as store:
                fill(store, events)
                for name, pair in PAIRS.items():
                    turns: list[list[float]] = [[measured(way, store, events) for way in pair] for _ in range(TURNS)]
                    objects, batches = (statistics.median(column) for column in zip(*turns, strict=True))
                    say(name, events, objects, batches)
        finally:
            server.terminate()
            server.wait(60)


def say(name: str, events: int, objects: float, batches: float) -> Any:
    rates = f"{events / objects:>11,.0f} {events / batches:>11,.0f} events/s"
    print(f"{name:36} {rates}   {objects / batches:.1f} times", flush=True)


if __name__ == "__main__":
    main()
