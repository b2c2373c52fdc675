"""What TLS and identities cost, and protect from: `python -m benchmarks.security [--quick] [--json] [--rows TEXT]`.

One connection with 64 appends in flight, to a plain server, one with TLS, and one with TLS and identities, in turns. The rows
are µs of processor time an append, at the server and at the client, and their ratio to the plain one: the median of the turns.

The last rows: ten identities that append a little, each an event some 40 times a second, alone and beside one with 512 appends
in flight on 8 connections, in turns. How long the quiet ones wait is asked to be at most twice what it is alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import trio

import eventstore as es
from benchmarks.harness.processes import EVENTSTORE, SERVE, Process
from benchmarks.harness.report import report_rows
from benchmarks.hostile.noisy import CONNECTIONS
from eventstore.security.access_list import UNLIMITED, Identity, IdentityLimits, editing, write_access
from eventstore.security.certificates import make_certificate
from eventstore.security.tokens import new_token
from eventstore.store.data_folder import ACCESS

_IN_FLIGHT: Final = 64
_PLAIN: Final = "plain"
_GUARDED: Final = "TLS and identities"
_TURNS: Final = 5
_QUIET: Final = 10
_PAUSE_S: Final = 0.025
_WARM_S: Final = 0.5
_NOISY: Final = "noisy"
_LIMITED: Final = "limited"
_BESIDE: Final = {
    "one noisy identity beside ten quiet ones": _NOISY,
    "one noisy identity of at most 1 MB/s beside ten quiet ones": _LIMITED,
}


class Cost(NamedTuple):
    """µs of processor time an append."""

    server: float
    client: float


class Waited(NamedTuple):
    """How long the quiet identities waited for an answer, in ms, and how many events a second the noisy one stored."""

    p50: float
    p99: float
    noisy_rate: float


def _let_in(data: Path, tokens: dict[str, str]) -> None:
    """Writes who may do what, and puts the first token where clients look for it. `tokens`: gets those of all, by name."""
    for name in ("bench", _NOISY, _LIMITED, *map(_quiet_name, range(_QUIET))):
        tokens[name], token_id, stored = new_token(datetime.now(UTC), None)
        limits = IdentityLimits(bytes_a_second=1_000_000) if name == _LIMITED else UNLIMITED
        with editing(data / ACCESS) as known:
            identity = Identity(name, ("writer:bench-", "stats"), {token_id: stored}, limits=limits)
            write_access(data / ACCESS, known.with_(identity))
    os.environ["EVENTSTORE_TOKEN"] = tokens["bench"]


def _quiet_name(number: int) -> str:
    return f"quiet-{number}"


def measured(server: Process, appends: int) -> Cost:
    """Returns what appends cost, `_IN_FLIGHT` of them at a time."""
    run = f"bench-{time.monotonic_ns()}"

    async def client(store: es.NetworkStore, number: int) -> None:
        for version in range(appends // _IN_FLIGHT):
            await store.append(f"{run}-{number}", [es.NewEvent("Happened", b"x" * 256)], version)

    async def clients() -> tuple[float, float]:
        async with es.connect(server.address) as store:
            await store.version("bench-first")
            before = server.processor_s(), time.process_time()
            async with trio.open_nursery() as nursery:
                for number in range(_IN_FLIGHT):
                    nursery.start_soon(client, store, number)
            return server.processor_s() - before[0], time.process_time() - before[1]

    count = appends // _IN_FLIGHT * _IN_FLIGHT
    of_server, of_client = trio.run(clients)
    return Cost(of_server / count * 1e6, of_client / count * 1e6)


def figures(found: Sequence[Cost], plain: Sequence[Cost]) -> Mapping[str, float]:
    cost, base = (Cost(*map(statistics.median, zip(*each, strict=True))) for each in (found, plain))
    both = (cost.server + cost.client) / (base.server + base.client)
    return {
        "server µs": cost.server, "client µs": cost.client, "server to plain": cost.server / base.server, "both to plain": both,
    }  # fmt: skip


def waited(server: Process, tokens: Mapping[str, str], seconds: float) -> Waited:
    """Returns how long the quiet identities wait while they are measured."""
    run, taken = time.monotonic_ns(), list[float]()

    async def client(number: int) -> None:
        async with es.connect(server.address, token=tokens[_quiet_name(number)]) as store:
            for version in count():
                begun = time.perf_counter()
                await store.append(f"bench-{run}-{number}", [es.NewEvent("Happened", b"x" * 256)], version)
                taken.append(time.perf_counter() - begun)
                await trio.sleep(_PAUSE_S)

    async def clients() -> float:
        async with trio.open_nursery() as nursery:
            for number in range(_QUIET):
                nursery.start_soon(client, number)
            await trio.sleep(_WARM_S)
            taken.clear()
            before = await trio.to_thread.run_sync(server.figure, "events")
            await trio.sleep(seconds)
            events = await trio.to_thread.run_sync(server.figure, "events") - before
            nursery.cancel_scope.cancel()
        return (events - len(taken)) / seconds

    noisy_rate = trio.run(clients)
    percentiles = statistics.quantiles(taken, n=100)
    return Waited(percentiles[49] * 1e3, percentiles[98] * 1e3, noisy_rate)


def beside(server: Process, tokens: Mapping[str, str], noisy: str, seconds: float) -> Mapping[str, float]:
    """Returns how long the quiet identities wait alone, and beside the noisy one: the medians of turns."""
    turns: list[tuple[Waited, Waited]] = []
    for _ in range(_TURNS):
        alone = waited(server, tokens, seconds)
        environment = {**os.environ, "EVENTSTORE_TOKEN": tokens[noisy]}
        client = subprocess.Popen([sys.executable, "-m", "benchmarks.hostile.noisy", server.address], env=environment)
        try:
            while server.figure("connections") < 1 + CONNECTIONS:
                time.sleep(0.02)
            turns.append((alone, waited(server, tokens, seconds)))
        finally:
            client.kill()
            client.wait()
        while server.figure("connections") > 1:
            time.sleep(0.02)
    alone, together = (Waited(*map(statistics.median, zip(*each, strict=True))) for each in zip(*turns, strict=True))
    return {
        "p99 to alone": statistics.median(each[1].p99 / each[0].p99 for each in turns),
        "p99 ms": together.p99, "p99 alone ms": alone.p99, "p50 ms": together.p50, "p50 alone ms": alone.p50,
        "of the noisy one /s": together.noisy_rate,
    }  # fmt: skip


def _costs(servers: Mapping[str, Process], appends: int) -> Mapping[str, Sequence[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in servers}
    for turn in range(_TURNS + 1):
        for name, server in servers.items():
            cost = measured(server, appends)
            if turn:  # the first one warms up
                costs[name].append(cost)
    return costs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6,400 appends a turn, not 64,000")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", default="", help="only rows whose names contain this")
    options = parser.parse_args(argv)
    appends = 6_400 if options.quick else 64_000
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        certificates = Path(folder)
        make_certificate(certificates, ["127.0.0.1"], 1)
        os.environ["EVENTSTORE_TLS_CA"] = str(certificates / "ca.pem")
        secured = ("--tls-certificate", str(certificates / "127.0.0.1.pem"), "--tls-key", str(certificates / "127.0.0.1.key"))
        serve = (EVENTSTORE, *SERVE)
        tokens: dict[str, str] = {}
        let_in = partial(_let_in, tokens=tokens)
        servers = {
            _PLAIN: stack.enter_context(Process("security", *serve)),
            "TLS": stack.enter_context(Process("security", *serve, *secured, scheme="tls")),
            _GUARDED: stack.enter_context(Process("security", *serve, *secured, scheme="tls", before=let_in)),
        }
        rows: dict[str, Callable[[], Mapping[str, float]]] = {}
        if any(options.rows in name for name in servers):
            costs = _costs(servers, appends)
            rows = {name: partial(figures, found, costs[_PLAIN]) for name, found in costs.items()}
        for name, noisy in _BESIDE.items():
            rows[name] = partial(beside, servers[_GUARDED], tokens, noisy, 1.0 if options.quick else 5.0)
        chosen = {name: measure for name, measure in rows.items() if options.rows in name}
        report_rows(chosen, f"security{'-quick' if options.quick else ''}", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
