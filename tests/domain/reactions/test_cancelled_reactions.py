"""Reactions that asyncio cancels, at any await, end after the thread that reads or writes their checkpoint."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

import eventstore as es
import eventstore.domain as d
from bank import Deposited, Opened
from eventstore.commands import RawCommand
from eventstore.domain.reactions.checkpoint import FileCheckpoint, ReactionMarks
from tests.domain.cancelled_steps import TURNS, Uses, after, cancelled_at
from tests.domain.runner import new_events
from tests.server_thread import ServerThread
from tests.waiting import eventually

app = d.Domain()


@app.reacts(Opened)
async def welcome(event: Opened, send: d.Send) -> None:
    await send(RawCommand("Deposit", f"welcome-{event.owner}", b"{}"))


class Watched(FileCheckpoint):
    """A checkpoint in a file, of which it is noticed who still uses it."""

    def __init__(self, path: Path, uses: Uses) -> None:
        super().__init__(path)
        self._uses = uses

    def load(self) -> ReactionMarks:
        return self._uses.call(super().load)

    def save(self, marks: ReactionMarks) -> None:
        self._uses.call(super().save, marks)


async def cancel_each_await(store: es.NetworkStore, path: Path) -> int:
    """Opens an account and runs the reactions, cancelled at their first await; again, at their second; and so on, until they
    end before. Returns how often they were cancelled.
    """
    uses = Uses()

    async def send(command: object, command_id: str, *, metadata: object = None) -> es.Committed:
        assert isinstance(command, RawCommand)
        return await store.append(command.aggregate_id, new_events(Deposited(1)), es.ANY, command_id)

    for nth in count(1):
        await store.append(f"acc-{nth}", new_events(Opened(str(nth))), 0)
        run = partial(d.react, store, app, send, Watched(path, uses), until_caught_up=True)
        if not await cancelled_at(nth, run, uses, TURNS):
            return nth - 1
    raise AssertionError


def test_cancelled_at_any_await_they_end_after_the_thread_of_their_checkpoint_and_send_every_command_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "reactions.json"

    async def main() -> tuple[int, list[str], int]:
        async with es.connect(server.address) as store:
            cancelled = await cancel_each_await(store, path)
            sent = [event async for event in store.read_all(aggregate_prefix="welcome-")]
            opened = [event async for event in store.read_all(aggregate_prefix="acc-")]
            return cancelled, [event.aggregate_id for event in sent], opened[-1].sequence

    with ServerThread(tmp_path / "store") as server:
        cancelled, sent, last = asyncio.run(main())
    assert cancelled >= 4
    assert sorted(sent) == sorted(f"welcome-{nth}" for nth in range(1, cancelled + 2))
    assert FileCheckpoint(path).load().reactions["welcome"].sequence == last


class Held(Watched):
    """Only its writing waits for the gate."""

    load = FileCheckpoint.load


def test_the_end_of_asyncio_run_waits_for_a_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    uses, left, tasks = Uses(), list[int](), list[asyncio.Future[None]]()
    checkpoint = Held(tmp_path / "reactions.json", uses)

    async def send(command: object, command_id: str, *, metadata: object = None) -> None:
        pass

    async def run() -> None:
        async with es.connect(server.address) as store:
            await store.append("acc-1", new_events(Opened("1")), 0)
            try:
                await d.react(store, app, send, checkpoint)
            finally:
                left.append(uses.running)

    async def is_writing() -> bool:
        return uses.running > 0

    async def main() -> None:
        tasks.append(asyncio.ensure_future(run()))
        await eventually(is_writing, "the checkpoint is being written")
        after(2 * TURNS, uses.gate.set)

    uses.gate.clear()
    with ServerThread(tmp_path / "store") as server:
        asyncio.run(main())
    assert (tasks[0].cancelled(), left) == (True, [0])
    assert "welcome" in checkpoint.load().reactions
