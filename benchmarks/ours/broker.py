"""Our broker as a subject: a real server process; our client over one connection, blocking for sends, on trio for consumers.

`send_pipelined` is one call of `send_many` with 256 messages, as the peer's is one pipeline of 256 commands. Every pass of
receiving is a new group of one member, which finishes every message and commits every second.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping

import trio

import eventstore as es
from benchmarks.harness.subject import PAYLOAD, Measured, Run, passes
from benchmarks.peers import Scratch, Server, free_port
from eventstore.client.aio.consumer import Consumer
from eventstore.client.blocking.store import BlockingStore

IN_FLIGHT = 256
FILL_BATCH = 4_096


class OurBroker:
    """`durable` False: with durability `async`, an answer comes when a message is written, and a sync within 100 ms."""

    version = es.__version__

    def __init__(self, durable: bool = True) -> None:
        self.durable = durable
        self.name = "eventstore" if durable else "eventstore, async"
        self.address = ""
        self.filled = 0
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._store: BlockingStore | None = None

    def start(self) -> None:
        self._scratch = Scratch("broker")
        self._serve()

    def _serve(self) -> None:
        assert self._scratch is not None
        listen = f"127.0.0.1:{free_port()}"
        self.address = f"tcp://{listen}"
        settings = {"EVENTSTORE_BROKER_DURABILITY": "sync" if self.durable else "async", "EVENTSTORE_CONNECTIONS_MAX": "2000"}
        os.environ |= settings
        command = [sys.executable, "-m", "eventstore", "serve", "--listen", listen]
        self._server = Server([*command, "--data", str(self._scratch.path / "data")], self._scratch.path)
        for name in settings:
            del os.environ[name]
        self._server.wait_until_ready(self._connect, (es.ConnectionLost,))

    def restart(self) -> float:
        """Stops the server; seconds from the start of a new one until it answers."""
        assert self._server is not None
        self.store.close()
        self._server.stop()
        started = time.perf_counter()
        self._serve()
        return time.perf_counter() - started

    def _connect(self) -> None:
        store = es.blocking.connect(self.address, reconnect_timeout=0.01)
        self._store = store.__enter__()
        for topic in ("sent", "filled"):
            store.broker.create_topic(topic, 4, if_missing=True)

    @property
    def store(self) -> BlockingStore:
        assert self._store is not None
        return self._store

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {
            "send_lockstep": self._lockstep,
            "send_pipelined": lambda messages: self._batches(messages, IN_FLIGHT),
            "send_many": lambda messages: self._batches(messages, FILL_BATCH),
            "receive": self._passes(_some),
            "receive_each": self._passes(_each),
            "receive_raw": self._passes(_raw),
        }

    def fill(self, messages: int) -> None:
        topic = self.store.topic("filled")
        for first in range(0, messages, FILL_BATCH):
            check(topic.send_many([PAYLOAD] * min(FILL_BATCH, messages - first)))
        self.filled = messages

    def _lockstep(self, messages: int) -> Measured:
        topic = self.store.topic("sent")
        started = time.perf_counter()
        for _ in range(messages):
            topic.send(PAYLOAD)
        return Measured(messages, time.perf_counter() - started)

    def _batches(self, messages: int, size: int) -> Measured:
        topic, rounds = self.store.topic("sent"), max(1, messages // size)
        batch = [PAYLOAD] * size
        started = time.perf_counter()
        for _ in range(rounds):
            check(topic.send_many(batch))
        return Measured(rounds * size, time.perf_counter() - started)

    def _passes(self, receive: Callable[[Consumer, int], Awaitable[int]]) -> Run:
        async def once() -> int:
            async with es.connect(self.address) as store:
                async with store.consumer(uuid.uuid4().hex, topics="filled") as consumer:
                    return await receive(consumer, self.filled)

        return passes(lambda: trio.run(once), self.filled)


async def _some(consumer: Consumer, messages: int) -> int:
    seen = 0
    while seen < messages:
        some = await consumer.some()
        for message in some:
            message.done()
        seen += len(some)
    return seen


async def _each(consumer: Consumer, messages: int) -> int:
    seen = 0
    async for message in consumer:
        message.done()
        seen += 1
        if seen >= messages:
            break
    return seen


async def _raw(consumer: Consumer, messages: int) -> int:
    seen = 0
    async for batch in consumer.batches():
        seen += batch.count
        batch.done()
        if seen >= messages:
            break
    return seen


def check(outcomes: list[es.SendResult | es.EventStoreError]) -> None:
    """Raises ValueError where a message was refused."""
    refused = [outcome for outcome in outcomes if isinstance(outcome, es.EventStoreError)]
    if refused:
        raise ValueError(f"{len(refused)} messages were refused: {refused[0]}")
