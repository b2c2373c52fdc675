"""`consumer.run`, with each client: a handler that raises has its message retried and costs no other; it stops in order."""

from __future__ import annotations

import asyncio
import threading
import types
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

import eventstore as es
from eventstore.client.aio.handling import _Workers
from eventstore.client.consumer.delivery import place_of
from tests.consumers.clients import World, opened, take, take_done, with_each_client
from tests.raising import FAILURES, OF_LOOP
from tests.waiting import eventually


class Enough(BaseException):
    """Ends a run, as SystemExit does."""


ONE_ATTEMPT = es.Retries((0.01,), attempts=1)
TWO_ATTEMPTS = es.Retries((0.01,), attempts=2)


@with_each_client
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_message_whose_handler_raises_is_retried_and_then_dead_and_the_others_are_done(
    world: World, concurrency: int
) -> None:
    topic, broker = await world.create(queues=2), world.store.broker
    await topic.send_many([b"%d" % n for n in range(20)])
    times_failed: list[int] = []
    done: Counter[bytes] = Counter()
    lock = threading.Lock()

    def handler(message: Any) -> None:
        with lock:
            if message.body == b"end":
                raise Enough
            if message.body == b"7":
                times_failed.append(message.times_failed)
                raise ValueError("no such order")
            done[message.body] += 1

    async def run() -> None:
        async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
            with pytest.raises(Enough):
                await consumer.run(handler, concurrency=concurrency)

    async def is_dead() -> bool:
        return bool(await broker.dead_letters("billing"))

    async with anyio.create_task_group() as group:

        async def end() -> None:
            await eventually(is_dead, "the message is dead")
            await world.backlog_is("billing", 0)
            await topic.send(b"end")

        group.start_soon(end)
        await run()
    assert times_failed == [0, 1, 2, 3, 4]
    assert done == Counter(b"%d" % n for n in range(20) if n != 7)
    (dead,) = await broker.dead_letters("billing")
    assert (dead.body, dead.properties[":reason"]) == (b"7", "ValueError: no such order")
    assert await broker.members("billing") == []
    assert (await broker.group("billing")).backlog == 1, "what ended the run is not done"


@with_each_client
@pytest.mark.parametrize("options", [{}, {"mode": "sequential"}, {"order": "key"}], ids=["parallel", "sequential", "by key"])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_whatever_a_handler_raises_is_the_failure_of_its_message_and_of_no_other(
    world: World, concurrency: int, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    failures = {**FAILURES, **OF_LOOP[world.kind]}
    topic, broker = await world.create(queues=1), world.store.broker
    bodies = [each for name in failures for each in (name, f"after {name}")]
    await topic.send_many([es.NewMessage(body.encode(), key=body) for body in bodies])
    calls: Counter[str] = Counter()
    lock = threading.Lock()

    def handler(message: Any) -> Any:
        name = message.body.decode()
        with lock:
            calls[name] += 1
        return failures[name]() if name in failures else None

    async def consume() -> None:
        async with world.store.consumer("billing", "orders", commit_interval=0.02, **options) as consumer:
            await consumer.run(handler, concurrency=concurrency)

    async def are_dead() -> bool:
        return len(await broker.dead_letters("billing")) >= len(failures)

    await broker.set_retries("billing", es.Retries((0.01,), attempts=2))
    with caplog.at_level("CRITICAL"):
        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await eventually(are_dead, "all are dead")
            await world.backlog_is("billing", 0)
            group.cancel_scope.cancel()
    assert calls == {body: 2 if body in failures else 1 for body in bodies}
    reasons = {each.body.decode(): each.properties[":reason"] for each in await broker.dead_letters("billing")}
    assert reasons.keys() == failures.keys()
    assert {name: reasons[name] for name in ("no text", "half a character", "cancelled by asyncio")} == {
        "no text": "NoText: its text raised AttributeError",
        "half a character": "ValueError: \\ud83d and lines",
        "cancelled by asyncio": "CancelledError",
    }


@with_each_client
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, Enough, KeyboardInterrupt], ids=lambda each: each.__name__)
async def test_what_ends_the_process_ends_the_run_as_it_is_and_counts_as_a_failure_unless_it_is_none_of_the_handler(
    world: World, error: type[BaseException], concurrency: int
) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send_many([b"0", b"deadly", b"1"])
    ends = []

    def handler(message: Any) -> None:
        if message.body == b"deadly":
            ends.append(message.times_failed)
            raise error(3)

    async def consume() -> None:
        async with opened(world.kind, world.server.address) as store:
            async with store.consumer("billing", "orders", retries=TWO_ATTEMPTS, commit_interval=0.02) as consumer:
                await consumer.run(handler, concurrency=concurrency)

    for _ in range(2):
        with pytest.raises(error) as ended:
            await consume()
        assert ended.value.args == (3,)
    assert ends == ([0, 0] if error is KeyboardInterrupt else [0, 1])
    assert [each.body for each in await broker.dead_letters("billing")] == ([] if error is KeyboardInterrupt else [b"deadly"])


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_handler_whose_run_is_closed_while_it_waits_has_not_failed(world: World) -> None:
    """As by the end of an event loop, which closes the coroutines that are left."""
    topic = await world.create(queues=1)
    await topic.send(b"0")

    @types.coroutine
    def turn() -> Iterator[str]:
        yield "waits"

    async def handler(message: Any) -> None:
        await turn()

    async with world.store.consumer("billing", "orders") as consumer:
        message = await anext(consumer)
        run: Any = _Workers(consumer._member, handler)._handle(message)
        assert run.send(None) == "waits"
        run.close()
        window, offset = place_of(message)
        assert window.is_held(offset)
        assert not window.is_failing(offset)


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_handler_that_waits_while_another_one_ends_the_run_has_not_failed(world: World) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send_many([b"bad", b"innocent"])
    waits = anyio.Event()

    async def handler(message: es.Delivery) -> None:
        if message.body == b"bad":
            await waits.wait()
            raise SystemExit(3)
        waits.set()
        await anyio.sleep_forever()

    with pytest.raises(SystemExit):
        async with world.store.consumer("billing", "orders", retries=ONE_ATTEMPT, commit_interval=0.02) as consumer:
            await consumer.run(handler, concurrency=2)
    assert [each.body for each in await broker.dead_letters("billing")] == [b"bad"]
    async with world.store.consumer("billing", "orders") as consumer:
        (again,) = await take_done(consumer, 1)
    assert (again.body, again.times_failed) == (b"innocent", 0)


