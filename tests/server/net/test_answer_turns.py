"""Answers that are made by tasks: those of a peer that take long wait for each other, and for nobody else's."""

from __future__ import annotations

from itertools import pairwise

import trio
import trio.testing

from eventstore.server.net.answer_turns import AnswerTurns
from eventstore.server.net.connection import Connection
from eventstore.server.net.run_queue import SLICE_S, RunQueue
from tests.server.net.test_run_queue import connections


def turns_of_a_busy_server() -> AnswerTurns:
    queue = RunQueue()
    queue.quick_at = trio.current_time() + 1e9  # others are served all the time
    return AnswerTurns(queue, trio.current_time)


async def test_answers_of_one_peer_take_a_third_of_the_time_and_those_of_others_do_not_wait_for_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = turns_of_a_busy_server()
    with connections("a", "a", "b") as (first, second, other):
        for each in (first, second):
            turns.took(each, 0.1)
        turns.took(other, 2 * SLICE_S)
        began = trio.current_time()
        await turns.wait(other)
        assert trio.current_time() - began < 0.01, "it waits for its own answers alone"
        await turns.wait(first)
        assert 0.5 < trio.current_time() - began < 0.7, "0.2 s at a third of the time"


async def test_peers_that_wait_share_that_third(autojump_clock: trio.testing.MockClock) -> None:
    turns, began = turns_of_a_busy_server(), trio.current_time()
    with connections("a", "b") as both:
        for each in both:
            turns.took(each, 0.2)
        async with trio.open_nursery() as nursery:
            for each in both:
                nursery.start_soon(turns.wait, each)
        assert trio.current_time() - began > 1.1, "0.4 s at a third of the time"


async def test_answers_of_one_peer_do_not_begin_all_at_once(autojump_clock: trio.testing.MockClock) -> None:
    turns = turns_of_a_busy_server()
    began: list[float] = []

    async def answer(connection: Connection) -> None:
        await turns.wait(connection)
        began.append(trio.current_time())

    with connections(*["a"] * 5) as many:
        for each in many:
            turns.took(each, 0.1)
        await trio.sleep(10)
        async with trio.open_nursery() as nursery:
            for each in many:
                nursery.start_soon(answer, each)
    assert min(later - earlier for earlier, later in pairwise(began)) > 0.25, "0.1 s each, at a third of the time"


async def test_the_first_answer_of_a_connection_is_expected_to_be_as_slow_as_the_last_of_its_peer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns = turns_of_a_busy_server()
    with connections("a", "a", "b") as (slow, newcomer, other):
        turns.took(slow, 1.0)
        began = trio.current_time()
        await turns.wait(other)
        assert trio.current_time() == began
        await turns.wait(newcomer)
        assert trio.current_time() - began > 2.5


async def test_one_whose_last_answer_was_quick_never_waits(autojump_clock: trio.testing.MockClock) -> None:
    turns = turns_of_a_busy_server()
    with connections("a", "a") as (slow, quick):
        turns.took(slow, 1.0)
        turns.took(quick, SLICE_S)
        began = trio.current_time()
        await turns.wait(quick)
        assert trio.current_time() == began


async def test_peers_are_forgotten_once_what_they_took_is_over(autojump_clock: trio.testing.MockClock) -> None:
    turns = turns_of_a_busy_server()
    with connections(*map(str, range(50)), "last") as (*many, last):
        for each in many:
            turns.took(each, 0.01)
        await trio.sleep(100)
        turns.took(last, 0.01)
        assert list(turns._peers) == ["last"]
