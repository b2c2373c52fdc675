"""Sets of mailboxes on one store under schedules that follow from a seed: delays, failures and the order of tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from eventstore_mailbox import COMMITTED, DUPLICATE, REFUSED, Batch, Entry, Mailboxes, Options, Ports, Publication
from tests.mailbox.history_store import Change, HistoryStore, Outcome
from tests.mailbox.stepped import History, Request, handle

COMMANDS = 120
KINDS = ["add"] * 6 + ["reject", "spoil", "nothing"]


class Worker:
    """Mailboxes whose store is far away: batches take time, in order, and sometimes nobody hears of them."""

    def __init__(self, name: str, store: HistoryStore, chance: random.Random) -> None:
        self.name = name
        self.store = store
        self.chance = chance
        self.answered: list[Entry[Request, Outcome]] = []
        self.published: list[tuple[str, object]] = []
        self.send, self.receive = trio.open_memory_channel[Batch[Change, Outcome]](1_000)
        self.mailboxes: Mailboxes[Request, History, Change, Outcome] = Mailboxes(
            Ports(
                handle=handle, restore=self._restore, persist=self.send.send_nowait, answer=self.answered.extend,
                clock=trio.current_time, refusal=lambda error: (REFUSED, error, 0), publish=self._publish,
                untouched=lambda history: not history.dirty, chance=chance.random,
            ),
            Options(mailboxes=2, aggregates_max=3, restores_max=2, batch_changes_max=8, reruns_max=10_000),
        )  # fmt: skip

    async def _far_away(self) -> None:
        await trio.sleep(self.chance.random() / 10)
        if self.chance.random() < 0.1:
            raise ConnectionError("unreachable")

    async def _restore(self, aggregate_id: str) -> History:
        history = self.store.history(aggregate_id)
        await self._far_away()
        return History(aggregate_id, history)

    async def _publish(self, publications: Sequence[Publication[Change, Outcome]]) -> None:
        await self._far_away()
        self.published += [(publication.aggregate_id, publication.outcome[1]) for publication in publications]

    async def serve_store(self) -> None:
        async for batch in self.receive:
            await trio.sleep(self.chance.random() / 10)
            outcomes = self.store.append(batch.changes, batch.followers)
            if self.chance.random() < 0.1:
                batch.fail(ConnectionError("the answer was lost"))
            else:
                batch.deliver(outcomes)

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mailboxes.run)
            nursery.start_soon(self.serve_store)
            for number in range(COMMANDS):
                request = Request(self.chance.choice("abcde"), f"{self.name} {number}", self.chance.choice(KINDS))
                self.mailboxes.submit([request])
                self.mailboxes.kick()
                if self.chance.random() < 0.3:
                    await trio.sleep(self.chance.random() / 10)
            assert await self.mailboxes.stop(100_000) == 0
            nursery.cancel_scope.cancel()


async def run(seed: int) -> HistoryStore:
    store, chance = HistoryStore(), random.Random(seed)
    workers = [Worker(f"{number}", store, chance) for number in range(2 + seed % 2)]
    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(worker.serve)
    for worker in workers:
        assert len(worker.answered) == COMMANDS
        for entry in worker.answered:
            done = entry.command_id in store.history(entry.aggregate_id)
            assert done == (entry.status in (COMMITTED, DUPLICATE))
            if done:
                assert entry.outcome is not None
                assert (entry.aggregate_id, entry.outcome[1]) in worker.published
    for name, commits in store.commits.items():
        ids = store.history(name)
        assert all(commit.basis == ids[:place] for place, commit in enumerate(commits))
        for worker in workers:
            own = [int(key.split()[1]) for key in ids if key.startswith(f"{worker.name} ")]
            assert own == sorted(own)
    return store


@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_ends_as_some_sequence_of_the_commands_would(seed: int) -> None:
    stores = []
    for _ in range(2):
        trio._core._run._r.seed(seed)  # the scheduler's only source of chance
        stores.append(trio.run(run, seed, clock=trio.testing.MockClock(autojump_threshold=0)))
    assert stores[0].commits == stores[1].commits  # a failing seed can be run again
