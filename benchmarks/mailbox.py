"""The cost of the mailboxes alone: `python -m benchmarks.mailbox [--quick] [--json] [--profile NAME]`.

In process, with a handler that counts, and a store that keeps nothing and answers at once or with the next round. Per command:
making the entry, submitting, handling, persisting, settling, answering. The aggregates are in memory.
Nothing waits, so this measures processor time, which other load on the machine disturbs less.

commands        many aggregates, rounds of 512
hot aggregate   10 % of the commands on one of them
lone            one command at a time
conflicts       1 % of the changes conflict
appends         plain appends, calls of 256, none of their aggregates in memory
appends beside  the same with 100,000 other aggregates in memory
appends inside  plain appends to aggregates with pending commands: the slow path

Measured on 2 busy cores, Python 3.11, µs: commands 2.6, hot aggregate 2.5, lone 12.8, conflicts 3.7–5, appends
0.13, appends beside 0.34, appends inside 1.9; on an idle machine 1.9, 2.0, 11.6, 2.5, 0.09, 0.23, 1.7.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio

from eventstore_mailbox import COMMITTED, CONFLICT, REFUSED, Batch, Entry, Mailboxes, Options, Ports

Change: TypeAlias = tuple[str, int | None, str, bytes]
Outcome: TypeAlias = tuple[int, object, int]
Run: TypeAlias = Callable[["Bench", int], Awaitable[float]]

AGGREGATES = 100_000
ROUND = 512
CALL = 256


class Counter:
    """An aggregate with next to nothing in it."""

    __slots__ = ("name", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0


class Bench:
    """Mailboxes on a store that says yes (or, to every hundredth change, that it conflicts) when `turn` is called."""

    def __init__(self) -> None:
        self.batches: list[Batch[Change, Outcome]] = []
        self.conflict_each = 0
        self.answered = self.changes = 0
        ports: Ports[str, Counter, Change, Outcome] = Ports(
            handle=_handle, restore=_restore, persist=self.batches.append, answer=self._answer, clock=time.perf_counter,
            refusal=lambda error: (REFUSED, error, 0),
        )  # fmt: skip
        self.mailboxes = Mailboxes(ports, Options(aggregates_max=AGGREGATES * 2))

    def turn(self) -> None:
        """The store's answers, until everything is done."""
        while self.batches:
            batches = self.batches.copy()
            self.batches.clear()
            for batch in batches:
                batch.deliver(self._outcomes(len(batch.changes)))

    async def drained(self) -> None:
        while self.mailboxes.depth:
            self.turn()
            await trio.lowlevel.checkpoint()

    def _outcomes(self, count: int) -> list[Outcome]:
        outcomes: list[Outcome] = [(COMMITTED, 1, 1)] * count
        if self.conflict_each:
            for place in range(-self.changes % self.conflict_each, count, self.conflict_each):
                outcomes[place] = (CONFLICT, 1, 0)
            self.changes += count
        return outcomes

    def _answer(self, entries: Sequence[Entry[str, Outcome]]) -> None:
        self.answered += len(entries)


def _handle(command: str, counter: Counter) -> Change:
    version = counter.version
    counter.version = version + 1
    return counter.name, version, command, b""


async def _restore(aggregate_id: str) -> Counter:
    return Counter(aggregate_id)


async def _warm(bench: Bench, names: Sequence[str]) -> None:
    for first in range(0, len(names), 8_192):
        bench.mailboxes.submit([Entry(name, "warm", "warm") for name in names[first : first + 8_192]])
        bench.mailboxes.kick()
        await bench.drained()


async def _rounds(bench: Bench, names: Sequence[str], size: int) -> float:
    """Seconds a command."""
    ids = [f"c-{place}" for place in range(len(names))]
    started = time.process_time()
    for first in range(0, len(names), size):
        end = first + size
        bench.mailboxes.submit([Entry(name, key, key) for name, key in zip(names[first:end], ids[first:end], strict=True)])
        bench.mailboxes.kick()
        bench.turn()
        if bench.mailboxes.depth:
            await bench.drained()
    return (time.process_time() - started) / len(names)


def _names(count: int) -> list[str]:
    return [f"account-{place * 7919 % AGGREGATES}" for place in range(count)]


async def commands(bench: Bench, count: int) -> float:
    names = _names(count)
    await _warm(bench, sorted(set(names)))
    return await _rounds(bench, names, ROUND)


async def hot_aggregate(bench: Bench, count: int) -> float:
    names = ["hot" if place % 10 == 0 else name for place, name in enumerate(_names(count))]
    await _warm(bench, sorted(set(names)))
    return await _rounds(bench, names, ROUND)


async def lone(bench: Bench, count: int) -> float:
    names = _names(count)
    await _warm(bench, sorted(set(names)))
    return await _rounds(bench, names, 1)


async def conflicts(bench: Bench, count: int) -> float:
    names = _names(count)
    await _warm(bench, sorted(set(names)))
    bench.conflict_each = 100
    return await _rounds(bench, names, ROUND)


async def _calls(bench: Bench, names: Sequence[str]) -> float:
    """Seconds an append."""
    calls = [[(name, None, "c", b"") for name in names[first : first + CALL]] for first in range(0, len(names), CALL)]
    answered: list[int] = []

    def deliver(outcomes: list[Outcome]) -> None:
        answered.append(len(outcomes))

    started = time.process_time()
    for changes in calls:
        bench.mailboxes.append(changes, deliver)
        bench.mailboxes.kick()
        bench.turn()
    taken = time.process_time() - started
    await bench.drained()
    assert sum(answered) == len(names)
    return taken / len(names)


async def appends(bench: Bench, count: int) -> float:
    return await _calls(bench, [f"order-{place}" for place in range(count)])


async def appends_beside(bench: Bench, count: int) -> float:
    await _warm(bench, [f"account-{place}" for place in range(AGGREGATES)])
    return await _calls(bench, [f"order-{place}" for place in range(count)])


async def appends_inside(bench: Bench, count: int) -> float:
    """Calls that follow each other before the store has answered a command for each of their aggregates."""
    names = [f"order-{place}" for place in range(count)]
    await _warm(bench, names)
    taken = 0.0
    for first in range(0, count, CALL):
        part = names[first : first + CALL]
        bench.mailboxes.submit([Entry(name, "first", "first") for name in part])
        bench.mailboxes.kick()
        changes: list[Change] = [(name, None, "c", b"") for name in part]
        started = time.process_time()
        bench.mailboxes.append(changes, lambda outcomes: None)
        bench.mailboxes.kick()
        taken += time.process_time() - started
        bench.turn()
        started = time.process_time()
        bench.turn()
        taken += time.process_time() - started
        await bench.drained()
    return taken / count


RUNS: dict[str, Run] = {
    "commands": commands,
    "hot aggregate": hot_aggregate,
    "lone": lone,
    "conflicts": conflicts,
    "appends": appends,
    "appends beside": appends_beside,
    "appends inside": appends_inside,
}


async def _run(run: Run, count: int) -> float:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.mailboxes.run)
        taken = await run(bench, count)
        await bench.mailboxes.stop(1.0)
    return taken * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of the mailboxes per command")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", choices=RUNS)
    options = parser.parse_args()
    count = 20_000 if options.quick else 200_000
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(trio.run, _run, RUNS[options.profile], count)
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        return
    figures = {name: statistics.median(trio.run(_run, run, count) for _ in range(3)) for name, run in RUNS.items()}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, micros in figures.items():
            print(f"{name:16} {micros:6.2f} µs")


if __name__ == "__main__":
    main()
