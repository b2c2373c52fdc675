"""Redis as an event store: a stream per aggregate, version and command id checked by a script in the server.

The server syncs its append-only file before it answers (appendfsync always) and takes no snapshots. A pipeline is 256
commands sent in one go and answered in one go.

Not covered: it has no order over all aggregates, hence no `read_all`; everything must fit into memory; a
script that fails half way is not rolled back; a repeated command is an error, not the first answer again; entries come
back as tuples and dicts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

import redis

from benchmarks.harness.subject import (
    EVENT_TYPE,
    PAYLOAD,
    READ_AGGREGATE,
    Measured,
    Run,
    append_workloads,
    fill_through,
    replays,
)
from benchmarks.peers import Scratch, Server, executable, free_port

IN_FLIGHT = 256
SCRIPT = """
local expected = tonumber(ARGV[1])
if redis.call('XLEN', KEYS[1]) ~= expected then return -1 end
if redis.call('HSETNX', KEYS[2], ARGV[2], expected) == 0 then return -2 end
for i = 4, #ARGV do redis.call('XADD', KEYS[1], '*', 'type', ARGV[3], 'data', ARGV[i]) end
return expected + #ARGV - 3
"""


class Refused(Exception):
    """The script found another version, or the command id already there."""


class _Client:
    def __init__(self, port: int) -> None:
        self.connection = redis.Redis(host="127.0.0.1", port=port)
        self._script = str(self.connection.script_load(SCRIPT))

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        version = self.connection.evalsha(self._script, 2, *self._keys_and_arguments(aggregate_id, expected, events))
        if version != expected + events:
            raise Refused(f"{aggregate_id} at version {expected}: {version!r}")
        return expected + events

    def append_pipelined(self, aggregate_id: str, expected: int) -> int:
        pipeline = self.connection.pipeline(transaction=False)
        for place in range(IN_FLIGHT):
            pipeline.evalsha(self._script, 2, *self._keys_and_arguments(aggregate_id, expected + place, 1))
        versions = pipeline.execute()
        if versions != list(range(expected + 1, expected + IN_FLIGHT + 1)):
            raise Refused(f"{aggregate_id} from version {expected}: {versions!r}")
        return expected + IN_FLIGHT

    def _keys_and_arguments(self, aggregate_id: str, expected: int, events: int) -> list[str | bytes]:
        keys = [aggregate_id, f"{aggregate_id}:commands"]
        return [*keys, str(expected), uuid.uuid4().hex, EVENT_TYPE, *[PAYLOAD] * events]


class RedisStreams:
    name = "Redis streams"
    durable = True

    def __init__(self) -> None:
        self.version = "?"
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._clients: list[_Client] = []
        self._port = 0

    def start(self) -> None:
        program = executable("redis-server", hint="apt-get install redis-server")
        self._scratch = Scratch("redis")
        self._port = free_port()
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._scratch.path), "--save", ""]
        durability = ["--appendonly", "yes", "--appendfsync", "always"]
        # Rewriting the log in the background would disturb the next measurement.
        durability += ["--auto-aof-rewrite-percentage", "0"]
        self._server = Server([program, *options, *durability], self._scratch.path)
        self._server.wait_until_ready(self._probe, (redis.ConnectionError, redis.BusyLoadingError))

    def _probe(self) -> None:
        with redis.Redis(host="127.0.0.1", port=self._port) as connection:
            self.version = str(connection.info("server")["redis_version"])

    def stop(self) -> None:
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {
            **append_workloads(self._connected),
            "append_pipelined_256": self._append_pipelined,
            "read_aggregate_100": replays(self._replay),
        }

    def fill(self, events: int) -> None:
        fill_through(self._connected(1)[0], events)

    def _connected(self, clients: int) -> Sequence[_Client]:
        while len(self._clients) < clients:
            self._clients.append(_Client(self._port))
        return self._clients[:clients]

    def _append_pipelined(self, appends: int) -> Measured:
        client, pipelines = self._connected(1)[0], max(1, appends // IN_FLIGHT)
        aggregate_id, expected = uuid.uuid4().hex, 0
        started = time.perf_counter()
        for _ in range(pipelines):
            expected = client.append_pipelined(aggregate_id, expected)
        return Measured(expected, time.perf_counter() - started)

    def _replay(self) -> int:
        return len(self._connected(1)[0].connection.xrange(READ_AGGREGATE) or ())
