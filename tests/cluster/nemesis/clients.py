"""The clients of a cluster that is broken: four that append and read, two tellers and an auditor of banks, a subscription, a
reader, a sender, two consumers, and for each shard one that stays with a leader as long as it answers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

import eventstore as es
from eventstore.errors import (
    ConnectionLost,
    Elsewhere,
    EventStoreError,
    NotEnoughReplicas,
    Overloaded,
    Poisoned,
    Rebalanced,
    ShuttingDown,
    StorageFull,
    UnknownGroup,
)
from tests.cluster.nemesis.appender import Appender
from tests.cluster.nemesis.bank import Teller, banks, state
from tests.cluster.nemesis.linearizability import VersionRead
from tests.cluster.nemesis.polling import in_thread
from tests.cluster.nemesis.records import Delivered, Progress, Records, Statement
from tests.cluster.nemesis.stage import Stage
from tests.cluster.nemesis.timeline import Timeline

TOPIC: Final = "jobs"
GROUP: Final = "workers"
APPENDERS: Final = 4
TELLERS: Final = 2
READERS: Final = ("subscription", "reader")
_TASKS: Final = 2
_EXPECTED: Final = (ConnectionLost, Elsewhere, NotEnoughReplicas, Overloaded, Poisoned, Rebalanced, ShuttingDown, StorageFull)
"""Errors that clients of a broken cluster may get. Any other one is an anomaly."""
_AGAIN_S: Final = 0.1
_NOTE_EVERY_S: Final = 1.0
_READ_EVERY_S: Final = 0.2
_ASK_EVERY_S: Final = 0.02
_LATEST: Final = 80
_STATEMENTS_KEPT: Final = 200
_AGAIN_SHARE: Final = 0.4
_GROUP_SHARE: Final = 0.1
Work = Callable[[es.NetworkStore], Awaitable[None]]


class Clients:
    """`stopping`: nothing new is appended or sent. `finished`: readers and consumers end as well."""

    def __init__(self, stage: Stage, timeline: Timeline, records: Records, seed: int) -> None:
        self._stage, self._timeline, self._records, self._seed = stage, timeline, records, seed
        self._chance = random.Random(f"clients {seed}")
        for name in READERS:
            records.readers[name] = []
        self._noted = 0.0
        self._links = 0
        self._banks = banks()
        self._appenders: list[Appender | Teller] = []
        stage.outstanding = lambda: list(map(str, self._appenders))
        self.stopping = False
        self.finished = trio.CancelScope()
        self.writing = 0

    async def run(self) -> None:
        """Runs all clients until they are stopped and finished."""
        async with trio.open_nursery() as nursery:
            for number in range(APPENDERS):
                nursery.start_soon(self._write, f"appender {number}", self._appending(number))
            for number in range(TELLERS):
                nursery.start_soon(self._write, f"teller {number}", self._telling(number))
            nursery.start_soon(self._write, "sender", self._sender())
            with self.finished:
                async with trio.open_nursery() as reading:
                    for name, work in zip(READERS, (self._subscriber, self._reader), strict=True):
                        reading.start_soon(self._read, name, work(name))
                    reading.start_soon(self._read, "auditor", self._auditor())
                    reading.start_soon(self._stay_everywhere, reading)
                    for number in range(2):
                        reading.start_soon(self._read, f"consumer {number}", self._consumer(number))

    async def wrote(self) -> bool:
        """Whether all that append or send have ended."""
        return self.writing == 0

    # ---- connections

    async def connected(self, work: Work, name: str, address: str | None = None) -> None:
        """Connects to the cluster, or one address, and works until the work or the connection ends."""
        address = address or self.address()
        try:
            async with es.connect(address, connect_timeout=1.0, reconnect_timeout=4.0, silence_timeout=3.0, name=name) as store:
                await work(store)
        except* EventStoreError as group:
            for error in _leaves(group):
                self.failed(error)

    def address(self) -> str:
        """Returns the addresses of all nodes, in any order."""
        known = [each for each in map(self._stage.address, self._stage.nodes) if each is not None]
        self._chance.shuffle(known)
        return ",".join(known)

    def failed(self, error: EventStoreError) -> None:
        self._records.errors[type(error).__name__] += 1
        if self._timeline.now() >= self._noted + _NOTE_EVERY_S:
            self._noted = self._timeline.now()
            self._timeline.note("a client got", f"{type(error).__name__}: {error}")
        if not isinstance(error, _EXPECTED):
            self._timeline.anomaly(f"a client got {type(error).__name__}: {error}")

    async def _write(self, name: str, work: Work) -> None:
        self.writing += 1
        while not self.stopping:
            await self.connected(work, name)
            await trio.sleep(_AGAIN_S)
        self.writing -= 1

    async def _read(self, name: str, work: Work) -> None:
        while True:
            await self.connected(work, name)
            await trio.sleep(_AGAIN_S)

    async def _stay_everywhere(self, nursery: trio.Nursery) -> None:
        """Notes who owns which slots, and stays with the leader of each shard, also of those that splits make."""
        there: set[int] = set()
        while True:
            known = await in_thread(self._stage.known_map)
            self._records.owners = known.owners
            for shard in sorted(set(known.owners) - there):
                there.add(shard)
                nursery.start_soon(self._stay, shard)
            await trio.sleep(_READ_EVERY_S)

    async def _stay(self, shard: int) -> None:
        """Asks one leader of a shard as long as it answers, whatever the map says: a deposed one must not."""
        chance = random.Random(f"stays {shard} {self._seed}")
        while True:
            serving = (await in_thread(self._stage.view)).serving.get(shard)
            if serving is not None:
                await self.connected(partial(self._ask, shard, chance), f"stays {shard}", f"tcp://{serving.address}")
            await trio.sleep(_READ_EVERY_S)

    async def _ask(self, shard: int, chance: random.Random, store: es.NetworkStore) -> None:
        history = self._records.history
        self._links += 1
        link = self._links
        while True:
            if chance.random() < _GROUP_SHARE:
                await self._ask_progress(shard, link, store)
            known = [each for each in list(history)[-_LATEST:] if self._records.shard_of(each) == shard]
            if known:
                aggregate_id, began = chance.choice(known), self._timeline.now()
                version = await store.version(aggregate_id)
                history[aggregate_id].append(VersionRead(began, self._timeline.now(), version))
            await trio.sleep(_ASK_EVERY_S)

    async def _ask_progress(self, shard: int, link: int, store: es.NetworkStore) -> None:
        with suppress(UnknownGroup):
            found = await store.broker.group(GROUP)
            queues = {each.queue: (each.offset, each.end) for each in found.queues if each.topic == TOPIC}
            self._records.progress.append(Progress(shard, link, found.generation, queues))

    # ---- what they do

    def _appending(self, number: int) -> Work:
        """Two tasks that append over one connection; when it is of no use to one of them, both leave it."""
        names = [f"a{number}{task}" for task in range(_TASKS)]
        tasks = [
            Appender(name, self._records, self._timeline.now, self.failed, f"{name} {self._seed}") for name in names
        ]  # fmt: skip
        return self._together(tasks)

    def _telling(self, number: int) -> Work:
        """The same with two tellers."""
        names = [f"t{number}{task}" for task in range(_TASKS)]
        return self._together(
            [
                Teller(name, self._banks, self._records, self._timeline.now, self.failed, f"{name} {self._seed}")
                for name in names
            ]
        )

    def _together(self, tasks: Sequence[Appender | Teller]) -> Work:
        self._appenders += tasks

        async def work(store: es.NetworkStore) -> None:
            usable = True

            async def run(task: Appender | Teller) -> None:
                nonlocal usable
                while usable and not self.stopping:
                    usable = await task.step(store) and usable

            async with trio.open_nursery() as nursery:
                for task in tasks:
                    nursery.start_soon(run, task)

        return work

    def _auditor(self) -> Work:
        """Reads banks, and some of what it has read once more at the same position."""
        chance = random.Random(f"auditor {self._seed}")
        kept: deque[Statement] = deque(maxlen=_STATEMENTS_KEPT)

        async def work(store: es.NetworkStore) -> None:
            while True:
                again = chance.choice(kept) if kept and chance.random() < _AGAIN_SHARE else None
                kept.append(await state(store, chance.choice(self._banks), self._records, self._timeline.now, again))
                await trio.sleep(_ASK_EVERY_S)

        return work

    def _sender(self) -> Work:
        async def work(store: es.NetworkStore) -> None:
            topic = store.topic(TOPIC)
            while not self.stopping:
                body = f"message {len(self._records.sent)}"
                self._records.sent[body] = False
                await topic.send(body.encode() + b"." * 500, key=f"key {self._chance.randrange(50)}")
                self._records.sent[body] = True
                self._records.counts["sent"] += 1

        return work

    def _consumer(self, number: int) -> Work:
        chance = random.Random(f"consumer {number} {self._seed}")

        async def work(store: es.NetworkStore) -> None:
            left = chance.randrange(50, 5_000)
            async with store.consumer(GROUP, TOPIC) as consumer:
                async for message in consumer:
                    if message.topic == TOPIC:
                        body = message.body.decode().rstrip(".")
                        self._records.delivered.append(Delivered(message.node - 1, message.queue, message.queue_offset, body))
                    message.done()
                    left -= 1
                    if left == 0:
                        return

        return work

    def _subscriber(self, name: str) -> Work:
        chance, saved = random.Random(f"{name} {self._seed}"), ""

        async def work(store: es.NetworkStore) -> None:
            nonlocal saved
            left = chance.randrange(50, 5_000)
            async with store.subscribe(after=es.Position.parse(saved) if saved else 0) as stream:
                async for item in stream:
                    if isinstance(item, es.Event):
                        self._records.readers[name].append(self._records.seen(item))
                        saved = str(stream.position)  # type: ignore[union-attr] # of several shards
                        left -= 1
                    if left == 0:
                        return

        return work

    def _reader(self, name: str) -> Work:
        chance, saved = random.Random(f"{name} {self._seed}"), ""

        async def work(store: es.NetworkStore) -> None:
            nonlocal saved
            for _ in range(chance.randrange(5, 50)):
                after = es.Position.parse(saved) if saved else 0
                async with store.read_all(after, limit=chance.choice((1, 50, 1_000, None))) as stream:
                    async for event in stream:
                        self._records.readers[name].append(self._records.seen(event))
                        saved = str(stream.position)  # type: ignore[union-attr] # of several shards
                await trio.sleep(_READ_EVERY_S)

        return work


def _leaves(group: BaseExceptionGroup[EventStoreError]) -> list[EventStoreError]:
    found: list[EventStoreError] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found