@with_each_client
async def test_a_message_of_a_run_has_not_failed_if_what_is_beside_the_run_ends_the_consumer(world: World) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send(b"innocent")
    waits, release = threading.Event(), threading.Event()

    async def waiting(_: object) -> None:
        waits.set()
        await anyio.sleep_forever()

    def blocking(_: object) -> None:
        waits.set()
        release.wait()

    async def waits_now() -> bool:
        return waits.is_set()

    async def consume() -> None:
        async with world.store.consumer("billing", "orders", retries=ONE_ATTEMPT, commit_interval=0.02) as consumer:
            async with anyio.create_task_group() as group:
                group.start_soon(consumer.run, blocking if world.kind == "blocking" else waiting)
                await eventually(waits_now, "the handler waits")
                raise ValueError("of another task")

    with pytest.raises(ExceptionGroup) as ended:
        await consume()
    release.set()
    assert ended.group_contains(ValueError, match="of another task")
    assert await broker.dead_letters("billing") == []
    async with world.store.consumer("billing", "orders") as consumer:
        (again,) = await take_done(consumer, 1)
    assert (again.body, again.times_failed) == (b"innocent", 0)


@with_each_client
async def test_a_handler_may_say_itself_what_becomes_of_its_message(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"again", b"end"])
    seen: list[tuple[bytes, int]] = []

    def handler(message: Any) -> None:
        seen.append((message.body, message.times_failed))
        if message.body == b"again" and not message.times_failed:
            message.retry("not yet")
        elif message.times_failed:
            raise Enough

    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        with pytest.raises(Enough):
            await consumer.run(handler)
    assert seen == [(b"again", 0), (b"end", 0), (b"again", 1)]


@pytest.mark.parametrize("waits_in", ["a task", "groups of tasks"])
@with_each_client(kinds=("trio", "asyncio"))
async def test_a_cancelled_run_cancels_its_handlers_commits_what_is_done_and_leaves(world: World, waits_in: str) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send_many([b"%d" % n for n in range(10)])
    waiting: list[int] = []

    with anyio.CancelScope() as scope:

        async def handler(message: es.Delivery) -> None:
            if message.queue_offset < 7:
                return
            waiting.append(message.queue_offset)
            if len(waiting) == 3:
                scope.cancel()
            if waits_in == "a task":
                await anyio.sleep_forever()
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                group.start_soon(anyio.sleep_forever)

        async with world.store.consumer("billing", "orders", commit_interval=5.0) as consumer:
            await consumer.run(handler, concurrency=3)
    assert sorted(waiting) == [7, 8, 9]
    assert await broker.members("billing") == []
    assert (await broker.group("billing")).backlog == 3
    assert [each.name for each in await broker.topics()] == ["orders"], "none of them counts as failed"


