"""What the console costs, and how long its pages take: `python -m benchmarks.console [--quick] [--events N] [--json]`.

A server of 10 million events (quick: 1 million), 10 to a commit and 100 to an aggregate.

pages       milliseconds from the request to the whole page: the first one after the start, the median of the next 20, and each
            of 20 without a pause, which wait when they have had their fifth of a processor. Before each of the others that
            has passed: what they took would be added to the time of the page after them
open        processor time of the idle server, in % of a core: without the console, with one that is not open, and what an
            open overview and an open log add to that
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import trio

import eventstore as es
from benchmarks.harness.processes import EVENTSTORE, SERVE, Process
from benchmarks.harness.report import report_rows
from benchmarks.peers import free_port
from eventstore.settings.store import StoreSettings
from eventstore.store.open_store import open_store

_EVENTS_A_COMMIT: Final = 10
_COMMITS_AN_AGGREGATE: Final = 10
_COMMITS_A_BATCH: Final = 5_000
_AGAIN: Final = 20
_ALLOWED_AGAIN_S: Final = 0.75
_BETWEEN_S: Final = 0.25
_SETTLED_S: Final = 3.0

Figures = dict[str, float]


async def fill(data: Path, events: int) -> None:
    """Makes a store with this number of events."""
    batch = [es.NewEvent("Counted", {"number": number, "text": "t" * 200}) for number in range(_EVENTS_A_COMMIT)]
    async with open_store(data, StoreSettings()) as store:
        commits = events // _EVENTS_A_COMMIT
        for first in range(0, commits, _COMMITS_A_BATCH):
            places = range(first, min(first + _COMMITS_A_BATCH, commits))
            await store.append_many(
                [es.Commit(f"order-{place // _COMMITS_AN_AGGREGATE:08d}", batch, es.ANY, f"c-{place}") for place in places]
            )


class Served:
    """A server of a store of this size; with its HTTP listener, and with the console."""

    def __init__(self, events: int, *, console: bool = True) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        options = ("--http", self.http, "--set", f"console={str(console).lower()}")
        self.process = Process("console", EVENTSTORE, *SERVE, *options, before=lambda data: trio.run(fill, data, events))

    def get(self, path: str) -> float:
        """Asks for a page; returns for how many milliseconds."""
        connection = HTTPConnection(self.http, timeout=60)
        started = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        took = (time.perf_counter() - started) * 1_000
        connection.close()
        if answer.status != 200 or b"<h1>" not in body:
            raise ValueError(f"{path}: {answer.status}")
        return took

    def open(self, path: str) -> socket.socket:
        """Opens a page that is kept up to date."""
        host, _, port = self.http.rpartition(":")
        opened = socket.create_connection((host, int(port)), 60)
        opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {self.http}\r\n\r\n".encode())
        opened.recv(4_096)
        return opened

    def used(self, seconds: float) -> float:
        """Returns how much of a core the server uses, in %."""
        time.sleep(_SETTLED_S)
        before, started = self.process.processor_s(), time.perf_counter()
        time.sleep(seconds)
        return (self.process.processor_s() - before) / (time.perf_counter() - started) * 100


def pages(events: int) -> Figures:
    """Measures each page."""
    served = Served(events)
    figures: Figures = {}
    middle = f"order-{events // _EVENTS_A_COMMIT // _COMMITS_AN_AGGREGATE // 2:08d}"
    paths = {
        "overview": "/console", "log": "/console/log", "aggregates": "/console/aggregates",
        "an aggregate": f"/console/aggregates/one?id={middle}",
        "a chain": f"/console/aggregates/chain?id={middle}&version=3", "broker": "/console/broker",
    }  # fmt: skip

    def get(path: str, after_s: float) -> float:
        time.sleep(after_s)
        return served.get(path)

    with served.process:
        for name, path in paths.items():
            figures[f"{name}, first, ms"] = get(path, _ALLOWED_AGAIN_S)
            figures[f"{name}, ms"] = statistics.median(get(path, _BETWEEN_S) for _ in range(_AGAIN))
            figures[f"{name}, without a pause, ms"] = statistics.mean(get(path, 0) for _ in range(_AGAIN))
    return figures


def open_consoles(events: int, seconds: float) -> Figures:
    """Measures what an idle server uses."""
    bare, served = Served(events, console=False), Served(events)
    with bare.process, served.process, ExitStack() as opened:
        figures = {"without, %": bare.used(seconds), "unvisited, %": served.used(seconds)}
        for name, path in (("overview", "/console/live"), ("log", "/console/log/live")):
            before = served.used(seconds)
            opened.enter_context(served.open(path))
            figures[f"open {name}, more, %"] = served.used(seconds) - before
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 million events, and 10 s for each figure, not 60")
    parser.add_argument("--events", type=int, help="how many events")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    events = options.events or (1_000_000 if options.quick else 10_000_000)
    seconds = 10.0 if options.quick else 60.0
    rows: dict[str, Callable[[], Figures]] = {
        "pages": lambda: pages(events),
        "open": lambda: open_consoles(min(events, 100_000), seconds),
    }
    report_rows(rows, f"console{'-quick' if options.quick else ''}", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
