"""Commands end to end: `python -m benchmarks.bank [--quick] [--json]`.

The domain is docs/examples/bank.py, the clients are blocking clients in this process, and every command is answered once its
events are synced. Command objects are made before the clock starts; encoding them and reading the answers is measured.

commands    deposits on accounts of a server, one connection, one call of `send_many` for each turn
hot         the same, every tenth on one account
mixed       the same, and to every hundredth account a plain append from a second connection, shortly before its command
worker      as `commands`, to a worker of a server
conflicts   as `mixed`, but the commands go to the worker and the appends to the server: version conflicts
appends     plain appends without commands, one call of `append_many` for each turn: they take the mailboxes
straight    the same without mailboxes, in the same process (see `switched`): the cost of the mailboxes for plain appends
burst       commands sent at once on a bare connection, as many as the mailboxes hold; the rate is that of handling, which the
            server counts, not that of answers
slow disk   the same while every sync takes 50 ms longer: handling does not wait for the disk
alone       one command after the other, each waiting for its answer, in turns with one bare append after the other

Rounds are interleaved, every second one backwards, and a ratio is the median of the ratios of the rounds: a shared machine
drifts, and a workload may pay for the one before it. Each rate comes with the processor time that server (and worker) used,
which drifts less.

`--against COMMIT` measures `commands`, and one command after the other, of this tree beside that commit
(`benchmarks.ours.bank`).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import eventstore as es
from benchmarks.harness import report, switched
from benchmarks.harness.appender import Appender, appending, check
from benchmarks.harness.burst import burst
from benchmarks.harness.measure import Plan, benchmark
from benchmarks.harness.processes import EVENTSTORE, EXAMPLES, SERVE, Process
from benchmarks.harness.report import figures_table, machine, machine_line, say, write_results
from benchmarks.harness.subject import Workload
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.import_path import load

HOT: Final = "acc-0"
HOT_EACH: Final = 10
APPEND_EACH: Final = 100
BURST: Final = 50_000  # of the 65,536 that the mailboxes of a server hold; they do not fill evenly
AHEAD: Final = 2_000  # commands between the plain append of an account and its command: more than are in flight

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Pace:
    accounts: int
    commands: int
    alone: int
    rounds: int


QUICK: Final = Pace(accounts=20_000, commands=20_000, alone=300, rounds=3)
FULL: Final = Pace(accounts=100_000, commands=100_000, alone=2_000, rounds=7)


@dataclass(slots=True)
class Turn:
    """One turn of a workload; microseconds are those of processor time for each command."""

    rate: float
    server_us: float
    client_us: float
    counted: dict[str, int] = field(default_factory=dict)


class Bench:
    """The bank on a server, and on a worker of another server, with its accounts open and in memory."""

    def __init__(self, pace: Pace, server: Process, below: Process, worker: Process) -> None:
        load("bank:app", EXAMPLES)
        self.bank: Any = sys.modules["bank"]
        self.pace = pace
        self.server, self.below, self.worker = server, below, worker
        self._chance = random.Random(7)
        self.deposited = event_type(self.bank.Deposited).encode(self.bank.Deposited(1))

    def open_accounts(self) -> None:
        opening = [self.bank.Open(f"acc-{number}", "Ada") for number in range(self.pace.accounts)]
        for process in (self.server, self.worker):
            check(process.store.send_many(opening))

    def accounts(self, hot: bool = False) -> list[str]:
        names = [f"acc-{self._chance.randrange(1, self.pace.accounts)}" for _ in range(self.pace.commands)]
        return [HOT if hot and place % HOT_EACH == 0 else name for place, name in enumerate(names)]

    def commands(self) -> Turn:
        return self._turn(self.server, [self.server], self.accounts())

    def hot(self) -> Turn:
        return self._turn(self.server, [self.server], self.accounts(hot=True))

    def mixed(self) -> Turn:
        return self._turn(self.server, [self.server], self.accounts(), self.server)

    def on_worker(self) -> Turn:
        return self._turn(self.worker, [self.worker, self.below], self.accounts())

    def conflicts(self) -> Turn:
        return self._turn(self.worker, [self.worker, self.below], self.accounts(), self.below)

    def appends(self) -> Turn:
        return self._appended(switched.THROUGH_MAILBOXES, self.pace.commands)

    def straight(self) -> Turn:
        try:
            return self._appended(switched.STRAIGHT, 0)
        finally:
            self.server.signal(switched.THROUGH_MAILBOXES)

    def burst(self) -> Turn:
        commands = [self.bank.Deposit(account, 1) for account in self.accounts()[:BURST]]
        with unwatched():
            used, own = self.server.processor_s(), time.process_time()
            done = burst(self.server, commands)
            own, used = time.process_time() - own, self.server.processor_s() - used
        count, answered_ms = len(commands), round(done.answered_s * 1e3)
        return Turn(count / done.handled_s, used / count * 1e6, own / count * 1e6, {"all answered, ms": answered_ms})

    def on_slow_disk(self) -> Turn:
        self.server.signal(switched.SLOW_SYNCS)
        try:
            return self.burst()
        finally:
            self.server.signal(switched.OWN_SYNCS)

    def _appended(self, way: signal.Signals, passed: int) -> Turn:
        """Plain appends to aggregates other than the accounts, which stay in memory; `passed` of them bypass the mailboxes."""
        self.server.signal(way)
        names = [f"ledger-{self._chance.randrange(self.pace.accounts)}" for _ in range(self.pace.commands)]
        commits = [es.Commit(name, [self.deposited], es.ANY) for name in names]
        before = self.server.figure("appends_passed")
        with unwatched():
            used, own, started = self.server.processor_s(), time.process_time(), time.perf_counter()
            outcomes = self.server.store.append_many(commits)
            seconds = time.perf_counter() - started
            own, used = time.process_time() - own, self.server.processor_s() - used
        check(outcomes)
        if self.server.figure("appends_passed") - before != passed:
            raise ValueError("the server has not switched the way of plain appends")
        return Turn(len(commits) / seconds, used / len(commits) * 1e6, own / len(commits) * 1e6)

    def _turn(self, to: Process, measured: Sequence[Process], accounts: list[str], beside: Process | None = None) -> Turn:
        """Sends all commands in one call; with `beside`, plain appends run ahead of some of them."""
        deposits = [self.bank.Deposit(account, 1) for account in accounts]
        counters = ("command_conflicts", "aggregates_restored")
        before = [to.figure(name) for name in counters]
        with unwatched(), appending(beside, self.deposited) as appender:
            given = iter(deposits) if appender is None else paced(deposits, accounts, appender)
            used, own, started = sum(each.processor_s() for each in measured), time.process_time(), time.perf_counter()
            outcomes = to.store.send_many(given)
            seconds = time.perf_counter() - started
            own, used = time.process_time() - own, sum(each.processor_s() for each in measured) - used
        check(outcomes)
        counted = {name: to.figure(name) - count for name, count in zip(counters, before, strict=True)}
        count = len(deposits)
        return Turn(count / seconds, used / count * 1e6, own / count * 1e6, counted)

    def alone(self) -> tuple[float, float]:
        """Seconds of one command, and of one bare append, each in the middle of as many as the pace says."""
        store, version = self.server.store, 0
        name = f"bare-{self._chance.randrange(10**12)}"
        sent, appended = [], []
        for _ in range(self.pace.alone):
            started = time.perf_counter()
            store.send(self.bank.Deposit(HOT, 1))
            between = time.perf_counter()
            version = store.append(name, [self.deposited], version).version
            sent.append(between - started)
            appended.append(time.perf_counter() - between)
        return statistics.median(sent), statistics.median(appended)


@contextmanager
def unwatched() -> Iterator[None]:
    """Hides everything made before the clock starts from the garbage collector of the client."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def paced(deposits: Sequence[object], accounts: Sequence[str], appender: Appender) -> Iterator[object]:
    """Yields the commands as fast as they are taken; passes accounts to the appender some time before their commands leave."""
    for place, command in enumerate(deposits):
        if place % AHEAD == 0:
            appender.accounts.put(list(accounts[place + AHEAD : place + 2 * AHEAD : APPEND_EACH]))
        yield command


