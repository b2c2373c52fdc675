"""A leader splits its shard: it waits for clones of its log, holds the leaving slots back, and gives them away.

    clones lack few completed files   ─► the file that is written is small enough, or a new one is begun
    leaving slots are held back       ─► a new file is begun: the new shards end with the one before
    its first record is committed     ─► one transaction gives the slots away

Until the transaction nothing has changed for anybody else; its leader may die, and the next one begins again. What is held back
is never taken again by this run: if it cannot be given away, the run ends. While the split is paused, nothing is held back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from eventstore_cluster.replica.actions import Action, EndProcess, HoldBack, Transact
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.new_files import NewFiles
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import NOT_PAUSED, Seat

Gifts: TypeAlias = "tuple[tuple[int, frozenset[Seat]], ...]"


class Splitting:
    """What one leader does about it. `holding`: it holds slots back."""

    def __init__(self, registrar: Registrar, limits: Limits) -> None:
        self._registrar, self._limits = registrar, limits
        self._held_at: float | None = None
        self._held_for: tuple[int, ...] = ()
        self._last_file: int | None = None
        self._splits_before = 0
        self._files = NewFiles(limits.split_file_bytes, limits.files_begun_max)

    @property
    def holding(self) -> bool:
        return self._held_at is not None

    def held_back(self, last_file: int) -> None:
        """Nothing of the leaving slots is written after this file. Another one was begun."""
        self._last_file = last_file

    def next_step(self, written: LogEnds, committed: LogEnds | None, now: float, *, may_begin: bool) -> list[Action]:
        """Returns what is to be done about the split that is wanted, if anything. No transaction waits for its answer.

        `may_begin`: the shard takes appends, and no other replica is to lead it.
        """
        state = self._registrar.state
        if self._held_at is not None:
            return self._give(committed, self._held_at, now)
        if not state.split or state.pause.on or committed is None or not may_begin:
            return []
        if (through := self._cloned()) is None:
            return []
        if (before := self._files.next_step(written[0], through + self._limits.split_files_lacking)) is not None:
            return before
        self._held_at, self._held_for, self._splits_before = now, state.split, state.splits
        return [HoldBack(state.split)]

    def _give(self, committed: LogEnds | None, held_at: float, now: float) -> list[Action]:
        state, seen = self._registrar.state, self._registrar.seen
        assert seen is not None
        if state.splits > self._splits_before:
            self._held_at = self._last_file = None
            self._files.reset()
            return []
        if state.split != self._held_for:  # another one may have been asked for since, of other slots
            return [EndProcess("the split was called off, and slots are held back for it")]
        if now > held_at + self._limits.split_max_s:
            return [EndProcess(f"the split was not settled within {self._limits.split_max_s:g} s")]
        if self._last_file is None or committed is None or committed[0][0] <= self._last_file or self._registrar.uncertain:
            return []
        gifts = tuple((shard, self._members(shard)) for shard in state.split)
        if any(len(members) < state.in_sync_min for _, members in gifts):
            return []
        given = replace(state, split=(), splits=state.splits + 1, pause=NOT_PAUSED)
        return [Transact(self._registrar.propose(given, seen.leader_revision, gifts=gifts))]

    def _members(self, shard: int) -> frozenset[Seat]:
        """Returns the clones on the nodes of the in-sync set: what their parent's replicas have, they have."""
        seen = self._registrar.seen
        assert seen is not None
        nodes = {member.node for member in seen.state.in_sync}
        return frozenset(each.member for each in seen.clones if each.shard == shard and each.member.node in nodes)

    def _cloned(self) -> int | None:
        """Returns the last file that all clones have which are waited for; None: one of them is not there, or stuck: one that
        cannot link files lacks few of them in a small shard, and could not serve what it is given.
        """
        seen = self._registrar.seen
        assert seen is not None
        found = {(each.shard, each.member.node): each.through for each in seen.clones if not each.stuck}
        needed = [(shard, member.node) for shard in seen.state.split for member in seen.state.in_sync]
        return min(found[each] for each in needed) if needed and all(each in found for each in needed) else None
