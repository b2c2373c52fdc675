"""A projection that asyncio cancels, at any of its awaits, closes its table after the thread that uses it has ended."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

import eventstore as es
import eventstore.domain as d
from bank import Balances, Deposited, Opened
from eventstore.domain.projections.targets.base import Target
from tests.domain.cancelled_steps import TURNS, Uses, cancelled_at
from tests.domain.projections.conftest import Place
from tests.domain.runner import new_events
from tests.server_thread import ServerThread

ACCOUNTS = ("acc-1", "acc-2", "acc-3", "acc-4")


class Watched:
    """A real target. It is noticed if it is closed while a thread uses it."""

    def __init__(self, target: Target, uses: Uses) -> None:
        self._target, self._uses = target, uses

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        return partial(self._uses.call, method) if name in ("open", "read", "parked", "write", "refusal") else method

    def close(self) -> None:
        assert self._uses.running == 0, "the target was closed while a thread used it"
        self._target.close()


async def cancel_each_await(store: es.NetworkStore, place: Place, turns: int) -> int:
    """Deposits once on every account and runs the projection, cancelled at its first await; again, at its second; and so on,
    until it ends before. Returns how often it was cancelled.
    """
    uses = Uses()
    for nth in count(1):
        await store.append_many([es.Commit(account, new_events(Deposited(1)), es.ANY) for account in ACCOUNTS])
        target = cast(Target, Watched(place.target(), uses))
        run = partial(d.project, store, Balances(), target, events_max=3, until_caught_up=True)
        if not await cancelled_at(nth, run, uses, turns):
            return nth - 1
    raise AssertionError


@pytest.mark.parametrize("turns", [0, TURNS])
def test_cancelled_at_any_await_it_closes_the_table_after_its_thread_and_every_event_counts_once(
    tmp_path: Path, place: Place, turns: int
) -> None:
    async def main() -> int:
        async with es.connect(server.address) as store:
            await store.append_many([es.Commit(account, new_events(Opened(account)), 0) for account in ACCOUNTS])
            return await cancel_each_await(store, place, turns)

    with ServerThread(tmp_path / "store") as server:
        cancelled = asyncio.run(main())
    assert cancelled > 10
    assert place.query("SELECT key, cents FROM balances ORDER BY key") == [(each, cancelled + 1) for each in ACCOUNTS]
    assert place.query("SELECT sequence FROM eventstore_checkpoints") == [(4 * (cancelled + 2),)]
