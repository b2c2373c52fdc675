"""How many events a process folds that has many projections: `python -m benchmarks.projections [--quick] [--json]`.

Events are appended to an embedded store while projections follow it from one subscription, into tables that are dicts: what is
measured is the way of an event from the log to a row, without a database. In one process, in turns:

one       one projection, which takes all events
of each   100 projections, each event the matter of one of them: events/s, and as a ratio to `one`
all       100 projections, which take all events: folds/s, and as a ratio to `one`
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import trio

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections.projection import Projection
from eventstore.domain.projections.targets.base import ParkedKey, StoredRow
from eventstore.following.checkpoint import Checkpoint, Origin

MANY = 100
AGGREGATES = 500
EVENTS_OF_COMMIT = 5
COMMITS_AT_ONCE = 200


class Counted(Projection[int]):
    """How many events of some types an aggregate has."""

    name = "counted"
    columns: ClassVar[dict[str, Any]] = {"events": int}

    def __init__(self, name: str, types: Sequence[str]) -> None:
        self.name = name  # type: ignore[misc] # one class for all
        self.types = types  # type: ignore[misc]
        super().__init__()

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: es.Event) -> int:
        return state + 1

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"events": state}


class Rows:
    """A table in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, StoredRow] = {}
        self._checkpoint = Checkpoint(0)

    def of_shard(self, shard: int, origin: Origin | None = None) -> Rows:
        raise NotImplementedError("the store is one")

    def open(self, projection: Projection[Any], *, begins: bool = True, store: str | None = None) -> Checkpoint:
        return self._checkpoint

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: str(self.rows[key][-1]) for key in keys if key in self.rows}

    def parked(self, keys: Sequence[str] | None) -> dict[str, ParkedKey]:
        return {}

    def write(
        self,
        rows: Sequence[StoredRow],
        deletions: Sequence[str],
        before: int,
        after: Checkpoint,
        parked: Sequence[ParkedKey] = (),
        retried: Sequence[str] = (),
    ) -> None:
        self.rows.update((str(row[0]), row) for row in rows)
        self._checkpoint = after

    def check(self, at: int) -> None:
        """There is no other projector."""

    def refusal(self, row: StoredRow) -> str | None:
        return None

    def close(self) -> None:
        """Rows stay."""


async def followed(projections: Sequence[Projection[int]], events: int) -> float:
    """Returns the seconds from the first append until all projections have their events."""
    types, tables = [f"T{number}" for number in range(MANY)], [(each, Rows()) for each in projections]
    with tempfile.TemporaryDirectory() as folder:
        async with es.open_store(Path(folder) / "store") as store, trio.open_nursery() as nursery:
            caught_up, folded, done = set[str](), 0, trio.Event()
            wanted = events * len(projections) if len([*(projections[0].types or ())]) == MANY else events

            def on_progress(name: str, progress: d.Progress) -> None:
                nonlocal folded
                folded += progress.events
                if progress.caught_up:
                    caught_up.add(name)
                if folded >= wanted or (not folded and len(caught_up) == len(projections)):
                    done.set()

            async def follow() -> None:
                await d.project_all(store, tables, on_progress=on_progress)

            nursery.start_soon(follow)
            await done.wait()
            done, started = trio.Event(), time.perf_counter()
            for first in range(0, events, EVENTS_OF_COMMIT * COMMITS_AT_ONCE):
                await store.append_many(
                    [
                        es.Commit(
                            f"a-{place % AGGREGATES}",
                            [es.NewEvent(types[(place + each) % MANY], b"1") for each in range(EVENTS_OF_COMMIT)],
                            es.ANY,
                        )
                        for place in range(first, first + EVENTS_OF_COMMIT * COMMITS_AT_ONCE, EVENTS_OF_COMMIT)
                    ]
                )
            await done.wait()
            taken = time.perf_counter() - started
            nursery.cancel_scope.cancel()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="many projections on one subscription")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    events, rounds = (20_000, 3) if options.quick else (100_000, 5)
    types = [f"T{number}" for number in range(MANY)]
    rates: dict[str, list[float]] = {"one": [], "of each": [], "all": []}
    for _ in range(rounds):
        rates["one"].append(events / trio.run(followed, [Counted("one", types)], events))
        each = [Counted(f"of_{number}", [types[number]]) for number in range(MANY)]
        rates["of each"].append(events / trio.run(followed, each, events))
        everyone = [Counted(f"all_{number}", types) for number in range(MANY)]
        few = events // 20
        rates["all"].append(few * MANY / trio.run(followed, everyone, few))
    found = {name: statistics.median(values) for name, values in rates.items()}
    one, of_each, all_take = found["one"], found["of each"], found["all"]
    ratios = {"of each / one": of_each / one, "all / one": all_take / one, "of each / all": of_each / all_take}
    if options.json:
        print(json.dumps({**found, **ratios}))
        return
    print(f"one projection, all events             {one:9,.0f} events/s")
    print(f"100, each event the matter of one      {of_each:9,.0f} events/s, {of_each / one:.2f} of one alone")
    print(f"100, all take all                      {all_take:9,.0f} folds/s, {all_take / one:.2f} of one alone")
    print(f"events/s to one, per fold where all take all: {of_each / all_take:.2f}")


if __name__ == "__main__":
    main()
