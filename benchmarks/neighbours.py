"""What one client can take from the others: `python -m benchmarks.neighbours [--quick] [--json] [--only KIND]`.

Ten quiet clients (`benchmarks.harness.quiet_clients`: they append, read, send, ask for figures, follow and consume), first
alone, then beside one hostile client of each kind in `benchmarks.hostile.clients`. Each row says how much of their rate they
keep, and the 99th percentile of how long they wait: of all, and of those that ask for the same and fared worst. Its verdict is
`holds`, or what falls short of the promise: half of the rate is kept, that percentile of each is below 50 ms or five times what
it is alone, and the server's memory grew by no more than all clients may fill (docs/OPERATIONS.md#bounds). What falls short is
listed at the end. The first kind is a process that computes and has no connection: the other rows say too what of the rate
beside it is kept. Alone is measured before each kind, on the same server. --quick takes less than 90 s: alone is measured once
a server, kinds share servers, whose memory is what all of them needed so far, and the floods of one kind of request are left
out (`benchmarks.hostile.floods`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import trio

import eventstore as es
from benchmarks.harness.processes import EVENTSTORE, SERVE, Process
from benchmarks.harness.quiet_clients import QUIET, QUIET_QUEUES, Quiet, quiet
from benchmarks.harness.report import figure, figures_table, say, write_results
from benchmarks.hostile.clients import KINDS, Forked
from benchmarks.hostile.connections import HTTP, SOURCE
from benchmarks.hostile.floods import FLOODS
from benchmarks.hostile.messages import TOPIC
from benchmarks.hostile.wide_store import fill
from benchmarks.peers import free_port
from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import declared_settings

_FILLED: Final = 20_000
_HEAD_START_S: Final = 0.5
_HEAD_STARTS_S: Final = {"silent connections": 1.2}  # an idle connection gives way after a second
_KEPT_MIN: Final = 0.5
_P99_MS_MAX: Final = 50.0
_P99_TO_ALONE_MAX: Final = 5.0
_BOUNDS: Final = (  # of what all clients together make a server hold; appends after commands have the same as these
    "outgoing_bytes_max", "incoming_bytes_max", "mailbox_waiting_bytes_max", "mailbox_waiting_bytes_max", "waiting_bytes_max",
    "broker_waiting_bytes_max", "broker_recent_bytes_max", "cached_bytes_max",
)  # fmt: skip
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
_Row = dict[str, float | str]


class Verdict(NamedTuple):
    """Whether a hostile client is a good neighbour: what falls short."""

    short: list[str]

    def __str__(self) -> str:
        return ", ".join(self.short) or "holds"


def judge(alone: Quiet, together: Quiet, peak: int, bound: int) -> Verdict:
    """Compares with what is promised: half of the rate, a percentile of each kind of quiet client, bounded memory."""
    kept, p99_max = together.rate / alone.rate, max(_P99_MS_MAX, _P99_TO_ALONE_MAX * alone.worst_p99_ms)
    falls_short = {
        f"rate {kept:.2f} < {_KEPT_MIN:g}": kept < _KEPT_MIN,
        f"p99 of {together.worst} {together.worst_p99_ms:.0f} >= {p99_max:.0f} ms": together.worst_p99_ms >= p99_max,
        f"no answers to {' and '.join(together.starved)}": bool(together.starved),
        f"memory {peak / 1e6:.0f} > {bound / 1e6:.0f} MB": peak > bound,
    }
    return Verdict([what for what, does in falls_short.items() if does])


def beside(server: Process, kind: str, seconds: float) -> tuple[Quiet, int]:
    """Returns the figures beside the hostile client, and the most bytes that the server has needed."""
    hostile = Forked(kind, server.address)  # it has created what it asks for
    try:
        time.sleep(_HEAD_STARTS_S.get(kind, _HEAD_START_S))
        together = trio.run(quiet, server.address, seconds)
        peak = server.peak_bytes()
        if hostile.has_ended:
            say("   the hostile client has ended")
    finally:
        hostile.kill()
    return together, peak


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


def _row(alone: Quiet, together: Quiet, peak: int, verdict: Verdict, busy: Mapping[str, float | str] | None) -> _Row:
    kept = together.rate / alone.rate
    return {
        "rate to alone": kept,
        "to a busy processor": kept / float(busy["rate to alone"]) if busy else 1.0,
        "of the kind that lost most": together.kept(alone),
        "rate /s": together.rate,
        "p99 ms": together.p99_ms,
        "slowest kind": together.worst,
        "p99 of the slowest kind ms": together.worst_p99_ms,
        "p99 alone ms": alone.p99_ms,
        "slowest ms": together.slowest_ms,
        "server MB": peak / 1e6,
        "verdict": str(verdict),
    }


def _bound(server: Process) -> int:
    """Returns how many bytes the server may need: what it does now, and what all clients may fill."""
    settings = declared_settings(ServerSettings)
    return server.peak_bytes() + sum(int(str(settings[name].default)) for name in _BOUNDS)


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
    found: dict[str, _Row] = {}
    short: dict[str, Verdict] = {}
    seconds = 0.6 if options.quick else 10.0
    first = next(iter(KINDS))
    all_kinds = [kind for kind in KINDS if not (options.quick and kind in FLOODS)]
    wanted = list(dict.fromkeys([first, options.only])) if options.only else all_kinds
    for kinds in _on_one_server(wanted, share=options.quick):
        option = ("--http", os.environ[HTTP], *_OPTIONS.get(kinds[0], ()))
        with Process("neighbours", EVENTSTORE, *SERVE, *option, before=_FILLING.get(kinds[0])) as server:
            prepare(server, kinds)
            bound = _bound(server)
            for kind in kinds:
                if kind is not kinds[0]:
                    wait_until_alone(server)
                say(f"{kind} …")
                if kind is kinds[0] or not options.quick:
                    alone = trio.run(quiet, server.address, seconds)
                together, peak = beside(server, kind, seconds)
                verdict = judge(alone, together, peak, bound)
                found[kind] = _row(alone, together, peak, verdict, found.get(first))
                if verdict.short and kind != first:  # that one asks the server for nothing
                    short[kind] = verdict
                say("   " + "  ".join(f"{name} {figure(value)}" for name, value in found[kind].items()))
    print(json.dumps(found, indent=2) if options.json else figures_table(found, "beside"))
    say("\n".join(f"falls short beside {kind}: {verdict}" for kind, verdict in short.items()) or "nobody falls short")
    write_results(f"neighbours{'-quick' if options.quick else ''}", json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
