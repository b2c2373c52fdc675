"""Our own store in process, without a server: for those who would otherwise embed a database.

One trio task in lock-step; a run opens the store, which is not timed, and closes it again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping

import trio

import eventstore as es
from benchmarks.harness.subject import AGGREGATE_EVENTS, EVENT_TYPE, PAYLOAD, READ_AGGREGATE, Measured, Run
from benchmarks.peers import Scratch
from eventstore.settings.setting_declaration import MIB
from eventstore.settings.store import StoreSettings
from eventstore.store.embedded import EmbeddedStore

Work = Callable[[EmbeddedStore, int], Awaitable[int]]


class EmbeddedEventStore:
    name = "eventstore embedded"
    version = es.__version__
    durable = True

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        self._settings = StoreSettings()
        self._events_filled = 0

    def start(self) -> None:
        self._scratch = Scratch("embedded")

    def stop(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()

    def workloads(self) -> Mapping[str, Run]:
        return {
            "append_lockstep_1": self._timed(lambda store, size: _append(store, size, 1)),
            "append_batch_100": self._timed(lambda store, size: _append(store, size, 100)),
            "read_aggregate_100": self._timed(_replay),
            "read_all": self._timed(self._read_all),
        }

    def fill(self, events: int) -> None:
        """In small event files, all of which are sorted at the end."""
        self._settings = StoreSettings(file_size_bytes=4 * MIB)
        trio.run(self._fill, events)

    async def _fill(self, events: int) -> None:
        assert self._scratch is not None
        async with es.open_store(self._scratch.path / "data", self._settings) as store:
            for _ in range(events // AGGREGATE_EVENTS - 1):
                await _append(store, 1, AGGREGATE_EVENTS)
            for version in range(AGGREGATE_EVENTS):
                await store.append(READ_AGGREGATE, [es.NewEvent(EVENT_TYPE, PAYLOAD)], version)
            files = len(store.engine.files.headers)
            while len(store.engine.files.headers) == files:  # until READ_AGGREGATE's file is completed
                await _append(store, 1, 1000)
            await store.maintenance.wait_until_sorted()
            self._events_filled = store.engine.visible_sequence

    def _timed(self, work: Work) -> Run:
        async def run(size: int) -> Measured:
            assert self._scratch is not None
            async with es.open_store(self._scratch.path / "data", self._settings) as store:
                started = time.perf_counter()
                count = await work(store, size)
                return Measured(count, time.perf_counter() - started)

        return lambda size: trio.run(run, size)

    async def _read_all(self, store: EmbeddedStore, passes: int) -> int:
        seen = 0
        for _ in range(passes):
            async for _event in store.read_all():
                seen += 1
        if seen != passes * self._events_filled:
            raise ValueError(f"read {seen} events where {passes * self._events_filled} were written")
        return seen


async def _append(store: EmbeddedStore, appends: int, events: int) -> int:
    aggregate_id, version = uuid.uuid4().hex, 0
    for _ in range(appends):
        batch = [es.NewEvent(EVENT_TYPE, PAYLOAD) for _ in range(events)]
        version = (await store.append(aggregate_id, batch, version)).version
    return appends * events


async def _replay(store: EmbeddedStore, replays: int) -> int:
    for _ in range(replays):
        events = [event async for event in store.read(READ_AGGREGATE)]
        if len(events) != AGGREGATE_EVENTS:
            raise ValueError(f"read {len(events)} events where {AGGREGATE_EVENTS} were written")
    return replays
