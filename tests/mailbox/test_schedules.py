"""Several sets of mailboxes on one store; a seed determines delays, failures and the order of tasks."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from eventstore_mailbox import COMMITTED, DUPLICATE, REFUSED, Batch, Entry, Mailboxes, Options, Ports
from tests.mailbox.history_store import Change, HistoryStore, Outcome
from tests.mailbox.stepped import History, Request, handle

COMMANDS = 120
KINDS = ["add"] * 6 + ["reject", "spoil", "nothing"]


class Worker:
    """Mailboxes with a remote store: batches take time, in order, and sometimes their outcomes are lost."""

    def __init__(self, name: str, store: HistoryStore, rng: random.Random) -> None:
        self.name = name
        self.store = store
        self.rng = rng
        self.answered: list[Entry[Request, Outcome]] = []
        self.send, self.receive = trio.open_memory_channel[Batch[Change, Outcome]](1_000)
        self.mailboxes: Mailboxes[Request, History, Change, Outcome] = Mailboxes(
            Ports(
                handle=handle, restore=self._restore, persist=self.send.send_nowait, answer=self.answered.extend,
                clock=trio.current_time, refusal=lambda error: (REFUSED, error, 0),
                unmodified=lambda history: not history.dirty, random=rng.random,
                evicted=lambda aggregate_id, history: store.check_stored(aggregate_id, history.ids),
            ),
            Options(mailboxes=2, aggregates_max=3, restores_max=2, batch_changes_max=8, reruns_max=10_000),
        )  # fmt: skip

    async def _remote_call(self) -> None:
        await trio.sleep(self.rng.random() / 10)
        if self.rng.random() < 0.1:
            raise ConnectionError("unreachable")

    async def _restore(self, aggregate_id: str) -> History:
        history = self.store.history(aggregate_id)
        await self._remote_call()
        return History(aggregate_id, history)

    async def serve_store(self) -> None:
        async for batch in self.receive:
            await trio.sleep(self.rng.random() / 10)
            outcomes = self.store.append(batch.changes, batch.dependents)
            if self.rng.random() < 0.1:
                batch.fail(ConnectionError("the answer was lost"))
            else:
                batch.deliver(outcomes)

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mailboxes.run)
            nursery.start_soon(self.serve_store)
            for number in range(COMMANDS):
                request = Request(self.rng.choice("abcde"), f"{self.name} {number}", self.rng.choice(KINDS))
                self.mailboxes.submit([request])
                self.mailboxes.kick()
                if self.rng.random() < 0.3:
                    await trio.sleep(self.rng.random() / 10)
            assert await self.mailboxes.stop(100_000) == 0
            nursery.cancel_scope.cancel()


async def run(seed: int) -> HistoryStore:
    store, rng = HistoryStore(), random.Random(seed)
    workers = [Worker(f"{number}", store, rng) for number in range(2 + seed % 2)]
    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(worker.serve)
    for worker in workers:
        assert len(worker.answered) == COMMANDS
        for entry in worker.answered:
            done = entry.command_id in store.history(entry.aggregate_id)
            assert done == (entry.status in (COMMITTED, DUPLICATE))
    for name, commits in store.commits.items():
        ids = store.history(name)
        assert all(commit.basis == ids[:place] for place, commit in enumerate(commits))
        for worker in workers:
            own = [int(key.split()[1]) for key in ids if key.startswith(f"{worker.name} ")]
            assert own == sorted(own)
    return store


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_ends_like_some_sequence_of_the_commands(seed: int) -> None:
    stores = []
    for _ in range(2):
        trio._core._run._r.seed(seed)  # the scheduler's only source of randomness
        stores.append(trio.run(run, seed, clock=trio.testing.MockClock(autojump_threshold=0)))
    assert stores[0].commits == stores[1].commits  # a failing seed can be run again
