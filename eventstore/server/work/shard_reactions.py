"""The reactions of a worker on the shards of a cluster: each shard's events have reactions, and a checkpoint, of their own.

Reaction `ship` of shard 1 is `ship@1` for operators, unless there is only one. Its commands go to whichever shard owns the
aggregate. After a split all begin again from their checkpoints; that of a new shard begins as its parent's, before any of them
runs: a parent that continues without the slots it gave away says nothing of their events any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias
from uuid import UUID

import trio

from eventstore.client.aio.routing.by_layout import run_by_layout
from eventstore.client.aio.store import NetworkStore
from eventstore.domain.reactions.checkpoint import FileCheckpoint, ReactionMarks
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import shown
from eventstore.following.parking import Parked
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.splits import Split
from eventstore.server.bootstrap import checkpoint_of_shard
from eventstore.server.logs import get_logger
from eventstore.server.reactions.reaction_runner import ReactionProgress, ReactionRunner

_AGAIN_S: Final = 5.0
MakeRunner: TypeAlias = Callable[[NetworkStore, Path, str], ReactionRunner]


class ShardReactions:
    """As `ReactionRunner`, whose methods it has. `runner`: makes the reactions to the events of a shard, of its store, its
    checkpoint and the suffix of their names.
    """

    def __init__(self, store: NetworkStore, checkpoint: Path, runner: MakeRunner) -> None:
        self._store, self._checkpoint, self._runner = store, checkpoint, runner
        self._by_shard: Mapping[int, ReactionRunner] = {}
        self._failure: str | None = None

    async def run(self) -> None:
        await run_by_layout(self._store._router, self._run)

    async def _run(self) -> None:
        """Reacts to the events of the shards that there are, until cancelled."""
        router = self._store._router
        assert router is not None
        known, stores = router.table.known, self._store._of_shards()
        while True:
            try:
                await trio.to_thread.run_sync(inherit, self._checkpoint, known)
                self._failure = None
                break
            except (EventStoreError, OSError) as error:
                self._failure = f"the checkpoints of new shards cannot be made: {error}"
                get_logger("eventstore.worker").error("reactions wait", error=self._failure, again_s=_AGAIN_S)
                await trio.sleep(_AGAIN_S)
        alone = len(stores) == 1
        self._by_shard = {
            number: self._runner(store, self._path(number, alone), "" if alone else f"@{number}")
            for number, store in stores.items()
        }
        async with trio.open_nursery() as nursery:
            for each in self._by_shard.values():
                nursery.start_soon(each.run)

    def _path(self, shard: int, alone: bool) -> Path:
        return self._checkpoint if alone else checkpoint_of_shard(self._checkpoint, shard)

    @property
    def attention(self) -> str | None:
        if self._failure is not None:
            return f"reactions: {self._failure}"
        found = ((shard, each.attention) for shard, each in self._by_shard.items())
        shard, said = next(((shard, said) for shard, said in found if said is not None), (0, None))
        return said if said is None or len(self._by_shard) == 1 else f"shard {shard}: {said}"

    @property
    def passed_over(self) -> int:
        return sum(each.passed_over for each in self._by_shard.values())

    def progress(self) -> list[ReactionProgress]:
        found = chain.from_iterable(each.progress() for each in self._by_shard.values())
        return sorted(found, key=lambda each: each.name)

    def parked(self, name: str) -> list[Parked]:
        runner, own = self._named(name)
        return runner.parked(own)

    async def retry(self, name: str, aggregate_id: str | None, who: str, why: str) -> int:
        runner, own = self._named(name)
        return await runner.retry(own, aggregate_id, who, why)

    async def skip(self, name: str, aggregate_id: str, who: str, why: str) -> int:
        runner, own = self._named(name)
        return await runner.skip(own, aggregate_id, who, why)

    async def replay(self, name: str, sequence: int, who: str, why: str) -> int:
        runner, own = self._named(name)
        return await runner.replay(own, sequence, who, why)

    def _named(self, name: str) -> tuple[ReactionRunner, str]:
        """Returns the reactions of the shard that a name ends with, and the rest of it. Raises InvalidArgument."""
        if len(self._by_shard) == 1:
            return next(iter(self._by_shard.values())), name
        own, _, shard = name.rpartition("@")
        for number, runner in self._by_shard.items():
            if shard == str(number):
                return runner, own
        shards, first = ", ".join(map(str, list(self._by_shard)[:20])), next(iter(self._by_shard), 0)
        raise InvalidArgument(
            f"reaction {shown(name)} names no shard: this worker runs each reaction on shards {shards}; say which, such as "
            f"NAME@{first}",
            field="reaction",
            value=shown(name),
        )


def inherit(checkpoint: Path, known: ClusterMap) -> None:
    """Makes the checkpoints of shards that were split off, durably; those that are there stay. Blocks.

    Raises:
        Corrupt, ReadFailed, FolderRefused, StorageFull: one cannot be read, or written.
    """
    if len(known.shards) == 1:
        return
    stores = {each.shard: str(UUID(bytes=each.uuid)) for each in known.shards}
    first = known.splits[0].parent if known.splits else None
    if first is not None and checkpoint.exists():  # of the time when there was one shard
        _make(checkpoint_of_shard(checkpoint, first), FileCheckpoint(checkpoint).load(), stores[first], stores[first])
    for split in known.splits:
        parent = checkpoint_of_shard(checkpoint, split.parent)
        if parent.exists():
            marks = _after(FileCheckpoint(parent).load(), split)
            _make(checkpoint_of_shard(checkpoint, split.child), marks, stores[split.parent], stores[split.child])


def _make(path: Path, marks: ReactionMarks, of: str, store: str) -> None:
    """`of`: the store that the marks have to be of."""
    if not path.exists() and marks.store in (None, of):
        FileCheckpoint(path).save(replace(marks, store=store))


def _after(marks: ReactionMarks, split: Split) -> ReactionMarks:
    """Returns where the reactions of a new shard begin: at its parent's marks, or at the last event that both have."""

    reactions = {name: each.inherited(split.through) for name, each in marks.reactions.items()}
    inherited = None if marks.inherited is None else marks.inherited.inherited(split.through)
    return ReactionMarks(marks.store, min(marks.parked_after, split.through), reactions, inherited, marks.replayed)