@with_each_client(kinds=("asyncio",))
async def test_a_run_that_asyncio_cancels_with_all_tasks_of_its_loop_counts_no_message_as_failed(world: World) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send_many([b"0", b"1"])
    waiting: list[int] = []
    began = anyio.Event()

    async def handler(message: es.Delivery) -> None:
        waiting.append(message.times_failed)
        if len(waiting) == 2:
            began.set()
        await anyio.sleep_forever()

    async def consume() -> None:
        async with world.store.consumer("billing", "orders") as consumer:
            await consumer.run(handler, concurrency=2)

    before = asyncio.all_tasks()
    task = asyncio.create_task(consume())
    await began.wait()
    for each in asyncio.all_tasks() - before:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiting == [0, 0]
    assert [each.name for each in await broker.topics()] == ["orders"]


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, KeyboardInterrupt], ids=lambda each: each.__name__)
@with_each_client
async def test_what_ends_an_iteration_counts_as_a_failure_of_its_message_unless_a_person_interrupted_it(
    world: World, error: type[BaseException]
) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send_many([b"deadly", b"1"])
    seen: list[int] = []

    async def consume() -> None:
        async with world.store.consumer("billing", "orders", retries=TWO_ATTEMPTS, commit_interval=0.02) as consumer:
            async for message in consumer:
                if message.body == b"deadly":
                    seen.append(message.times_failed)
                    raise error
                message.done()

    for _ in range(2):
        with pytest.raises(error):
            await consume()
    assert seen == ([0, 0] if error is KeyboardInterrupt else [0, 1])
    assert [each.body for each in await broker.dead_letters("billing")] == ([] if error is KeyboardInterrupt else [b"deadly"])


@with_each_client
async def test_a_generator_around_a_consumer_that_is_closed_counts_no_message_as_failed(world: World) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send(b"1")

    async def messages() -> AsyncIterator[Any]:
        async with world.store.consumer("billing", "orders", retries=ONE_ATTEMPT, commit_interval=0.02) as consumer:
            async for message in consumer:
                yield message

    for _ in range(2):
        async with aclosing(messages()) as found:
            (message,) = await take(found, 1)
        assert (message.body, message.times_failed) == (b"1", 0)
        assert await broker.dead_letters("billing") == []


@with_each_client(kinds=("trio", "blocking"))
async def test_a_run_refuses_what_it_cannot_do(world: World) -> None:
    await world.create()

    async def handler(_: object) -> None:
        raise AssertionError

    async with world.store.consumer("billing", "orders") as consumer:
        with pytest.raises(es.InvalidArgument, match="concurrency"):
            await consumer.run(handler, concurrency=0)
        if world.kind == "blocking":
            with pytest.raises(es.InvalidArgument, match="coroutine"):
                await consumer.run(handler)


@with_each_client
@pytest.mark.parametrize("options", [{"mode": "sequential"}, {"order": "key"}], ids=["sequential", "key"])
async def test_what_comes_after_a_failed_message_waits_until_it_is_done_or_dead(world: World, options: dict[str, str]) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    keys = "aabababb"
    await topic.send_many([es.NewMessage(b"%d" % n, key=key) for n, key in enumerate(keys)])
    seen: list[tuple[int, int]] = []

    def handler(message: Any) -> None:
        number = int(message.body)
        seen.append((number, message.times_failed))
        if number == 1 and message.times_failed < 2:
            raise ValueError
        if number == 4:
            raise ValueError
        if sum(times == 0 for _, times in seen) == len(keys) + 1:
            raise Enough

    retries = es.Retries((0.01, 0.02), 5)
    async with world.store.consumer("billing", "orders", retries=retries, commit_interval=0.02, **options) as consumer:
        async with anyio.create_task_group() as group:

            async def end() -> None:
                await world.backlog_is("billing", 0)
                await topic.send(b"8", key="a")

            group.start_soon(end)
            with pytest.raises(Enough):
                await consumer.run(handler)
    expected = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), *((4, n) for n in range(5)), (5, 0), (6, 0), (7, 0), (8, 0)]
    if "mode" in options:
        assert seen == expected
    else:
        for key in "ab":
            assert [each for each in seen if (keys + "a")[each[0]] == key] == [
                each for each in expected if (keys + "a")[each[0]] == key
            ]
        assert [number for number, _ in seen].index(2) < seen.index((1, 1)), "another key goes on meanwhile"
    (dead,) = await broker.dead_letters("billing")
    assert (dead.body, dead.properties[":failures"]) == (b"4", "5")
    assert await broker.retries("billing") == es.Retries((0.01, 0.02), 5)
    assert "retry:billing" not in [each.name for each in await broker.topics()]


