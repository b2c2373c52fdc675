"""NATS JetStream: streams on files. With `sync_interval: always` it syncs before it acknowledges. Releases before 2.10, such as
Debian's, do not know that setting, and do not count as durable.

With three replicas there are three servers, of which a client is connected to the first: its messages go to the leader of
the stream, wherever that is, and are acknowledged when two have them.

256 messages are published in one go, and their acknowledgements awaited together. Reading is a pull consumer that fetches 512
at a time and acknowledges nothing (policy none): less than our consumers do, whose progress is kept.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
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
server_name: "{name}"
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}" {sync} }}
"""
CLUSTER = """
cluster {{ name: "peers", listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""
SYNC = "sync_interval: always"


class JetStream:
    def __init__(self, replicas: int = 1) -> None:
        self.name = "NATS JetStream" if replicas == 1 else f"NATS JetStream with {replicas} replicas"
        self.version = "?"
        self.durable = False
        self._replicas = replicas
        self._scratch: Scratch | None = None
        self._servers: list[Server] = []
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._port = 0
        self._filled = 0

    def start(self) -> None:
        program = executable("nats-server", hint="apt-get install nats-server")
        self.version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        self._scratch = Scratch("jetstream")
        ports = [(free_port(), free_port()) for _ in range(self._replicas)]
        self._port = ports[0][0]
        routes = ", ".join(f'"nats://127.0.0.1:{peer}"' for _, peer in ports)
        folders = [self._configured(f"s{at}", *pair, routes, SYNC) for at, pair in enumerate(ports)]
        checked = subprocess.run([program, "-t", "--config", "nats.conf"], cwd=folders[0], capture_output=True, check=False)
        self.durable = checked.returncode == 0
        self.version += f", {SYNC}" if self.durable else ", which has no sync_interval"
        if not self.durable:
            folders = [self._configured(f"s{at}", *pair, routes, "") for at, pair in enumerate(ports)]
        self._servers = [Server([program, "--config", "nats.conf"], folder) for folder in folders]
        for server in self._servers:
            server.wait_until_ready(lambda: self._run(self._connect()), (OSError, nats.errors.Error))

    def _configured(self, name: str, port: int, peer: int, routes: str, sync: str) -> Path:
        assert self._scratch is not None
        folder = self._scratch.path / name
        folder.mkdir(exist_ok=True)
        text = CONFIGURATION.format(name=name, port=port, folder=folder / "data", sync=sync)
        if self._replicas > 1:
            text += CLUSTER.format(port=peer, routes=routes)
        (folder / "nats.conf").write_text(text)
        return folder

    def stop(self) -> None:
        if self._client is not None:
            self._run(self._client.close())
        self._loop.close()
        for server in self._servers:
            server.stop()
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
        if self._client is None:
            self._client = await nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False, error_cb=_ignore)
        stream = self._client.jetstream()
        for name, subject in (("filled", "filled.*"), ("sent", "sent")):
            await stream.add_stream(
                name=name, subjects=[subject], storage=StorageType.FILE, num_replicas=self._replicas
            )  # fmt: skip

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
