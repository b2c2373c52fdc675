"""A client that appends with expected versions, repeats commands, and reads aggregates that others append to as well."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

import eventstore as es
from eventstore.errors import ConnectionLost, EventStoreError, VersionConflict
from tests.cluster.nemesis.linearizability import Append, Conflict, Read, Stored, VersionRead
from tests.cluster.nemesis.records import Records

_VERSIONS_MAX: Final = 60
"""An aggregate that is longer gives way to a new one."""
_OWN: Final = ("oak", "elm", "fir", "ash", "yew")
_SHARED: Final = ("lake", "pond", "moor", "ford", "well", "gulf")
_DATA_BYTES_MAX: Final = 3000
_IN_SYNC_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class _Asked:
    aggregate_id: str
    command: str
    expected: int | None
    events: list[es.NewEvent]


class Appender:
    """`now`: the clock of the history. `failed`: told each error."""

    def __init__(
        self, name: str, records: Records, now: Callable[[], float], failed: Callable[[EventStoreError], None], seed: str
    ) -> None:
        self._name, self._records, self._now, self._failed = name, records, now, failed
        self._chance = random.Random(seed)
        self._versions: dict[str, int] = {}
        self._unknown: deque[_Asked] = deque(maxlen=20)
        self._done: deque[_Asked] = deque(maxlen=50)
        self._commands = 0
        self._generations: dict[str, int] = {}
        self.since = 0.0
        self.about = ""
        self._last: dict[int, str] = {}

    def __str__(self) -> str:
        waits = self._now() - self.since
        shard = self._records.shard_of(self.about)
        return f"{self._name} waits for {waits:.1f} s about {self.about} on shard {shard}; the last answers: {self._last}"

    async def step(self, store: es.NetworkStore) -> bool:
        """Does one thing. Returns False if the connection is of no use any more."""
        what = self._chance.random()
        self.since = self._now()
        try:
            if what < 0.15:
                await self._read(store, self._aggregate())
            elif what < 0.22:
                await self._version(store, self._aggregate())
            elif what < 0.32 and self._unknown:
                return await self._append(store, self._unknown.popleft())
            elif what < 0.36 and self._done:
                return await self._append(store, self._chance.choice(self._done))
            else:
                return await self._append(store, self._new())
        except EventStoreError as error:
            self._failed(error)
            return not isinstance(error, ConnectionLost)
        return True

    def _aggregate(self) -> str:
        shared = self._chance.random() < 0.3
        name = self._chance.choice(_SHARED) if shared else f"{self._name}-{self._chance.choice(_OWN)}"
        generation = self._generations.get(name, 0)
        if self._versions.get(f"{name}-{generation}", 0) > _VERSIONS_MAX:
            self._versions.pop(f"{name}-{generation}")
            generation += 1
            self._generations[name] = generation
        return f"{name}-{generation}"

    def _new(self) -> _Asked:
        aggregate_id, chance = self._aggregate(), self._chance
        self._commands += 1
        command = f"{self._name}.{self._commands}"
        expected = None if chance.random() < 0.05 else self._versions.get(aggregate_id, 0)
        tags = ["happened", f"by:{self._name}"] if chance.random() < 0.3 else []
        events = [
            es.NewEvent("Happened", {"command": command, "filled": "." * chance.randrange(_DATA_BYTES_MAX)}, tags=tags)
            for _ in range(chance.choice((1, 1, 1, 2, 3)))
        ]
        return _Asked(aggregate_id, command, expected, events)

    async def _append(self, store: es.NetworkStore, asked: _Asked) -> bool:
        self.about = asked.aggregate_id
        began, expected = self._now(), es.ANY if asked.expected is None else asked.expected
        try:
            found = await store.append(asked.aggregate_id, asked.events, expected, asked.command)
        except VersionConflict as conflict:
            actual = int(str(conflict.actual))
            self._note(asked, began, self._now(), Conflict(actual))
            self._versions[asked.aggregate_id] = actual
            self._records.counts["conflicts"] += 1
        except EventStoreError as error:
            self._note(asked, began, inf, None)
            self._failed(error)
            self._unknown.append(asked)
            self._records.counts["unknown"] += 1
            return not isinstance(error, ConnectionLost)
        except BaseException:
            self._note(asked, began, inf, None)
            raise
        else:
            self._acknowledged(asked, began, found)
        return True

    def _acknowledged(self, asked: _Asked, began: float, found: es.Committed) -> None:
        ended, records = self._now(), self._records
        assert found.durability is not None, found
        assert found.durability >= _IN_SYNC_MIN, found
        self._note(asked, began, ended, Stored(found.version, found.duplicate))
        records.acknowledged.append((ended, records.shard_of(asked.aggregate_id)))
        records.counts["duplicates" if found.duplicate else "acknowledged"] += 1
        self._versions[asked.aggregate_id] = max(found.version, self._versions.get(asked.aggregate_id, 0))
        self._done.append(asked)

    def _note(self, asked: _Asked, began: float, ended: float, outcome: Stored | Conflict | None) -> None:
        self._last[self._records.shard_of(asked.aggregate_id)] = (
            f"{asked.aggregate_id} {asked.expected} {outcome} at {ended:.1f}"
        )
        self._records.history[asked.aggregate_id].append(
            Append(began, ended, asked.command, asked.expected, len(asked.events), outcome)
        )

    async def _read(self, store: es.NetworkStore, aggregate_id: str) -> None:
        self.about = aggregate_id
        began = self._now()
        events = [event async for event in store.read(aggregate_id)]
        ended = self._now()
        assert [event.version for event in events] == list(range(1, len(events) + 1)), events
        self._records.history[aggregate_id].append(Read(began, ended, tuple(event.command_id for event in events)))
        self._records.counts["reads"] += 1
        self._versions[aggregate_id] = len(events)

    async def _version(self, store: es.NetworkStore, aggregate_id: str) -> None:
        self.about = aggregate_id
        began = self._now()
        version = await store.version(aggregate_id)
        self._records.history[aggregate_id].append(VersionRead(began, self._now(), version))
        self._records.counts["reads"] += 1
        self._versions[aggregate_id] = version
