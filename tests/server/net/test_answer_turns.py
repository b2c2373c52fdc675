"""Answers that are made by tasks: those that take long begin one after the other, of all peers in equal shares."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing

from eventstore.server.net.answer_turns import AnswerTurns
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.run_queue import QUICK_S_MAX, SLICE_S, RunQueue
from tests.server.net.test_fair_turns import Clock
from tests.server.net.test_run_queue import SMALL, connections, gate_of

LONG_S = 0.01


@asynccontextmanager
async def answer_turns(*, others: bool = True) -> AsyncIterator[AnswerTurns]:
    """Turns of a server that serves others all the time, or no others."""
    queue = RunQueue()
    queue.quick_at = trio.current_time() + (1e9 if others else -1e9)
    turns = AnswerTurns(queue, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        yield turns
        nursery.cancel_scope.cancel()


class Answers:
    """Makes answers that take some time; notes when each began."""

    def __init__(self, turns: AnswerTurns) -> None:
        self._turns = turns
        self.began: list[float] = []

    async def one(self, connection: ServerConnection, seconds: float) -> None:
        expected = await self._turns.wait(connection)
        self.began.append(trio.current_time())
        await trio.sleep(seconds)
        self._turns.took(connection, seconds, expected)

    async def each(self, *connections: ServerConnection, seconds: float) -> None:
        """Makes one for each connection, all asked for at once."""
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(self.one, connection, seconds)

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(sorted(self.began))]


async def test_answers_that_take_long_have_a_third_of_the_time(autojump_clock: trio.testing.MockClock) -> None:
    async with answer_turns() as turns:
        with connections("a", "a", "b") as many:
            answers = Answers(turns)
            await answers.each(*many, seconds=LONG_S)
            await answers.each(*many, seconds=LONG_S)
        assert min(answers.gaps()[2:]) > 2.5 * LONG_S


@pytest.mark.parametrize("hosts", [["a"] * 50, [f"{number}" for number in range(50)]], ids=["one peer", "many peers"])
@pytest.mark.parametrize("before", [None, 0.0, LONG_S], ids=["the first ones", "after quick ones", "after slow ones"])
async def test_they_do_not_begin_at_once(
    autojump_clock: trio.testing.MockClock, hosts: list[str], before: float | None
) -> None:
    async with answer_turns() as turns:
        with connections(*hosts) as many:
            for each in many:
                each.slow_answer_s = before
            answers = Answers(turns)
            for _ in range(3):
                answers.began.clear()
                async with trio.open_nursery() as nursery:
                    for each in many:
                        nursery.start_soon(answers.one, each, LONG_S)
        together = max(sum(gap < LONG_S for gap in answers.gaps()[at : at + 10]) for at in range(len(many)))
        assert together <= 2, "those that begin before the first one was counted"


async def test_those_that_unexpectedly_take_long_end_it_for_others_that_were_quick(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with answer_turns() as turns:
        with connections(*["a"] * 10) as many:
            for each in many:
                each.slow_answer_s = 0.0
            for each in many[:3]:
                turns.took(each, QUICK_S_MAX / 2, await turns.wait(each))
            answers = Answers(turns)
            await answers.each(*many[3:], seconds=LONG_S)
        assert min(answers.gaps()[1:]) > LONG_S


@pytest.mark.parametrize(("others", "last"), [(True, 0.0), (False, 0.0), (False, None)])
async def test_one_answer_that_takes_very_long_does_not_hold_up_those_that_come_after_it(
    autojump_clock: trio.testing.MockClock, others: bool, last: float | None
) -> None:
    async with answer_turns(others=others) as turns:
        with connections("a", "b") as (slow, other):
            slow.slow_answer_s, other.slow_answer_s = 0.0, last
            await Answers(turns).one(slow, 2.0)
            began = trio.current_time()
            await turns.wait(other)
            assert trio.current_time() - began < LONG_S


async def test_who_is_alone_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with answer_turns(others=False) as turns:
        with connections("a") as (alone,):
            began = trio.current_time()
            for _ in range(100):
                await Answers(turns).one(alone, LONG_S)
            assert trio.current_time() - began < 102 * LONG_S
            turns._queue.quick_at = trio.current_time() + 1e9
            await turns.wait(alone)
            assert trio.current_time() - began < 105 * LONG_S, "what it took while alone is not held against it"


async def test_peers_have_equal_shares_however_many_connections_they_have(autojump_clock: trio.testing.MockClock) -> None:
    took: Counter[str] = Counter()

    async def ask(turns: AnswerTurns, connection: ServerConnection, seconds: float) -> None:
        while True:
            await Answers(turns).one(connection, seconds)
            took[connection.peer] += round(seconds * 10_000)

    async with answer_turns() as turns, trio.open_nursery() as nursery:
        with connections(*["a"] * 50, "b", "c", "c") as many:
            for each in many:
                nursery.start_soon(ask, turns, each, 0.002 if each.peer == "c" else LONG_S)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
    assert min(took.values()) > 0.6 * max(took.values()), took


async def test_one_whose_last_answer_was_quick_never_waits_for_those_that_are_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with answer_turns() as turns:
        with connections("a", "a") as (slow, quick):
            turns.took(quick, SLICE_S, await turns.wait(quick))
            turns.took(slow, 1.0, await turns.wait(slow))
            began = trio.current_time()
            await turns.wait(quick)
            assert trio.current_time() == began


async def test_one_whose_answer_waited_for_a_processor_is_not_taken_for_slow(autojump_clock: trio.testing.MockClock) -> None:
    async with answer_turns() as turns:
        with connections("a", "a") as (slow, preempted):
            turns.took(preempted, LONG_S, await turns.wait(preempted), LONG_S - SLICE_S / 2)
            turns.took(slow, 1.0, await turns.wait(slow))
            began = trio.current_time()
            await turns.wait(preempted)
            assert trio.current_time() == began


async def test_the_first_one_of_a_peer_comes_before_what_others_ask_that_had_some(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with answer_turns() as turns:
        with connections(*map(str, range(50)), "new") as (*many, newcomer):
            answers = Answers(turns)
            await answers.each(*many, seconds=LONG_S)
            async with trio.open_nursery() as nursery:
                for each in many:
                    nursery.start_soon(answers.one, each, LONG_S)
                await trio.testing.wait_all_tasks_blocked(0.001)
                asked = trio.current_time()
                await turns.wait(newcomer)
                assert trio.current_time() - asked < 5 * LONG_S


@pytest.mark.parametrize("seed", range(20))
async def test_all_begin_whoever_leaves_meanwhile_and_nobody_is_remembered(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    chance, begun = random.Random(seed), 0

    async def ask(turns: AnswerTurns, connection: ServerConnection) -> None:
        nonlocal begun
        for _ in range(chance.randrange(10)):
            await trio.sleep(chance.choice((0.0, 0.001, 0.1)))
            with trio.move_on_after(chance.choice((0.02, 1e9, 1e9))):
                expected = await turns.wait(connection)
                await trio.sleep(seconds := chance.choice((0.0, 0.0004, 0.001, 0.02)))
                turns.took(connection, seconds, expected)
            if chance.random() < 0.1:
                connection.closed = True
        begun += 1

    async with answer_turns(others=chance.random() < 0.7) as turns:
        with connections(*(f"{chance.randrange(20)}" for _ in range(60)), "last") as (*many, last):
            async with trio.open_nursery() as nursery:
                for each in many:
                    nursery.start_soon(ask, turns, each)
                    nursery.start_soon(ask, turns, each)
            assert begun == 2 * len(many)
            assert not turns._waiting
            await trio.sleep(100)
            await turns.wait(last)
            assert list(turns._taken) == ["last"]


async def test_one_whose_answers_take_long_is_not_taken_for_another_that_must_not_wait() -> None:
    async with gate_of(1, Clock(SLICE_S / 100)) as (gate, turns, (client,)):

        async def ask() -> bool:
            known = sum(map(len, turns))
            gate.turns.queue.quick_at = 0.0
            await client.send_all(SMALL)
            while sum(map(len, turns)) == known:
                await trio.lowlevel.checkpoint()
            return gate.turns.queue.serves_others(trio.current_time())

        (connection,) = gate.connections
        assert await ask()
        connection.slow_answer_s = LONG_S
        assert not await ask()