# -- rounds and what comes out of them --------------------------------------------------------------------------------------

WORKLOADS: Final[dict[str, Callable[[Bench], Turn]]] = {
    "commands": Bench.commands,
    "hot": Bench.hot,
    "mixed": Bench.mixed,
    "worker": Bench.on_worker,
    "conflicts": Bench.conflicts,
    "straight": Bench.straight,
    "appends": Bench.appends,
    "burst": Bench.burst,
    "slow disk": Bench.on_slow_disk,
}
COMPARED: Final = {"slow disk": "burst", "hot": "commands", "mixed": "commands", "conflicts": "worker", "appends": "straight"}


def measure(bench: Bench) -> dict[str, Figures]:
    turns: dict[str, list[Turn]] = {name: [] for name in WORKLOADS}
    lone: list[tuple[float, float]] = []
    for turn in range(bench.pace.rounds + 1):
        for name, run in list(WORKLOADS.items())[:: -1 if turn % 2 else 1]:
            done = run(bench)
            say(f"round {turn}, {name}: {done.rate:,.0f}/s, server {done.server_us:.1f} µs, {done.counted}")
            turns[name].append(done)
        lone.append(bench.alone())
    for measured in (*turns.values(), lone):
        del measured[0]  # type: ignore[attr-defined] # the first round warms up
    figures = {name: _figures(name, turns) for name in WORKLOADS}
    figures["alone"] = {
        "command, µs": statistics.median(sent for sent, _ in lone) * 1e6,
        "bare append, µs": statistics.median(appended for _, appended in lone) * 1e6,
        "command to bare append": statistics.median(sent / appended for sent, appended in lone),
    }
    return figures


