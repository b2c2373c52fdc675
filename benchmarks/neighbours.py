"""What one client can take from the others: `python -m benchmarks.neighbours [--quick] [--json] [--only KIND]`.

Ten quiet clients, each one request at a time (six append, two read, one sends messages, one asks for figures), first alone,
then beside one hostile client of each kind in `benchmarks.hostile.clients`. Each row says how much of their rate they keep, and
the 99th percentile of how long an answer takes: of all, and of those that ask for the same and fared worst. The first kind is a
process that computes and has no connection: the other rows say too what of the rate beside it is kept. Alone is measured
before each kind, on the same server. --quick takes less than 90 s: alone is measured once a server, kinds share servers, whose
memory is what all of them needed so far, and the floods of one kind of request are left out (`benchmarks.hostile.floods`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import trio

import eventstore as es
from benchmarks.harness.processes import EVENTSTORE, SERVE, Process
from benchmarks.harness.report import figures_table, say, write_results
from benchmarks.hostile.clients import KINDS, Forked
from benchmarks.hostile.connections import HTTP, SOURCE
from benchmarks.hostile.floods import FLOODS
from benchmarks.hostile.messages import QUIET, QUIET_QUEUES, TOPIC
from benchmarks.hostile.wide_store import fill
from benchmarks.peers import free_port
from eventstore.client.aio.store import NetworkStore

_FILLED: Final = 20_000
_HEAD_START_S: Final = 0.5
_HEAD_STARTS_S: Final = {"silent connections": 1.2}  # an idle connection gives way after a second
_WARM_S: Final = 0.3
_READS_ALL: Final = {"pulls of a tag nobody has", "reads of a type nobody has", "readers that trickle"}
_WITH_DOMAIN: Final = ("--domain", "benchmarks.hostile.stuck:domain")
_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "reads of many files": ("--open-files-max", "16"),
    "large commands that wait": _WITH_DOMAIN,
    "commands to unknown events": _WITH_DOMAIN,
}
_TOGETHER: Final = (  # with --quick on one server, in this order; those that are not named here share another one
    ("groups of many queues", "groups on many connections", "offsets of many groups"),
    ("retry policies", "offsets that are committed", "groups that are reset", "topics of many queues"),
    ("commands to unknown events", "large commands that wait"),
    ("members of many topics",),
    ("frames of many commits",),
    ("commits of many events",),
    ("reads of many files",),
)
_CLIENTS: Final = ("append",) * 6 + ("read",) * 2 + ("send", "stats")


class Quiet(NamedTuple):
    """How long the answers to quiet clients took, in seconds, ascending, by what they ask for; `seconds`: the time measured.

    A client that waits long gets few answers, which the percentiles of all answers do not show: so those of each kind are
    known, and the worst is reported as well.
    """

    taken: dict[str, list[float]]
    seconds: float

    @property
    def rate(self) -> float:
        """Answers a second, to all."""
        return sum(map(len, self.taken.values())) / self.seconds

    @property
    def slowest_ms(self) -> float:
        return max(map(self._last, self.taken.values())) * 1e3

    @property
    def p99_ms(self) -> float:
        return _p99(sorted(chain.from_iterable(self.taken.values())), self.seconds) * 1e3

    @property
    def worst_p99_ms(self) -> float:
        """The highest of those of each kind."""
        return max(_p99(taken, self.seconds) for taken in self.taken.values()) * 1e3

    def kept(self, alone: Quiet) -> float:
        """Returns how much of its rate alone the kind has kept that lost the most."""
        return min(len(taken) / self.seconds / (len(alone.taken[kind]) / alone.seconds) for kind, taken in self.taken.items())

    def _last(self, taken: list[float]) -> float:
        return taken[-1] if taken else self.seconds


def _p99(ascending: list[float], otherwise: float) -> float:
    return ascending[len(ascending) * 99 // 100] if ascending else otherwise


async def quiet(address: str, seconds: float) -> Quiet:
    """Runs the quiet clients for a while."""
    taken: dict[str, list[float]] = {kind: [] for kind in _CLIENTS}
    async with trio.open_nursery() as clients:
        for number, kind in enumerate(_CLIENTS):
            clients.start_soon(_client, address, kind, number, taken[kind])
        await trio.sleep(_WARM_S)
        for each in taken.values():
            each.clear()
        started = time.perf_counter()
        await trio.sleep(seconds)
        found = Quiet({kind: sorted(each) for kind, each in taken.items()}, time.perf_counter() - started)
        clients.cancel_scope.cancel()
    return found


async def _client(address: str, kind: str, number: int, taken: list[float]) -> None:
    while True:
        try:
            await _ask(address, kind, number, taken)
        except es.Overloaded:  # all connections are taken by some that are not idle for long enough
            await trio.sleep(0.05)


async def _ask(address: str, kind: str, number: int, taken: list[float]) -> None:
    async with es.connect(address) as store:
        ask = _asking(store, kind, f"quiet-{time.monotonic_ns()}-{number}")
        while True:
            begun = time.perf_counter()
            await ask()
            taken.append(time.perf_counter() - begun)


def _asking(store: NetworkStore, kind: str, name: str) -> Callable[[], Awaitable[object]]:
    version = 0

    async def append() -> None:
        nonlocal version
        version = (await store.append(name, [es.NewEvent("Happened", b"{}")], version)).version

    async def read() -> None:
        async for _ in store.read(f"filled-{version}"):
            pass

    async def send() -> None:
        await store.topic(QUIET).send(b"{}")

    return {"append": append, "read": read, "send": send, "stats": store.stats}[kind]


def beside(server: Process, kind: str, seconds: float) -> tuple[Quiet, int]:
    """Returns the figures beside the hostile client, and the resident bytes of the server."""
    hostile = Forked(kind, server.address)  # it has created what it asks for
    try:
        time.sleep(_HEAD_STARTS_S.get(kind, _HEAD_START_S))
        together = trio.run(quiet, server.address, seconds)
        resident = server.resident_bytes()
        if hostile.has_ended:
            say("   the hostile client has ended")
    finally:
        hostile.kill()
    return together, resident


def prepare(server: Process, kinds: Iterable[str]) -> None:
    """Fills what the hostile clients ask for."""
    filled = 1_000 if _READS_ALL.isdisjoint(kinds) else _FILLED
    store = server.store
    for topic, queues in ((TOPIC, 1), (QUIET, QUIET_QUEUES)):
        store.broker.create_topic(topic, queues)
    for _ in range(filled // 1_000):
        store.topic(TOPIC).send_many([es.NewMessage(b"{}", tag="somebody")] * 1_000)
    for first in range(0, filled, 1_000):
        store.append_many([es.Commit(f"filled-{first + n}", [es.NewEvent("Happened", b"{}")], 0) for n in range(1_000)])


def _fill_wide(data: Path) -> None:
    trio.run(fill, data)


_FILLING: Final[dict[str, Callable[[Path], None]]] = {"reads of many files": _fill_wide}


def _on_one_server(kinds: Sequence[str], *, share: bool) -> Iterator[list[str]]:
    named = set(chain.from_iterable(_TOGETHER))
    together = ([kind for kind in kinds if kind not in named], *_TOGETHER) if share else [[kind] for kind in kinds]
    for each in together:
        wanted = [kind for kind in each if kind in kinds]
        if wanted:
            yield wanted


def wait_until_alone(server: Process) -> None:
    """Returns when what the hostile client left is gone."""
    while server.figure("connections") > 1:
        time.sleep(0.02)


def _row(alone: Quiet, together: Quiet, resident: int, busy: dict[str, float] | None) -> dict[str, float]:
    kept = together.rate / alone.rate
    return {
        "rate to alone": kept,
        "to a busy processor": kept / busy["rate to alone"] if busy else 1.0,
        "of the kind that lost most": together.kept(alone),
        "rate /s": together.rate,
        "p99 ms": together.p99_ms,
        "p99 of the slowest kind ms": together.worst_p99_ms,
        "p99 alone ms": alone.p99_ms,
        "slowest ms": together.slowest_ms,
        "server MB": resident / 1e6,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0.6 seconds for each measurement, not 10")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one-address", action="store_true", help="the hostile client has the address of the quiet ones")
    parser.add_argument("--only", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ[HTTP] = f"127.0.0.1:{free_port()}"
    os.environ[SOURCE] = "127.0.0.1" if options.one_address else "127.0.0.2"
    found: dict[str, dict[str, float]] = {}
    seconds = 0.6 if options.quick else 10.0
    first = next(iter(KINDS))
    all_kinds = [kind for kind in KINDS if not (options.quick and kind in FLOODS)]
    wanted = list(dict.fromkeys([first, options.only])) if options.only else all_kinds
    for kinds in _on_one_server(wanted, share=options.quick):
        option = ("--http", os.environ[HTTP], *_OPTIONS.get(kinds[0], ()))
        with Process("neighbours", EVENTSTORE, *SERVE, *option, before=_FILLING.get(kinds[0])) as server:
            prepare(server, kinds)
            for kind in kinds:
                if kind is not kinds[0]:
                    wait_until_alone(server)
                say(f"{kind} …")
                if kind is kinds[0] or not options.quick:
                    alone = trio.run(quiet, server.address, seconds)
                found[kind] = _row(alone, *beside(server, kind, seconds), found.get(first))
                say("   " + "  ".join(f"{name} {value:,.2f}" for name, value in found[kind].items()))
    print(json.dumps(found, indent=2) if options.json else figures_table(found, "beside"))
    write_results(f"neighbours{'-quick' if options.quick else ''}", json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
