"""A consumer that is stopped ends in order: iterations and runs end, what was finished is committed, and the group is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import eventstore as es
from eventstore import blocking
from tests.client.forks.child import Child
from tests.client.test_connecting import loops
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import Runner
from tests.documents.pages import ADDRESS, file_of, text_of
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

BODIES = [b"0", b"1", b"2"]


@pytest.fixture(params=[0, 2], ids=["one server", "shards"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with LedShards(tmp_path, request.param) if request.param else ServerProcess(tmp_path / "data") as server:
        with blocking.connect(server.address) as store:
            store.broker.create_topic("orders", 1)
            store.topic("orders").send_many([es.NewMessage(body, key=body.decode()) for body in BODIES])
        yield server.address


def iterate(consumer: blocking.BlockingConsumer, found: list[bytes]) -> None:
    for message in consumer:
        found.append(message.body)
        message.done()


def take_some(consumer: blocking.BlockingConsumer, found: list[bytes]) -> None:
    while some := consumer.some():
        for message in some:
            found.append(message.body)
            message.done()


def take_batches(consumer: blocking.BlockingConsumer, found: list[bytes]) -> None:
    for batch in consumer.batches():
        found.extend([b"?"] * batch.count)
        batch.done()


def run(consumer: blocking.BlockingConsumer, found: list[bytes]) -> None:
    consumer.run(lambda message: found.append(message.body))


def run_threads(consumer: blocking.BlockingConsumer, found: list[bytes]) -> None:
    consumer.run(lambda message: found.append(message.body), concurrency=3)


@pytest.mark.parametrize("consume", [iterate, take_some, take_batches, run, run_threads])
def test_a_blocking_consumer_that_waits_is_stopped_by_another_thread(address: str, consume: Callable[..., None]) -> None:
    found = list[bytes]()
    with blocking.connect(address) as store:
        with store.consumer("workers", "orders") as consumer:
            thread = threading.Thread(target=consume, args=(consumer, found))
            thread.start()
            wait_until(lambda: len(found) == 3, "all are handled")
            consumer.stop()
            thread.join()
            with pytest.raises(StopIteration):
                next(consumer)
            assert consumer.some() == ()
            assert consumer.run(found.append) is None  # type: ignore[func-returns-value] # as is said
        assert store.broker.members("workers") == []
        assert store.broker.group("workers").backlog == 0


def test_what_was_not_handed_out_when_it_was_stopped_is_delivered_again(address: str) -> None:
    with blocking.connect(address) as store:
        with store.consumer("workers", "orders") as consumer:
            first = next(consumer)
            first.done()
            consumer.stop()
            assert list(consumer) == []
        with store.consumer("workers", "orders") as consumer:
            assert sorted([first.body, next(consumer).body, next(consumer).body]) == BODIES


@loops
def test_an_async_consumer_is_stopped(run: Runner, address: str) -> None:
    async def use() -> None:
        found = list[bytes]()

        async def iterate() -> None:
            async for message in consumer:
                found.append(message.body)
                message.done()
                if len(found) == 3:
                    tasks.start_soon(stop)

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            consumer.stop()

        async with es.connect(address) as store:
            async with store.consumer("workers", "orders") as consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(iterate)
            async with store.consumer("others", "orders") as consumer, anyio.create_task_group() as tasks:
                count = 0

                def handle(message: es.Delivery) -> None:
                    nonlocal count
                    count += 1
                    if count == 3:
                        tasks.start_soon(stop)

                await consumer.run(handle, concurrency=2)
                assert await consumer.some() == ()
                assert [each async for each in consumer] == []
            assert await store.broker.members("workers") == await store.broker.members("others") == []
            assert (await store.broker.group("others")).backlog == 0

    run(use)


def test_a_blocking_consumer_waits_no_longer_than_its_timeout_and_continues(address: str) -> None:
    with blocking.connect(address) as store, store.consumer("workers", "orders", timeout=0.2) as consumer:
        found = list[bytes]()

        def taken() -> bool:
            try:
                found.append(next(consumer).body)
            except es.TimedOut:
                return True
            return False

        wait_until(lambda: taken() and len(found) == 3, "all came, and then none")
        with pytest.raises(es.TimedOut):
            consumer.some(timeout=0)
        with pytest.raises(es.TimedOut):
            consumer.run(print)
        store.topic("orders").send(b"3", key="k")
        wait_until(lambda: taken() or b"3" in found, "it continues")


@loops
def test_an_async_consumer_waits_no_longer_either(run: Runner, address: str) -> None:
    async def use() -> None:
        async with es.connect(address) as store, store.consumer("workers", "orders", timeout=0.2) as consumer:
            with suppress(es.TimedOut):
                async for message in consumer:
                    message.done()
            with pytest.raises(es.TimedOut) as caught:
                await consumer.some(timeout=0)
            assert caught.value.outcome == "none"
            await store.topic("orders").send(b"3", key="k")
            assert (await consumer.some(timeout=DEADLINE_SECONDS))[0].body == b"3"

    run(use)


def test_sigterm_ends_a_process_that_consumes_in_order_and_its_group_does_not_wait_for_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, blocking.connect(server.address) as store:
        program = tmp_path / "charging.py"
        program.write_text(file_of("charging.py", text_of("docs/FRAMEWORKS.md")).replace(ADDRESS, server.address))
        with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            wait_until(lambda: _members(store), "it has joined")
            store.topic("orders").send(b"", key="order-1")
            assert process.stdout.readline() == "charged order-1\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == "left the group\n"
        assert process.returncode == 0
        assert _members(store) == []
        assert store.broker.group("charging").backlog == 0


def _members(store: blocking.BlockingStore) -> list[Any]:
    try:
        return list(store.broker.members("charging"))
    except es.UnknownGroup:
        return []


PROGRAM = """
import signal, sys
import eventstore as es

with es.blocking.connect(sys.argv[1]) as store:
    while True:
        with store.consumer("charging", "orders") as consumer:
            print("joined", flush=True)
            for message in consumer:
                print(message.body.decode(), flush=True)
"""


def test_a_second_sigterm_ends_a_program_that_goes_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, blocking.connect(server.address) as store:
        store.broker.create_topic("orders", 1)
        (tmp_path / "program.py").write_text(PROGRAM)
        command = [sys.executable, str(tmp_path / "program.py"), server.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(2):
                assert process.stdout.readline() == "joined\n"
                process.send_signal(signal.SIGTERM)
        assert process.returncode == -signal.SIGTERM


def test_a_program_that_handles_sigterm_itself_keeps_its_handler_and_has_it_after_the_consumer(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, blocking.connect(server.address) as store:
        store.broker.create_topic("orders", 1)
        with store.consumer("charging", "orders"):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            with store.consumer("charging", "orders"):
                assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_in_a_child_of_a_process_that_consumes_sigterm_is_as_before(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, blocking.connect(server.address) as store:
        store.broker.create_topic("orders", 1)
        with store.consumer("charging", "orders"):
            assert Child(lambda: signal.getsignal(signal.SIGTERM) is signal.SIG_DFL).result() is True
            assert len(_members(store)) == 1
