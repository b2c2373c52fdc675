"""Messages that are sent without waiting: nothing is lost silently, and only so many wait."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import eventstore as es
from eventstore import blocking
from eventstore.client.session import one_way_queue as one_way
from tests.cluster.node_process import NodeProcess
from tests.consumers.clients import KINDS, World, opened, with_each_client
from tests.server_thread import ServerThread


async def bodies_of_key(store: Any, key: str) -> list[int]:
    found = await store.broker.messages_of_key("orders", key, limit=1000)
    return [int(each.body) for each in reversed(found)]


@with_each_client
async def test_all_are_stored_after_a_flush_those_of_a_key_in_order(world: World) -> None:
    topic = await world.create()
    for number in range(600):
        assert await topic.send(b"%d" % number, key=f"key-{number % 3}", wait=False) is None
    await world.store.flush()
    assert world.store.one_way == (0, 600, 0)
    for rest in range(3):
        assert await bodies_of_key(world.store, f"key-{rest}") == list(range(rest, 600, 3))


@with_each_client
async def test_what_failed_is_counted_and_reported_once(world: World) -> None:
    topic, missing = await world.create(), world.store.topic("missing")
    for _ in range(3):
        await missing.send(b"1", wait=False)
    await topic.send(b"1", key="a", wait=False)
    with pytest.raises(es.MessagesFailed, match=r"^3 messages .* no topic 'missing'") as failed:
        await world.store.flush()
    assert failed.value.fields == {"failed": 3}
    assert isinstance(failed.value.__cause__, es.UnknownTopic)
    await world.store.flush()
    assert world.store.one_way == (0, 1, 3)
    assert await bodies_of_key(world.store, "a") == [1]
    with pytest.raises(es.InvalidArgument, match="wait must be true or false"):
        await topic.send(b"1", wait=0)
    with pytest.raises(es.InvalidArgument, match="body must be bytes"):
        await topic.send("1", wait=False)


@with_each_client
async def test_closing_waits_for_them_and_reports_what_failed(world: World) -> None:
    await world.create()
    async with opened(world.kind, world.server.address) as store:
        for number in range(300):
            await store.topic("orders").send(b"%d" % number, key="closed", wait=False)
    assert await bodies_of_key(world.store, "closed") == list(range(300))
    with pytest.raises(es.MessagesFailed):
        async with opened(world.kind, world.server.address) as store:
            await store.topic("missing").send(b"1", wait=False)


@with_each_client
async def test_only_so_many_wait_and_they_are_sent_when_the_server_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_way, "QUEUE_ROWS_MAX", 20)
    topic = await world.create()
    await topic.send(b"0", key="a")
    await anyio.to_thread.run_sync(world.server.stop)
    sent, refused = 1, None
    while refused is None:
        try:
            await topic.send(b"%d" % sent, key="a", wait=False, timeout=0.2)
            sent += 1
        except es.TimedOut as over:
            refused = over
    assert refused.fields["outcome"] == "none"
    assert 20 <= world.store.one_way.waiting == sent - 1 <= 20 + one_way.BATCH_ROWS
    with pytest.raises(es.TimedOut):
        await world.store.flush(timeout=0.01)
    await anyio.to_thread.run_sync(world.server.start)
    await world.store.flush()
    assert world.store.one_way == (0, sent - 1, 0)
    assert sorted(set(await bodies_of_key(world.store, "a"))) == list(range(sent))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_client_that_is_left_by_an_error_or_cancelled_logs_what_failed(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(address: str) -> None:
        async def fails() -> None:
            async with es.connect(address) as store:
                await store.topic("missing").send(b"1", wait=False)
                raise ValueError("the program's")

        with pytest.raises(ValueError, match="the program's"):
            await fails()
        assert "1 message that was sent with wait=False failed" in caplog.text
        caplog.clear()
        with anyio.CancelScope() as scope:
            async with es.connect(address) as store:
                await store.topic("missing").send(b"1", wait=False)
                await store.topic("missing").send(b"1", wait=False)
                scope.cancel()
                await anyio.sleep_forever()
        assert "messages that were sent with wait=False failed" in caplog.text

    with ServerThread(tmp_path / "data") as server:
        anyio.run(main, server.address, backend=kind)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_client_that_nobody_closes_logs_what_it_had_not_sent_when_its_event_loop_ends(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(address: str) -> None:
        store = es.connect(address)
        await store.__aenter__()
        for _ in range(3):
            await store.topic("missing").send(b"1", wait=False)

    with ServerThread(tmp_path / "data") as server:
        anyio.run(main, server.address, backend=kind)
    assert "3 messages that were sent with wait=False failed" in caplog.text


def test_over_shards_they_go_to_the_shards_of_their_keys(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node:
        with blocking.connect(node.address) as store:
            store.broker.create_topic("orders", 2)
            topic = store.topic("orders")
            for number in range(300):
                topic.send(b"%d" % number, key=f"k-{number % 7}", wait=False)
            store.flush()
            assert store.one_way == (0, 300, 0)
            for rest in range(7):
                found = store.broker.messages_of_key("orders", f"k-{rest}", limit=1000)
                assert [int(each.body) for each in reversed(found)] == list(range(rest, 300, 7))
            with pytest.raises(es.InvalidArgument, match="queue names one of each shard"):
                topic.send(b"1", queue=0, wait=False)
        assert node.terminate() == 0


PROGRAM = """
import os, sys
from eventstore import blocking

store = blocking.connect(sys.argv[1])
topic = store.topic("orders")
for number in range(200):
    topic.send(b"%d" % number, key="a", wait=False)
child = os.fork()
if not child:
    assert store.one_way == (0, 0, 0)
    topic.send(b"7", key="child", wait=False)
    store.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
topic.send(b"200", key="a", wait=False)
"""


def test_a_program_that_ends_without_closing_and_a_forked_child_send_their_own(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server, blocking.connect(server.address) as store:
        store.broker.create_topic("orders", 4)
        ended = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, server.address],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        found = store.broker.messages_of_key("orders", "a", limit=1000)
        assert [int(each.body) for each in reversed(found)] == list(range(201))
        assert [each.body for each in store.broker.messages_of_key("orders", "child")] == [b"7"]


def test_a_blocking_client_sends_again_after_its_thread_could_not_begin_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerThread(tmp_path) as server, blocking.connect(server.address) as store:
        store.broker.create_topic("orders")
        topic = store.topic("orders")
        with monkeypatch.context() as no_threads:
            no_threads.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
            with pytest.raises(RuntimeError, match="can't start"):
                topic.send(b"not taken", wait=False)
        assert store.one_way == (0, 0, 0)
        with monkeypatch.context() as no_memory:
            no_memory.setattr(topic, "_put_rows", raising(MemoryError()))
            topic.send(b"fails", wait=False)
            with pytest.raises(es.MessagesFailed, match=r"^1 message .* may have been carried out"):
                store.flush()
        topic.send(b"stored", wait=False)
        store.flush()
        assert store.one_way == (0, 1, 1)
    assert "MemoryError" in caplog.text


def raising(error: Exception) -> Any:
    def called(*arguments: object) -> None:
        raise error

    return called