def _figures(name: str, turns: dict[str, list[Turn]]) -> Figures:
    own = turns[name]
    rates = [turn.rate for turn in own]
    figures = {
        "per second": statistics.median(rates),
        "spread": (max(rates) - min(rates)) / statistics.median(rates),
        "server, µs of processor": statistics.median(turn.server_us for turn in own),
        "client, µs of processor": statistics.median(turn.client_us for turn in own),
    }
    if name in COMPARED:
        other, base = COMPARED[name], turns[COMPARED[name]]
        pairs = list(zip(own, base, strict=True))
        figures[f"rate to {other}"] = statistics.median(turn.rate / against.rate for turn, against in pairs)
        figures[f"server time of {other} to this"] = statistics.median(base.server_us / turn.server_us for turn, base in pairs)
    for counter in own[0].counted:
        if sum(turn.counted[counter] for turn in own):
            figures[counter] = statistics.median(turn.counted[counter] for turn in own)
    return figures


def _markdown(results: dict[str, Figures], pace: Pace, quick: bool) -> str:
    paced_by = f"{pace.accounts:,} accounts, medians of {pace.rounds} interleaved rounds of {pace.commands:,} commands"
    return f"## bank{' (quick)' if quick else ''}\n\n{figures_table(results, 'workload')}\n{paced_by}. {machine_line()}.\n"


def run(pace: Pace) -> dict[str, Figures]:
    """All workloads on processes that are started for it."""
    with ExitStack() as stack:
        server = stack.enter_context(Process("bank", "benchmarks.harness.switched", "{listen}", "{data}", "bank:app"))
        below = stack.enter_context(Process("bank-store", EVENTSTORE, *SERVE))
        works = ("work", "--listen", "{listen}", "--domain", "bank:app", "--store", below.address)
        worker = stack.enter_context(Process("bank-worker", EVENTSTORE, *works))
        bench = Bench(pace, server, below, worker)
        bench.open_accounts()
        return measure(bench)


AGAINST: Final = Plan(
    name="bank",
    description="Commands end to end, beside those of another build.",
    workloads=(
        Workload("commands", "deposits in one call", "commands/s", smallest=2_000),
        Workload("command_lockstep", "one deposit after the other", "commands/s", smallest=20),
    ),
    quick=report.Pace(rounds=9, turn_s=0.5, total_s=40.0),
    full=report.Pace(rounds=15, turn_s=1.0, total_s=600.0),
    build="benchmarks.ours.bank:Bank",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bank", description="Commands end to end.")
    parser.add_argument("--quick", action="store_true", help="fewer accounts, commands and rounds; less than a minute")
    parser.add_argument("--json", action="store_true", help="print the JSON document to stdout")
    parser.add_argument("--against", metavar="COMMIT", help="measure this tree beside a commit of it")
    options, more = parser.parse_known_args()
    if options.against is not None:
        return benchmark(AGAINST)
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    # SIGTERM must unwind the exit stack as well, or servers would be left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pace = QUICK if options.quick else FULL
    results = run(pace)
    document = {
        "benchmark": "bank", "quick": options.quick, "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "accounts": pace.accounts, "commands": pace.commands, "rounds": pace.rounds,
        "machine": machine(),
        "results": results,
    }  # fmt: skip
    table, text = _markdown(results, pace, options.quick), json.dumps(document, indent=2, ensure_ascii=False)
    write_results(f"bank{'-quick' if options.quick else ''}", text, table)
    print(text if options.json else table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