@with_each_client(kinds=("trio", "blocking"))
async def test_a_group_has_delays_attempts_and_a_topic_for_dead_letters_of_its_own(world: World) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send(b"bad", key="k")
    await broker.set_retries("billing", es.Retries((0.0,), 3, "failed-orders"))
    await world.restart()
    assert await broker.retries("billing") == es.Retries((0.0,), 3, "failed-orders")
    seen: list[int] = []

    def handler(message: Any) -> None:
        if message.body == b"end":
            raise Enough
        seen.append(message.times_failed)
        raise ValueError

    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        async with anyio.create_task_group() as group:

            async def end() -> None:
                async with world.store.consumer("clerks", "failed-orders") as dead_letters:
                    (dead,) = await take_done(dead_letters, 1)
                assert (dead.body, dead.key, dead.properties[":failures"]) == (b"bad", "k", "3")
                await topic.send(b"end")

            await broker.create_topic("failed-orders", 1)
            group.start_soon(end)
            with pytest.raises(Enough):
                await consumer.run(handler)
    assert seen == [0, 1, 2]
    await broker.set_retries("billing", None)
    assert (await broker.retries("billing")).delays == (0.01, 0.01, 0.02, 0.02)
    with pytest.raises(es.InvalidArgument, match="delay"):
        await broker.set_retries("billing", es.Retries((), 2))
    with pytest.raises(es.UnknownGroup):
        await broker.retries("nobody")


@pytest.mark.parametrize("options", [{}, {"mode": "sequential"}, {"order": "key"}], ids=["parallel", "sequential", "by key"])
@with_each_client
async def test_a_message_that_ends_each_iteration_by_an_exception_is_dead_after_the_attempts_of_its_group(
    world: World, options: dict[str, Any]
) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send_many([es.NewMessage(b"%d" % n, key="k") for n in range(10)])
    retries, handled, ends = es.Retries((0.01,), attempts=3), set(), 0

    async def consume() -> None:
        async with world.store.consumer("billing", "orders", retries=retries, commit_interval=0.02, **options) as consumer:
            async for message in consumer:
                if message.body == b"4":
                    raise ValueError("cannot be handled")
                handled.add(int(message.body))
                message.done()
                if len(handled) == 9 and await broker.dead_letters("billing"):
                    return

    while ends < 10 and not await broker.dead_letters("billing"):
        try:
            await consume()
        except ValueError:
            ends += 1
    if len(handled) < 9:
        await consume()
    assert handled == {*range(10)} - {4}
    (dead,) = await broker.dead_letters("billing")
    assert dead.body == b"4"
    assert 3 <= ends < 10
    await world.backlog_is("billing", 0)


@with_each_client
async def test_a_handler_that_does_not_return_is_said_in_the_log_and_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await world.create(queues=2)
    await topic.send(b"1", key="a")
    release = threading.Event()

    async def handler(_: Any) -> None:
        await anyio.to_thread.run_sync(release.wait)

    async def is_said_twice() -> bool:
        return sum("is in hand since" in record.getMessage() for record in caplog.records) >= 2

    async def run() -> None:
        options = {"commit_interval": 0.02, "warn_after": 0.05, "member": "m-1"}
        async with world.store.consumer("billing", "orders", **options) as consumer:
            await consumer.run((lambda _: release.wait()) if world.kind == "blocking" else handler)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            await eventually(is_said_twice, "the log has it")
        finally:
            release.set()
        await world.backlog_is("billing", 0)
        group.cancel_scope.cancel()


@with_each_client
async def test_the_log_says_of_a_failed_message_where_it_is_whose_it_is_and_how_often_it_was_tried(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await broker.set_retries("billing", es.Retries((0.01,), attempts=2))
    await topic.send(b"1", key="o-1", tag="Placed")

    def handler(message: Any) -> None:
        raise ValueError("no such customer")

    async def consume() -> None:
        async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
            await consumer.run(handler)

    async def is_dead() -> bool:
        return bool(await broker.dead_letters("billing"))

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await eventually(is_dead, "it is dead")
        group.cancel_scope.cancel()
    said = [record.getMessage() for record in caplog.records if "the handler of message" in record.getMessage()]
    place = "(topic=orders queue=0 offset=0 key='o-1' tag='Placed' group=billing attempt={})"
    assert [each.partition("(")[1] + each.partition("(")[2] for each in said] == [place.format(1), place.format(2)]
