"""UmaDB, an event store in Rust: an append is refused if an event with the aggregate's tag follows a position.

The server runs as shipped: an append is acknowledged after its pages are synced. Every event carries its aggregate's id
as a tag, and a UUID.

Not covered: it has no command id. An append that is refused by its condition, but whose events are
there under the same UUIDs, gets its first answer again; without a condition the UUIDs guard nothing. Events know no
version, only their position in the whole log, which is what an append is conditional on here.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import umadb

from benchmarks.harness.subject import (
    EVENT_TYPE,
    EVERYONE,
    PAYLOAD,
    READ_AGGREGATE,
    Run,
    append_workloads,
    decision_workloads,
    fill_through,
    passes,
    replays,
    stored_workloads,
)
from benchmarks.peers import Scratch, Server, executable, free_port


def _of_aggregate(aggregate_id: str) -> umadb.Query:
    return umadb.Query([umadb.QueryItem(tags=[aggregate_id])])


class _Client:
    def __init__(self, address: str) -> None:
        self.connection = umadb.Client(address)

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        condition = umadb.AppendCondition(_of_aggregate(aggregate_id), expected)
        batch = [umadb.Event(EVENT_TYPE, PAYLOAD, [aggregate_id], uuid.uuid4()) for _ in range(events)]
        position: int = self.connection.append(batch, condition)
        return position


class _Decider:
    """Appends unless an event with both tags has come after a position."""

    def __init__(self, client: _Client) -> None:
        self._connection = client.connection

    def store(self, tags: Sequence[str], events: int) -> None:
        if events:
            self._connection.append([umadb.Event(EVENT_TYPE, PAYLOAD, list(tags), uuid.uuid4()) for _ in range(events)])

    def read(self, tag: str) -> int:
        return len(list(self._connection.read(_of_aggregate(tag))))

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        tags = [EVERYONE, aggregate_id]
        condition = umadb.AppendCondition(umadb.Query([umadb.QueryItem(tags=tags)]), expected)
        batch = [umadb.Event(EVENT_TYPE, PAYLOAD, tags, uuid.uuid4()) for _ in range(events)]
        position: int = self._connection.append(batch, condition)
        return position


class UmaDB:
    name = "UmaDB"
    durable = True

    def __init__(self) -> None:
        self.version = version("umadb")
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._clients: list[_Client] = []
        self._address = ""
        self._events_filled = 0

    def start(self) -> None:
        program = executable("umadb", Path(sys.executable).parent, hint="pip install umadb")
        self._scratch = Scratch("umadb")
        folder, port = self._scratch.path, free_port()
        self._server = Server([program, "--listen", f"127.0.0.1:{port}", "--db-path", str(folder / "data")], folder)
        self._address = f"http://127.0.0.1:{port}"
        self._server.wait_until_ready(self._probe, (umadb.TransportError,))

    def _probe(self) -> None:
        umadb.Client(self._address).head()

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
            **decision_workloads(lambda clients: list(map(_Decider, self._connected(clients)))),
            **stored_workloads(lambda clients: list(map(_Decider, self._connected(clients)))),
            "read_aggregate_100": replays(self._replay),
            "read_all": passes(self._read_all, self._events_filled),
        }

    def fill(self, events: int) -> None:
        fill_through(self._connected(1)[0], events)
        self._events_filled = events

    def _connected(self, clients: int) -> Sequence[_Client]:
        while len(self._clients) < clients:
            self._clients.append(_Client(self._address))
        return self._clients[:clients]

    def _replay(self) -> int:
        return len(list(self._connected(1)[0].connection.read(_of_aggregate(READ_AGGREGATE))))

    def _read_all(self) -> int:
        return sum(1 for _ in self._connected(1)[0].connection.read())
