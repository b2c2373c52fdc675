"""Pages of the log are made one at a time, of those who wait in rotation: none waits behind all pages of another."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio
import trio.testing

from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.fair_turns import FairTurns
from eventstore.server.requests.paced_scans import PacedScans
from tests.server.net.test_run_queue import connections

MANY = 20


@asynccontextmanager
async def busy(scans: PacedScans, reader: ServerConnection) -> AsyncIterator[trio.Nursery]:
    """Has a page be made, which ends with the block; yields where others ask. At the end all of them have ended."""
    begun, may_end = trio.Event(), threading.Event()

    def page() -> None:
        trio.from_thread.run_sync(begun.set)
        may_end.wait(60)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scans.run, reader, page)
            await begun.wait()
            try:
                yield nursery
            finally:
                may_end.set()


async def order_of(
    reader: ServerConnection, *others: ServerConnection, took: Mapping[ServerConnection, float] | None = None
) -> list[ServerConnection]:
    """Returns in which order pages are made of those who ask, in this order, while one is made for the first. `took`: what
    they took of the server's time just before.
    """
    turns, made = FairTurns([], clock=lambda: 0.0), list[ServerConnection]()
    for each, seconds in (took or {}).items():
        turns.charge(each, seconds)
    scans = PacedScans(turns)
    async with busy(scans, reader) as nursery:
        for each in others:
            nursery.start_soon(scans.run, each, partial(made.append, each))
            await trio.testing.wait_all_tasks_blocked()
    assert len(made) == len(others)
    return made


async def test_a_page_of_another_client_is_made_next_however_many_wait() -> None:
    with connections(*["flood"] * MANY, "one", "two") as (*flood, one, two):
        made = await order_of(*flood, *flood, one, two, one)
        assert made[1:3] == [one, two]
        assert made[4] is one


async def test_of_the_connections_of_a_client_that_is_next_which_took_the_least() -> None:
    with connections("first", *["a"] * MANY) as (first, *greedy, modest):
        made = await order_of(first, *greedy, modest, took=dict.fromkeys(greedy, 0.005))
        assert made[0] is modest


async def test_one_that_is_cancelled_before_or_when_its_turn_begins_holds_up_nobody() -> None:
    with connections("a", "b", "c", "d") as (a, b, c, d):
        scans, made = PacedScans(FairTurns([])), list[ServerConnection]()
        waits, begins = trio.CancelScope(), trio.CancelScope()

        async def ask(scope: trio.CancelScope, reader: ServerConnection) -> None:
            with scope:
                await scans.run(reader, partial(made.append, reader))

        async def cancel_the_next() -> None:
            await scans.run(b, partial(made.append, b))
            begins.cancel()  # whose turn began a moment ago

        async with busy(scans, a) as nursery:
            for each in (cancel_the_next, partial(ask, begins, c), partial(ask, waits, d)):
                nursery.start_soon(each)
                await trio.testing.wait_all_tasks_blocked()
            waits.cancel()
            await trio.testing.wait_all_tasks_blocked()
        assert made == [b]
        await scans.run(d, partial(made.append, d))
        assert made == [b, d]


async def test_all_of_a_connection_are_cancelled_while_one_pauses_and_the_next_reader_is_served() -> None:
    class Turns(FairTurns):
        def others_wait(self, besides: Container[ServerConnection] = ()) -> bool:
            pauses.set()
            return True

    def page() -> None:
        began = time.thread_time()
        while time.thread_time() < began + 0.010:
            pass

    with connections("a", "b") as (a, b):
        for _ in range(20):  # in which order tasks end that are cancelled together is chance
            pauses, scans, made = trio.Event(), PacedScans(Turns([])), list[ServerConnection]()
            async with trio.open_nursery() as closes:
                for _ in range(4):
                    closes.start_soon(scans.run, a, page)
                await pauses.wait()
                closes.cancel_scope.cancel()
            with trio.fail_after(60):
                await scans.run(b, partial(made.append, b))
            assert made == [b]


async def test_one_whose_page_was_long_is_served_while_others_of_its_client_go_on() -> None:
    now = 0.0
    with connections("first", *["a"] * 3) as (first, *readers, long):
        turns = FairTurns([], clock=lambda: now)
        scans, made = PacedScans(turns), list[ServerConnection]()
        turns.charge(long, 0.004)

        async def follow(reader: ServerConnection) -> None:
            nonlocal now
            while made.count(reader) < 20 and long not in made:
                await scans.run(reader, partial(made.append, reader))
                now += 0.004
                turns.charge(reader, 0.001)

        async with busy(scans, first) as nursery:
            for each in readers:
                nursery.start_soon(follow, each)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(scans.run, long, partial(made.append, long))
            await trio.testing.wait_all_tasks_blocked()
    assert long in made[:20]
