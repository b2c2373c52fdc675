"""NATS JetStream: streams on files. Debian's release (2.9) cannot sync before it acknowledges, so it does not count as durable.

256 messages are published in one go, and their acknowledgements awaited together. Reading is a pull consumer that fetches 512
at a time and acknowledges nothing (policy none): less than our consumers do, whose progress is kept.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from benchmarks.harness.subject import PAYLOAD, Measured, Run, passes
from benchmarks.peers import Scratch, Server, executable, free_port

IN_FLIGHT = 256
PAGE = 512
CONFIGURATION = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}" }}
"""


class JetStream:
    name = "NATS JetStream"
    durable = False

    def __init__(self) -> None:
        self.version = "?"
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._port = 0
        self._filled = 0

    def start(self) -> None:
        program = executable("nats-server", hint="apt-get install nats-server")
        self.version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        self._scratch = Scratch("jetstream")
        self._port = free_port()
        configuration = self._scratch.path / "nats.conf"
        configuration.write_text(CONFIGURATION.format(port=self._port, folder=self._scratch.path / "data"))
        self._server = Server([program, "--config", str(configuration)], self._scratch.path)
        self._server.wait_until_ready(lambda: self._run(self._connect()), (OSError, nats.errors.Error))

    def stop(self) -> None:
        if self._client is not None:
            self._run(self._client.close())
        self._loop.close()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {
            "send_lockstep": lambda messages: self._run(self._lockstep(messages)),
            "send_pipelined": lambda messages: self._run(self._pipelined(messages)),
            "receive": passes(lambda: self._run(self._receive()), self._filled),
        }

    def fill(self, messages: int) -> None:
        self._run(self._fill(messages))
        self._filled = messages

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _connect(self) -> None:
        self._client = await nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False, error_cb=_ignore)
        stream = self._client.jetstream()
        await stream.add_stream(name="filled", subjects=["filled.*"], storage=StorageType.FILE)
        await stream.add_stream(name="sent", subjects=["sent"], storage=StorageType.FILE)

    async def _fill(self, messages: int) -> None:
        for first in range(0, messages, IN_FLIGHT):
            await self._send(min(IN_FLIGHT, messages - first), [f"filled.{queue}" for queue in range(4)])

    async def _lockstep(self, messages: int) -> Measured:
        assert self._client is not None
        stream = self._client.jetstream()
        started = time.perf_counter()
        for _ in range(messages):
            await stream.publish("sent", PAYLOAD)
        return Measured(messages, time.perf_counter() - started)

    async def _pipelined(self, messages: int) -> Measured:
        rounds = max(1, messages // IN_FLIGHT)
        started = time.perf_counter()
        for _ in range(rounds):
            await self._send(IN_FLIGHT, ["sent"])
        return Measured(rounds * IN_FLIGHT, time.perf_counter() - started)

    async def _send(self, messages: int, subjects: list[str]) -> None:
        assert self._client is not None
        stream = self._client.jetstream(publish_async_max_pending=IN_FLIGHT)
        sent = [await stream.publish_async(subjects[place % len(subjects)], PAYLOAD) for place in range(messages)]
        await asyncio.gather(*sent)

    async def _receive(self) -> int:
        assert self._client is not None
        stream = self._client.jetstream(timeout=30)
        wanted = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        consumer = await stream.pull_subscribe("filled.*", stream="filled", config=wanted)
        seen = 0
        while seen < self._filled:
            seen += len(await consumer.fetch(min(PAGE, self._filled - seen), timeout=30))
        await consumer.unsubscribe()
        return seen


async def _ignore(_: Exception) -> None:
    """The client would log every attempt to connect while the server starts."""
