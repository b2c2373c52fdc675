"""Checks the outcomes that clients got against the store.

Concurrent tasks append commits of all sizes to a server that may die at any moment. The ledger keeps the acknowledged commits,
the events a subscriber saw, and the commits without an answer; `check` compares it with a store, `settle` sends unanswered
commits again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import trio

import eventstore as es
from eventstore.client.aio.store import NetworkStore
from eventstore.model import Event, NewEvent
from tests.waiting import DEADLINE_SECONDS

WRITERS = 12
SHARED = 3
Command = tuple[str, str]


@dataclass
class Ledger:
    """All outcomes clients got from one data folder, over any number of servers."""

    seed: str
    acknowledged: dict[Command, es.Committed] = field(default_factory=dict)
    sent: dict[Command, es.Commit] = field(default_factory=dict)
    seen: dict[int, Event] = field(default_factory=dict)
    refused: list[es.EventStoreError] = field(default_factory=list)
    rounds: int = 0

    @property
    def unanswered(self) -> list[es.Commit]:
        return [commit for command, commit in self.sent.items() if command not in self.acknowledged]

    def note(self, commit: es.Commit, outcome: es.Committed | es.EventStoreError) -> None:
        """Records the outcome of a commit."""
        command = commit.aggregate_id, commit.command_id
        if isinstance(outcome, es.Committed):
            known = self.acknowledged.setdefault(command, outcome)
            assert (known.version, known.sequence) == (outcome.version, outcome.sequence), "two answers to one command"
        else:
            assert not isinstance(outcome, es.InvalidArgument | es.CommandIdReused), outcome
            self.refused.append(outcome)

    # -- the workload ---------------------------------------------------------------------------------------------------

    def run(self, address: str, commits: int, at: Callable[[int], None] = lambda _: None) -> None:
        """Appends until this many commits are acknowledged or the server is gone; calls `at` with the number so far."""
        trio.run(self._run, address, commits, at)

    async def _run(self, address: str, commits: int, at: Callable[[int], None]) -> None:
        self.rounds += 1
        target = len(self.acknowledged) + commits
        begun = len(self.acknowledged)

        async def write(writer: int) -> None:
            chance = random.Random(f"{self.seed}/{self.rounds}/{writer}")
            try:
                async with es.connect(address, reconnect_timeout=0.0) as store:
                    while len(self.acknowledged) < target:
                        await self._append(store, chance, writer)
                        at(len(self.acknowledged) - begun)
            except (es.ConnectionLost, es.Poisoned, es.ShuttingDown) as error:
                self.refused.append(error)

        with trio.fail_after(2 * DEADLINE_SECONDS):
            async with trio.open_nursery() as everything:
                everything.start_soon(self._follow, address)
                async with trio.open_nursery() as writers:
                    for writer in range(WRITERS):
                        writers.start_soon(write, writer)
                everything.cancel_scope.cancel()

    async def _append(self, store: NetworkStore, chance: random.Random, writer: int) -> None:
        commits = [self._commit(chance, writer, place) for place in range(chance.choice((1, 1, 1, 8)))]
        for commit in commits:
            self.sent[commit.aggregate_id, commit.command_id] = commit
        if len(commits) > 1:
            for commit, outcome in zip(commits, await store.append_many(commits), strict=True):
                self.note(commit, outcome)
                if isinstance(outcome, es.Poisoned | es.ConnectionLost):
                    raise outcome
            return
        commit = commits[0]
        try:
            outcome = await store.append(commit.aggregate_id, commit.events, es.ANY, commit.command_id, commit.timestamp)
        except (es.StorageFull, es.Overloaded) as error:
            self.note(commit, error)
        else:
            self.note(commit, outcome)

    def _commit(self, chance: random.Random, writer: int, place: int) -> es.Commit:
        name = f"own-{writer}" if chance.random() < 0.5 else f"shared-{chance.randrange(SHARED)}"
        command_id = f"{self.rounds}-{writer}-{len(self.sent)}-{place}"
        size = chance.choice((0, 20, 20, 200, 1_500))
        events = [NewEvent("T", chance.randbytes(size), b"m" * place) for _ in range(chance.choice((1, 1, 2, 5)))]
        return es.Commit(name, events, es.ANY, command_id, timestamp=1_000_000 + len(self.sent))

    async def _follow(self, address: str) -> None:
        after = max(self.seen, default=0)
        try:
            async with es.connect(address, reconnect_timeout=0.0) as store:
                async for item in store.subscribe(after):
                    if isinstance(item, Event):
                        assert item.sequence == after + 1, "a gap in a subscription"
                        after = item.sequence
                        self.seen[after] = item
        except (es.ConnectionLost, es.Poisoned, es.ShuttingDown):
            pass

    # -- afterwards -----------------------------------------------------------------------------------------------------

    def check(self, address: str) -> None:
        """Checks that all events acknowledged or seen are stored, byte for byte, in whole commits and without gaps."""
        with es.blocking.connect(address) as store:
            events = list(store.read_all())
            histories = {name: list(store.read(name)) for name in {event.aggregate_id for event in events}}
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        by_command: dict[Command, list[Event]] = {}
        for event in events:
            by_command.setdefault((event.aggregate_id, event.command_id), []).append(event)
        for command, found in by_command.items():
            self._check_commit(self.sent[command], found)
        for command, outcome in self.acknowledged.items():
            assert command in by_command, f"{command} was acknowledged and is not stored"
            assert (by_command[command][-1].version, by_command[command][-1].sequence) == (outcome.version, outcome.sequence)
        for sequence, event in self.seen.items():
            assert events[sequence - 1] == event, "an event that a subscriber saw is not stored"
        for name, history in histories.items():
            assert history == [event for event in events if event.aggregate_id == name]
            assert [event.version for event in history] == list(range(1, len(history) + 1))

    def _check_commit(self, commit: es.Commit, found: list[Event]) -> None:
        assert [(event.type, event.data, event.metadata) for event in found] == [
            (event.type, event.data, event.metadata) for event in commit.events
        ]
        assert {event.timestamp for event in found} == {commit.timestamp}
        for before, after in pairwise(found):
            assert (after.version, after.sequence) == (before.version + 1, before.sequence + 1)

    def settle(self, address: str) -> None:
        """Sends unanswered commits again: each of them is now stored, or was before."""
        commits = self.unanswered
        with es.blocking.connect(address) as store:
            for commit, outcome in zip(commits, store.append_many(commits), strict=True):
                self.note(commit, outcome)
        assert not self.unanswered
