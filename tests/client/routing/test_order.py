"""Batches and single commits of many callers, while leaders change, slots move and connections are lost at random.

Whatever happens, each commit is stored once at most, those of an aggregate in the order of their call, and each outcome is that
of its row.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore import ANY, Commit, Committed, NewEvent, blocking
from eventstore.client import backoff
from eventstore.errors import ConnectionLost, Elsewhere
from tests.client.routing.fake_cluster import FakeCluster
from tests.waiting import DEADLINE_SECONDS

EVENT = NewEvent("Happened", b"1")
IDS = [f"a-{number}" for number in range(12)]
CALLERS = 6
CALLS = 25


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delays between attempts to connect are as short as the connections last."""
    monkeypatch.setattr(backoff, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(backoff, "DELAY_S_MAX", 0.01)


class Model:
    """What callers have sent and got. `chains`: command ids of one aggregate each, to be stored in this order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"calls {seed}")
        self.chains: list[tuple[str, list[str]]] = []
        self.outcomes: list[tuple[Commit, Any]] = []
        self._last = 0

    def commits(self) -> list[Commit]:
        """Returns the rows of a call; those of one aggregate are a chain."""
        rows = []
        for _ in range(self.chance.randrange(1, 16)):
            self._last += 1
            rows.append(Commit(self.chance.choice(IDS), [EVENT], ANY, f"c-{self._last}"))
        for aggregate_id in IDS:
            self.chains.append((aggregate_id, [row.command_id or "" for row in rows if row.aggregate_id == aggregate_id]))
        return rows

    def check(self, cluster: FakeCluster, *, all_stored: bool) -> None:
        for aggregate_id, stored in cluster.stored.items():
            assert len(set(stored)) == len(stored), f"{aggregate_id} has a command twice"
        for commit, outcome in self.outcomes:
            stored = cluster.stored.get(commit.aggregate_id, [])
            if isinstance(outcome, Committed):
                assert (outcome.aggregate_id, stored[outcome.version - 1]) == (commit.aggregate_id, commit.command_id)
            else:
                assert not all_stored, outcome
                assert isinstance(outcome, ConnectionLost | Elsewhere)
                if isinstance(outcome, Elsewhere):
                    assert commit.command_id not in stored, "an error that says that nothing was stored"
        for aggregate_id, chain in self.chains:
            stored = cluster.stored.get(aggregate_id, [])
            places = [stored.index(each) for each in chain if each in stored]
            assert places == sorted(places), f"{aggregate_id}: {chain} were stored as {stored}"


async def call(store: es.NetworkStore, model: Model) -> None:
    """Makes a batch, or single appends at the same time; those of one aggregate are a chain too, in the order they begin."""
    rows = model.commits()
    if model.chance.random() < 0.5:
        model.outcomes += zip(rows, await store.append_many(rows), strict=True)
        return
    model.chains = model.chains[: -len(IDS)]
    begun: dict[str, list[str]] = {each: [] for each in IDS}

    async def one(row: Commit) -> None:
        begun[row.aggregate_id].append(row.command_id or "")
        try:
            outcome: Any = await store.append(*row)
        except es.EventStoreError as error:
            outcome = error
        model.outcomes.append((row, outcome))

    async with trio.open_nursery() as nursery:
        for row in rows:
            nursery.start_soon(one, row)
    model.chains += begun.items()


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (3, 4, 5))])
@pytest.mark.parametrize("reconnect_timeout", [120.0, 0.0])
def test_commits_are_stored_once_and_in_order(seed: int, reconnect_timeout: float) -> None:
    model = Model(seed)

    async def caller(store: es.NetworkStore) -> None:
        for _ in range(CALLS):
            await call(store, model)

    async def main(cluster: FakeCluster) -> None:
        async with es.connect(cluster.address, reconnect_timeout=reconnect_timeout) as store, trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(caller, store)

    with FakeCluster(seed, 3, 0.2) as cluster:
        trio.run(main, cluster)
    assert cluster.refused > 0
    assert cluster.changes > 0
    model.check(cluster, all_stored=reconnect_timeout > 0)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.parametrize("reconnect_timeout", [120.0, 0.0])
def test_a_blocking_client_stores_them_once_and_in_order(seed: int, reconnect_timeout: float) -> None:
    model, lock = Model(seed), threading.Lock()

    def caller(store: blocking.BlockingStore) -> None:
        for _ in range(CALLS):
            with lock:
                rows = model.commits()
            outcomes: Sequence[Any] = store.append_many(rows)
            with lock:
                model.outcomes += zip(rows, outcomes, strict=True)

    with FakeCluster(seed, 3, 0.2) as cluster, blocking.connect(cluster.address, reconnect_timeout=reconnect_timeout) as store:
        threads = [threading.Thread(target=caller, args=(store,), daemon=True) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()
    assert len(model.outcomes) >= CALLERS * CALLS
    assert cluster.refused > 0
    model.check(cluster, all_stored=reconnect_timeout > 0)
