"""What TLS and identities cost: `python -m benchmarks.security [--quick] [--json]`.

One connection with 64 appends in flight, to a plain server, one with TLS, and one with TLS and identities, in turns. The rows
are µs of processor time an append, at the server and at the client, and their ratio to the plain one: the median of the turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import trio

import eventstore as es
from benchmarks.harness.processes import EVENTSTORE, SERVE, Process
from benchmarks.harness.report import report_rows
from eventstore.security.access_list import Identity, editing, write_access
from eventstore.security.certificates import make_certificate
from eventstore.security.tokens import new_token
from eventstore.store.data_folder import ACCESS

_IN_FLIGHT: Final = 64
_PLAIN: Final = "plain"
_TURNS: Final = 5


class Cost(NamedTuple):
    """µs of processor time an append."""

    server: float
    client: float


def _let_in(data: Path) -> None:
    """Writes who may do what, and puts the token where clients look for it."""
    token, token_id, stored = new_token(datetime.now(UTC), None)
    with editing(data / ACCESS) as known:
        write_access(data / ACCESS, known.with_(Identity("bench", ("writer:bench-", "stats"), {token_id: stored})))
    os.environ["EVENTSTORE_TOKEN"] = token


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6,400 appends a turn, not 64,000")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    appends = 6_400 if options.quick else 64_000
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        certificates = Path(folder)
        make_certificate(certificates, ["127.0.0.1"], 1)
        os.environ["EVENTSTORE_TLS_CA"] = str(certificates / "ca.pem")
        secured = ("--tls-certificate", str(certificates / "127.0.0.1.pem"), "--tls-key", str(certificates / "127.0.0.1.key"))
        serve = (EVENTSTORE, *SERVE)
        servers = {
            _PLAIN: stack.enter_context(Process("security", *serve)),
            "TLS": stack.enter_context(Process("security", *serve, *secured, scheme="tls")),
            "TLS and identities": stack.enter_context(Process("security", *serve, *secured, scheme="tls", before=_let_in)),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in servers}
        for turn in range(_TURNS + 1):
            for name, server in servers.items():
                cost = measured(server, appends)
                if turn:  # the first one warms up
                    costs[name].append(cost)
        rows = {name: (lambda found=found: figures(found, costs[_PLAIN])) for name, found in costs.items()}
        report_rows(rows, f"security{'-quick' if options.quick else ''}", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
