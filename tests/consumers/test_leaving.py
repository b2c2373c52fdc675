"""A consumer that ends sends its last commit and its failures, once, and leaves its group."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import anyio
import pytest

import eventstore as es
from eventstore.client.blocking.loop_thread import loop_thread
from tests.cancelled_at import CancelledAt
from tests.consumers.clients import World, take, take_done, with_each_client
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually


@with_each_client(kinds=("trio", "asyncio"))
async def test_the_last_commit_is_accepted_after_another_member_came_and_went(world: World) -> None:
    topic = await world.create(queues=2)
    await topic.send_many([b"%d" % n for n in range(100)])
    async with world.store.consumer("billing", "orders", commit_interval=5.0) as consumer:
        await take_done(consumer, 100)
        async with world.store.consumer("billing", "orders"):
            pass
    assert (await world.store.broker.group("billing")).backlog == 0
    assert await world.store.broker.members("billing") == []


@with_each_client
async def test_a_failure_reported_right_before_leaving_is_stored_once(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(11)])

    async def stored() -> int:
        return sum(queue.end for queue in await world.store.broker.queues("retry:billing"))

    for turn in range(11):  # the first failure creates the topic of retries
        async with world.store.consumer("billing", "orders") as consumer:
            while (message := await anext(consumer)).times_failed:
                message.done()
            message.retry("no")
        assert await stored() == turn + 1


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_client_cancelled_with_its_consumer_commits_and_leaves(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    with anyio.CancelScope() as scope:
        async with (
            es.connect(world.server.address) as store,
            store.consumer("billing", "orders", commit_interval=5.0) as consumer,
        ):
            await take_done(consumer, 7)
            scope.cancel()
            await take(consumer, 4)
    assert scope.cancelled_caught
    assert await world.store.broker.members("billing") == []
    assert (await world.store.broker.group("billing")).backlog == 3


@with_each_client(kinds=("asyncio",))
async def test_a_client_that_asyncio_cancels_with_its_consumer_commits_and_leaves(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    waiting = anyio.Event()

    async def consume() -> None:
        async with (
            es.connect(world.server.address) as store,
            store.consumer("billing", "orders", commit_interval=5.0) as consumer,
        ):
            await take_done(consumer, 7)
            waiting.set()
            await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.store.broker.members("billing") == []
    assert (await world.store.broker.group("billing")).backlog == 3


@with_each_client(kinds=("trio", "asyncio"), broker_member_timeout_s=3_600)
async def test_a_consumer_that_is_cancelled_at_any_point_of_its_join_leaves_at_once(world: World) -> None:
    await world.create(queues=1)

    async def has_left() -> bool:
        return await _members(world) == 0

    for wait in itertools.count(1):
        with anyio.CancelScope() as scope:
            task = None if world.kind == "trio" else asyncio.current_task()
            run = CancelledAt(wait, scope.cancel if task is None else task.cancel)
            try:
                await run.run(_join(world, f"group-{wait}"))
            except asyncio.CancelledError:
                assert task is not None
                assert not task.uncancel()
        # asyncio may cancel the wait for the answer to LEAVE, which is sent then and not yet handled
        await eventually(has_left, f"it has left, cancelled at wait {wait}")
        if run.waits < wait:
            break
    assert wait > 5


@with_each_client(kinds=("asyncio",), broker_member_timeout_s=3_600)
async def test_a_consumer_that_asyncio_cancels_again_and_again_leaves_as_well(world: World) -> None:
    await world.create(queues=1)
    task = asyncio.current_task()
    assert task is not None
    for wait in itertools.count(1):
        run = CancelledAt(wait, task.cancel, again=True)
        with contextlib.suppress(asyncio.CancelledError):
            await run.run(_join(world, f"group-{wait}"))
        while task.cancelling():
            task.uncancel()
        if run.waits < wait:
            break
    assert wait > 5

    async def are_gone() -> bool:
        return (await world.store.stats())["connections"] == 1 and await _members(world) == 0

    await eventually(are_gone, "all have left")


async def _join(world: World, group: str) -> None:
    async with es.connect(world.server.address) as store:
        async with store.consumer(group, "orders", retries=es.Retries((1,))):
            pass


async def _members(world: World) -> int:
    return sum(each.members for each in await world.store.broker.groups())


class Rung(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("calls", ["_enter_and_leave", "join", "_assigned"])
def test_a_blocking_consumer_that_is_interrupted_while_it_joins_leaves_at_once(tmp_path: Path, calls: str) -> None:
    """The thread of its event loop has the waiting one interrupted when it makes this call, and goes on then."""
    caller, interrupted = threading.get_ident(), threading.Event()

    def ring(_: int, __: object) -> None:
        interrupted.set()
        raise Rung

    def trace(frame: FrameType, what: str, __: object) -> None:
        if frame.f_code.co_name == calls and not interrupted.is_set():
            signal.pthread_kill(caller, signal.SIGUSR1)
            assert interrupted.wait(DEADLINE_SECONDS)

    with ServerThread(tmp_path / "data", broker_member_timeout_s=3_600) as server:
        with es.blocking.connect(server.address) as store:
            store.broker.create_topic("orders", 1)
            before = signal.signal(signal.SIGUSR1, ring)
            loop_thread().post(lambda: sys.settrace(trace))
            try:
                with pytest.raises(Rung), store.consumer("billing", "orders"):
                    raise AssertionError("it was not interrupted")
            finally:
                loop_thread().post(lambda: sys.settrace(None))
                signal.signal(signal.SIGUSR1, before)
            assert sum(each.members for each in store.broker.groups()) == 0
