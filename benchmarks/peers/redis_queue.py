"""Redis streams as a broker: a stream per queue, a consumer group that reads in batches.

The server syncs its append-only file before it answers (appendfsync always). A pipeline is 256 XADD sent in one go and answered
in one go. Reading is XREADGROUP with NOACK, 512 entries a call: less than our consumers do, whose progress is kept.

Not covered: balancing queues over the members of a group, filters by tag, delayed retries; everything must fit into
memory.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import redis

from benchmarks.harness.subject import PAYLOAD, Measured, Run, passes
from benchmarks.peers import Scratch, Server, executable, free_port

IN_FLIGHT = 256
PAGE = 512
QUEUES = ("queue-0", "queue-1", "queue-2", "queue-3")
SENT = "sent"


class RedisQueues:
    name = "Redis streams"
    durable = True

    def __init__(self) -> None:
        self.version = "?"
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._port = 0
        self._filled = 0
        self._connection: redis.Redis | None = None

    def start(self) -> None:
        program = executable("redis-server", hint="apt-get install redis-server")
        self._scratch = Scratch("redis-queues")
        self._port = free_port()
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._scratch.path), "--save", ""]
        durability = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
        self._server = Server([program, *options, *durability], self._scratch.path)
        self._server.wait_until_ready(self._probe, (redis.ConnectionError, redis.BusyLoadingError))

    def _probe(self) -> None:
        self._connection = redis.Redis(host="127.0.0.1", port=self._port)
        self.version = str(self._connection.info("server")["redis_version"])

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {
            "send_lockstep": self._lockstep,
            "send_pipelined": self._pipelined,
            "receive": passes(self._receive, self._filled),
        }

    def fill(self, messages: int) -> None:
        for first in range(0, messages, IN_FLIGHT):
            self._send(min(IN_FLIGHT, messages - first), QUEUES)
        self._filled = messages

    def _lockstep(self, messages: int) -> Measured:
        started = time.perf_counter()
        for _ in range(messages):
            self._send(1, (SENT,))
        return Measured(messages, time.perf_counter() - started)

    def _pipelined(self, messages: int) -> Measured:
        pipelines = max(1, messages // IN_FLIGHT)
        started = time.perf_counter()
        for _ in range(pipelines):
            self._send(IN_FLIGHT, (SENT,))
        return Measured(pipelines * IN_FLIGHT, time.perf_counter() - started)

    def _send(self, messages: int, queues: tuple[str, ...]) -> None:
        assert self._connection is not None
        pipeline = self._connection.pipeline(transaction=False)
        for place in range(messages):
            pipeline.xadd(queues[place % len(queues)], {"body": PAYLOAD})
        if len(pipeline.execute()) != messages:
            raise ValueError("a message was not taken")

    def _receive(self) -> int:
        """Everything, by a new group."""
        connection, group, seen = self._connection, uuid.uuid4().hex, 0
        assert connection is not None
        for queue in QUEUES:
            connection.xgroup_create(queue, group, id="0")
        while pages := connection.xreadgroup(group, "member", dict.fromkeys(QUEUES, ">"), count=PAGE, noack=True):
            for _, entries in pages.items() if isinstance(pages, dict) else pages:
                seen += len(entries)
        for queue in QUEUES:
            connection.xgroup_destroy(queue, group)
        return seen
