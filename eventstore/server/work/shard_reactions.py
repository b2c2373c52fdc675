"""The reactions of a worker on the shards of a cluster: each shard's events have reactions, and a checkpoint, of their own.

Reaction `ship` of shard 1 is `ship@1` for operators, unless there is only one. Its commands go to whichever shard owns the
aggregate. When there are new shards all begin again from their checkpoints; that of a new one is made before any of them runs:
a shard that continues without the slots it gave away says nothing of their events any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.domain.reactions.checkpoint import FileCheckpoint, ReactionMarks
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import shown
from eventstore.following.parts import Part, Parts
from eventstore.protocol.reaction_info import ReactionInfo
from eventstore.server.bootstrap import checkpoint_of_shard
from eventstore.server.logs import get_logger
from eventstore.server.reactions.reaction_runner import ReactionRunner, Reactions, ReactionsByName

_AGAIN_S: Final = 5.0
MakeRunner: TypeAlias = Callable[[NetworkStore, Path, str], ReactionRunner]


class ShardReactions(ReactionsByName):
    """As `ReactionRunner`, whose methods it has. `names`: of the domain's reactions. `runner`: makes those to the events of a
    shard, of its store, its checkpoint and the suffix of their names.
    """

    def __init__(self, store: NetworkStore, checkpoint: Path, names: Collection[str], runner: MakeRunner) -> None:
        self._parts, self._checkpoint, self._names, self._runner = Parts(store), checkpoint, names, runner
        self._by_shard: Mapping[int | None, ReactionRunner] = {}
        self._failure: str | None = None

    async def run(self) -> None:
        await self._parts.run(self._run)

    async def _run(self, parts: list[Part[NetworkStore]]) -> None:
        """Reacts to the events of the parts that there are, until cancelled."""
        while True:
            try:
                await trio.to_thread.run_sync(inherit, self._checkpoint, self._names, parts)
                self._failure = None
                break
            except (EventStoreError, OSError) as error:
                self._failure = f"the checkpoints of new shards cannot be made: {error}"
                get_logger("eventstore.worker").error("reactions wait", error=self._failure, again_s=_AGAIN_S)
                await trio.sleep(_AGAIN_S)
        self._by_shard = {
            part.number: self._runner(
                part.store,
                checkpoint_of_shard(self._checkpoint, part.number),
                "" if part.number is None else f"@{part.number}",
            )
            for part in parts
        }
        async with trio.open_nursery() as nursery:
            for each in self._by_shard.values():
                nursery.start_soon(each.run)

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

    def progress(self) -> list[ReactionInfo]:
        found = chain.from_iterable(each.progress() for each in self._by_shard.values())
        return sorted(found, key=lambda each: each.name)

    def _named(self, name: str) -> tuple[Reactions, str]:
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


def inherit(checkpoint: Path, names: Collection[str], parts: Sequence[Part[NetworkStore]]) -> None:
    """Makes the checkpoints of parts that have none, durably; those that are there stay. `names`: of the reactions. Blocks.

    Raises:
        Corrupt, ReadFailed, FolderRefused, StorageFull: one cannot be read, or written.
    """
    stores = {part.number: part.uuid for part in parts}

    def marks_of(store: str | None, number: int | None) -> ReactionMarks | None:
        path = checkpoint_of_shard(checkpoint, number)
        marks = FileCheckpoint(path).load() if path.exists() else None
        return marks if marks is not None and marks.store in (None, stores.get(number, store)) else None

    for part in parts:
        path = checkpoint_of_shard(checkpoint, part.number)
        if part.origin is not None and not path.exists():
            marks = part.origin.begins(partial(marks_of, part.uuid))
            if marks is not None:
                FileCheckpoint(path).save(replace(marks.of_each(names), store=part.uuid))
