"""Runs that are interrupted anywhere, from seeds: by the source, by the target, by a cancellation.

What they have copied in the end is everything, in order, once; and a run that notes its place too early is found out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.cli.transfer.event_lines import ParsedLine
from eventstore.cli.transfer.migration import run as runs
from eventstore.cli.transfer.migration.run import Migration, MigrationRules, MigrationSummary
from eventstore.cli.transfer.migration.source import SourceRefused, SourceRow
from eventstore.cli.transfer.migration.verify import Comparison, verify
from eventstore.errors import EventStoreError


class Grown:
    """A source that grows, and that sometimes fails between two batches."""

    name = "grown"
    first_place: int | None = 1

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.all = chance, list[SourceRow]()
        self.versions: dict[str, int] = {}
        self.fails = True

    def grow(self, count: int) -> None:
        for _ in range(count):
            name = f"a-{self.chance.randrange(5)}"
            version = self.versions[name] = self.versions.get(name, 0) + 1
            place = len(self.all) + 1
            self.all.append(SourceRow(place, ParsedLine(name, f"e-{place}", place, es.NewEvent("T", {"n": place}), version)))

    def form(self) -> Mapping[str, str]:
        return {"n": "integer"}

    def head(self, *, paused: bool) -> int:
        return len(self.all)

    def rows(self, after: int, upto: int) -> Iterator[list[SourceRow]]:
        at = max(after, 0)
        while at < upto:
            if self.fails and self.chance.random() < 0.05:
                raise SourceRefused("the source is gone")
            end = min(upto, at + self.chance.randrange(1, 8))
            yield self.all[at:end]
            at = end

    def close(self) -> None:
        pass


class Failing:
    """A store whose calls sometimes fail, before or after they are carried out, or are cancelled."""

    def __init__(self, store: Any, chance: random.Random) -> None:
        self._store, self._chance = store, chance
        self.scope: trio.CancelScope | None = None
        self.shards = store.shards if hasattr(store, "shards") else {}

    def read(self, *arguments: Any, **options: Any) -> Any:
        return self._store.read(*arguments, **options)

    def read_all(self) -> Any:
        return self._store.read_all()

    async def append_many(self, commits: Any) -> Any:
        return await self._tried(lambda: self._store.append_many(commits))

    async def append(self, *arguments: Any) -> Any:
        return await self._tried(lambda: self._store.append(*arguments))

    async def _tried(self, ask: Any) -> Any:
        fate = self._chance.random()
        if self.scope is not None and fate < 0.03:
            raise es.ConnectionLost("before")
        done = await ask()
        if self.scope is not None and fate < 0.06:
            raise es.ConnectionLost("after")
        if self.scope is not None and fate < 0.09:
            self.scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()
        return done


async def moved(folder: Path, seed: int, gaps: str = "refuse") -> Comparison:
    """Copies a source that grows, with interruptions, then without; compares."""
    chance, rules = random.Random(seed), MigrationRules(gaps)
    source, compared = Grown(chance), Comparison()
    async with es.open_store(folder) as opened:
        store: Any = Failing(opened, chance)

        async def one_run() -> None:
            with trio.CancelScope() as scope:
                store.scope = scope if source.fails else None
                migration = Migration(
                    store, source, "m", rules, MigrationSummary(), paused=False, accept_form=False, on_progress=int
                )
                await migration.run()

        for _ in range(8):
            source.grow(chance.randrange(60))
            try:
                await one_run()
            except EventStoreError as error:
                if error.message not in ("before", "after", "the source is gone"):
                    raise
        source.fails = False
        source.grow(1)
        await one_run()
        await verify(store, source, "m", rules, compared, lambda: None)
    assert compared.source == compared.target == len(source.all) or compared.difference is not None
    return compared


@pytest.mark.parametrize("gaps", ["refuse", "close"])
@pytest.mark.parametrize("seed", range(30))
async def test_everything_is_copied_whatever_is_interrupted(
    tmp_path: Path, seed: int, gaps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_SAVE_S", 0.0)
    compared = await moved(tmp_path / "data", seed, gaps)
    assert (compared.difference, compared.others) == (None, 0)
    assert compared.source_checksum == compared.target_checksum


async def test_a_run_that_notes_its_place_too_early_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_SAVE_S", 0.0)
    prepared = Migration._prepared

    def early(migration: Migration, rows: list[SourceRow]) -> Any:
        migration._summary.place = rows[-1].place
        return prepared(migration, rows)

    monkeypatch.setattr(Migration, "_prepared", early)
    found = 0
    for seed in range(12):
        try:
            found += (await moved(tmp_path / str(seed), seed)).difference is not None
        except EventStoreError:  # the versions that follow have a gap
            found += 1
    assert found
