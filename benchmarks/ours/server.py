"""Our own store as a subject: a real server process, and the blocking client, one connection per client.

`append_pipelined_256` is one call of `append_many` with 256 commits of one event each, as the peer's is one pipeline of 256
commands: 256 appends on one connection before the first answer is waited for.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping, Sequence

import eventstore as es
from benchmarks.harness.subject import (
    EVENT_TYPE,
    EVERYONE,
    PAYLOAD,
    READ_AGGREGATE,
    Measured,
    Run,
    append_workloads,
    decision_workloads,
    fill_through,
    lockstep,
    passes,
    replays,
    stored_workloads,
)
from benchmarks.peers import Scratch, Server, free_port

IN_FLIGHT = 256
_SORTED_SECONDS_MAX = 120.0


class _Client:
    def __init__(self, address: str) -> None:
        self.store = es.blocking.connect(address)
        self.store.__enter__()

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        batch = [es.NewEvent(EVENT_TYPE, PAYLOAD) for _ in range(events)]
        return self.store.append(aggregate_id, batch, expected).version


class _Decider:
    """Appends unless an event with both tags has come after a position."""

    def __init__(self, client: _Client) -> None:
        self._store = client.store

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        tags = [EVERYONE, aggregate_id]
        write = es.Write(aggregate_id, [es.NewEvent(EVENT_TYPE, PAYLOAD, tags=tags) for _ in range(events)], es.ANY)
        (done,) = self._store.commit([write], unless=es.Query(tags=tags), after=expected)
        return done.sequence

    def store(self, tags: Sequence[str], events: int) -> None:
        if events:
            self._store.append(uuid.uuid4().hex, [es.NewEvent(EVENT_TYPE, PAYLOAD, tags=tags) for _ in range(events)], 0)

    def read(self, tag: str) -> int:
        return len(self._store.query(es.Query(tags=[tag]))[0])


class _Pair:
    """Appends to two aggregates: by one commit, or by two in one call."""

    def __init__(self, client: _Client, *, together: bool) -> None:
        self._store, self._together = client.store, together

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        names = (aggregate_id, f"{aggregate_id}-")
        batch = [es.NewEvent(EVENT_TYPE, PAYLOAD) for _ in range(events)]
        if self._together:
            return self._store.commit([es.Write(name, batch, expected) for name in names])[0].version
        done = self._store.append_many([es.Commit(name, batch, expected) for name in names])[0]
        if not isinstance(done, es.Committed):
            raise done
        return done.version


class EventStore:
    name = "eventstore"
    version = es.__version__
    durable = True

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._clients: list[_Client] = []
        self._address = ""
        self._events_filled = 0

    def start(self) -> None:
        self._scratch = Scratch("eventstore")
        self._serve()

    def _serve(self, *options: str) -> None:
        assert self._scratch is not None
        folder, listen = self._scratch.path, f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "eventstore", "serve", "--data", str(folder / "data"), "--listen", listen]
        self._server = Server([*command, *options], folder)
        self._address = f"tcp://{listen}"
        self._server.wait_until_ready(self._probe, (es.ConnectionLost,))

    def _probe(self) -> None:
        with es.blocking.connect(self._address, reconnect_timeout=0.5) as store:
            store.stats()

    def stop(self) -> None:
        for client in self._clients:
            client.store.__exit__(None, None, None)
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
            "pair_in_one_batch": lambda appends: lockstep([_Pair(self._connected(1)[0], together=False)], appends, 1),
            "pair_in_one_commit": lambda appends: lockstep([_Pair(self._connected(1)[0], together=True)], appends, 1),
            "append_pipelined_256": self._pipelined,
            "read_aggregate_100": replays(self._replay),
            "read_all": passes(self._read_all, self._events_filled),
        }

    def fill(self, events: int) -> None:
        """Served once with small event files, so that reads go to sorted files; then with default settings."""
        assert self._server is not None
        self._server.stop()
        self._serve("--file-size-bytes", str(4 * 1024 * 1024))
        client = _Client(self._address)
        fill_through(client, events)
        # Fill up the last event file to complete it, so that everything read next is sorted.
        self._events_filled = events + self._complete(client)
        client.store.__exit__(None, None, None)

    def _complete(self, client: _Client) -> int:
        """Appends to a separate aggregate until all completed files are sorted and one of them holds READ_AGGREGATE."""
        deadline = time.monotonic() + _SORTED_SECONDS_MAX
        files = int(str(client.store.stats()["event_files"]))
        version = 0
        while int(str(client.store.stats()["event_files"])) == files:
            version = client.append("filler", version, 1000)
        while int(str(client.store.stats()["unsorted_files"])) > 1:
            if time.monotonic() > deadline:
                raise TimeoutError("sorting has not ended")
            time.sleep(0.05)
        return version

    def _connected(self, clients: int) -> Sequence[_Client]:
        while len(self._clients) < clients:
            self._clients.append(_Client(self._address))
        return self._clients[:clients]

    def _pipelined(self, appends: int) -> Measured:
        store = self._connected(1)[0].store
        aggregate_id, version = uuid.uuid4().hex, 0
        started = time.perf_counter()
        for _ in range(max(1, appends // IN_FLIGHT)):
            commits = [
                es.Commit(aggregate_id, [es.NewEvent(EVENT_TYPE, PAYLOAD)], version + place) for place in range(IN_FLIGHT)
            ]
            outcomes = store.append_many(commits)
            version += IN_FLIGHT
            last = outcomes[-1]
            if not isinstance(last, es.Committed) or last.version != version:
                raise ValueError(f"an append was refused: {last}")
        return Measured(version, time.perf_counter() - started)

    def _replay(self) -> int:
        return len(list(self._connected(1)[0].store.read(READ_AGGREGATE)))

    def _read_all(self) -> int:
        return sum(1 for _ in self._connected(1)[0].store.read_all())
