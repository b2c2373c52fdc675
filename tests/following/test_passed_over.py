"""What a follower stands at moves on with events that it does not want, and is not written for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import eventstore as es
import eventstore.domain as d
from bank import Balances, Deposited, Opened
from eventstore.domain.reactions.checkpoint import ReactionMarks
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.log import PASSED_EVENTS
from tests.domain.runner import new_events
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

OTHERS = 1000
COMMITS = PASSED_EVENTS // OTHERS + 1


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Any]:
    if kind == "embedded":
        async with es.open_store(folder) as store:
            yield store
    else:
        with ServerThread(folder) as server:
            async with es.connect(server.address) as store:
                yield store


async def append_others(store: Any, commits: int = 1) -> int:
    """Appends events that nobody wants. Returns the sequence of the last."""
    many = [es.NewEvent("Other", b"")] * OTHERS
    done: list[es.Committed] = await store.append_many([es.Commit("other", many, es.ANY)] * commits)
    return done[-1].sequence


class Marks:
    """The checkpoint of reactions, in memory."""

    def __init__(self) -> None:
        self.marks = ReactionMarks()
        self.saves = 0

    def load(self) -> ReactionMarks:
        return deepcopy(self.marks)  # what is read here is what was saved, not what is about to be

    def save(self, marks: ReactionMarks) -> None:
        self.marks = deepcopy(marks)
        self.saves += 1

    @property
    def places(self) -> list[Checkpoint]:
        return list(self.marks.reactions.values())


def noting(seen: list[es.Event]) -> d.Domain:
    app = d.Domain()

    @app.reacts(Opened)
    async def note(event: Opened, send: d.Send) -> None:
        seen.append(send.cause)

    return app


async def nowhere(command: object, command_id: str, *, metadata: object = None) -> es.Committed | None:
    raise AssertionError("nothing is sent")


@pytest.mark.parametrize("kind", ["embedded", "network"])
async def test_a_reaction_that_nothing_concerns_stands_at_the_end_once_it_has_caught_up(kind: str, tmp_path: Path) -> None:
    checkpoint, seen = Marks(), list[es.Event]()
    async with opened(kind, tmp_path) as store:
        end = await append_others(store)
        for saves in (1, 1):  # and nothing is written when nothing has passed
            assert await d.react(store, noting(seen), nowhere, checkpoint, until_caught_up=True) == end
            assert [each.sequence for each in checkpoint.places] == [end]
            assert checkpoint.saves <= saves + 1
        (place,) = checkpoint.places
        assert place.identity
        await store.append("a", new_events(Opened("Ada")), 0)
        await d.react(store, noting(seen), nowhere, checkpoint, until_caught_up=True)
    assert [each.aggregate_id for each in seen] == ["a"]


@pytest.mark.parametrize("kind", ["embedded", "network"])
async def test_a_reaction_that_waits_moves_on_with_many_events_that_do_not_concern_it(kind: str, tmp_path: Path) -> None:
    checkpoint, seen = Marks(), list[es.Event]()
    async with opened(kind, tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(d.react, store, noting(seen), nowhere, checkpoint)
        with anyio.fail_after(DEADLINE_SECONDS):
            while not any(each.sequence for each in checkpoint.places):
                await append_others(store, COMMITS // 4)
        await store.append("a", new_events(Opened("Ada")), 0)
        with anyio.fail_after(DEADLINE_SECONDS):
            while not seen:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert checkpoint.saves < 8
    assert all(each.identity for each in checkpoint.places)


@pytest.mark.parametrize("kind", ["embedded", "network"])
async def test_a_projection_that_waits_moves_on_with_many_events_that_do_not_concern_it(kind: str, tmp_path: Path) -> None:
    progress = list[d.Progress]()
    caught_up, passed, counted = anyio.Event(), anyio.Event(), anyio.Event()

    def on_progress(each: d.Progress) -> None:
        progress.append(each)
        for event, happened in ((caught_up, each.caught_up), (passed, each.checkpoint), (counted, each.events)):
            if happened:
                event.set()

    async with opened(kind, tmp_path / "store") as store, anyio.create_task_group() as tasks:
        target = d.SQLiteTarget(tmp_path / "read.db")
        tasks.start_soon(lambda: d.project(store, Balances(), target, on_progress=on_progress))
        with anyio.fail_after(DEADLINE_SECONDS):
            await caught_up.wait()
            while not passed.is_set():
                await append_others(store, COMMITS // 4)
            await store.append("a", new_events(Opened("Ada"), Deposited(5)), 0)
            await counted.wait()
        tasks.cancel_scope.cancel()
    assert len(progress) < 8
    assert sum(each.events for each in progress) == 2
