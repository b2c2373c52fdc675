"""What is parked, retried and skipped, with a crash at any operation of either side: each event is published once, in the order
of its aggregate, and what was skipped is not.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import eventstore.domain as d
from eventstore.domain.publication import Publication
from eventstore.errors import ConnectionLost
from eventstore.following.parking import ParkedEvents
from eventstore.model import CaughtUp, Committed, Event, NewEvent
from eventstore.position import After
from eventstore.records.commit import NO_FINGERPRINT
from eventstore.records.event_filter import event_filter
from eventstore.records.event_message import origin_of_message
from eventstore.records.message import RawMessage
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.outbox import Outbox
from eventstore.server.outbox.outbox_ends import MessagePosition
from eventstore.server.outbox.outbox_messages import OutboxMessages, PublishedEvents
from eventstore.server.outbox.parked_messages import ParkedMessages
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import SMALL as SMALL_BROKER
from tests.server.outbox.outbox_world import CHECKPOINT, TOPIC, BrokerEnd, StoreEnd, World
from tests.server.outbox.test_outbox_crashes import ASYNC, Recover, broker_alone, disk, one_machine, store_alone
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash
from tests.store.stepped import raw

STEPS = 26
BROKEN = {0: {1, 2}, 6: {2}, 12: {3}, 16: {1, 3}, 22: set[int]()}
"""The aggregates that the function fails on, from a step on."""

RETRIED, SKIPPED = (4, 6, 7, 12, 14, 18, 22), (9, 15)
SAVED, SYNCED, DELETED = (2, 5, 8, 11, 14, 17, 20), (3, 10, 14, 16, 20), (14, 20)
_STRIDE = 67  # so that a case takes half a second


@dataclass(frozen=True)
class Happened:
    number: int


class Items(AsyncIterator[Any]):
    """What a reader gets: an iterator, and a subscription to a store that has nothing that is not durable."""

    resumptions = 0

    def __init__(self, items: Iterable[Event | CaughtUp]) -> None:
        self._items = iter(items)

    async def __anext__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Records:
    """The records of the store that is open at the moment."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read_all(self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None) -> Items:
        return Items(self._world.store.read_all(after, event_filter(types, aggregate_prefix)))

    async def append_reserved(self, aggregate_id: str, event: NewEvent) -> Committed:
        store = self._world.store
        _, expected, command_id, when, events = raw(aggregate_id, f"r-{store.engine.visible_sequence}", event)
        own = aggregate_id, expected, command_id, when, (events, 1, NO_FINGERPRINT)
        ((_, version, sequence),) = store.append(own)
        assert isinstance(version, int)
        return Committed(aggregate_id, version, sequence, False, 1)

    def read(self, aggregate_id: str, from_version: int = 1, to_version: int | None = None) -> Items:
        return Items(self._world.store.read(aggregate_id, from_version, to_version))

    def subscribe(self, after: After = 0) -> Items:
        return Items([CaughtUp(0)])


class FlushedEnd(BrokerEnd):
    """A broker that flushes while a retry waits for that."""

    def is_durable(self, position: int) -> bool:
        assert isinstance(self._world, ParkingWorld)
        if self._world.retrying:
            self._world.sync_broker()
        return super().is_durable(position)


@dataclass
class ParkingWorld(World):
    """`broken`: the aggregates that no messages can be made of. `skipped`: events that operators gave up."""

    broken: set[int] = field(default_factory=set)
    skipped: set[tuple[str, int]] = field(default_factory=set)
    retrying: bool = False

    def topic_end(self) -> BrokerEnd:
        return FlushedEnd(self)

    def messages(self) -> OutboxMessages:
        def made(event: Happened, stored: Event) -> object:
            if int(stored.aggregate_id[-1]) in self.broken and event.number % 3:
                raise LookupError(stored.aggregate_id)
            return stored.data

        publication = Publication(TOPIC)
        publication.add(d.event_type(Happened), made)
        return PublishedEvents(str(self.store.opened.uuid), publication, ParkedMessages(Records(self), TOPIC))

    def append(self, rng: random.Random) -> None:
        commits = []
        for _ in range(rng.randint(1, 4)):
            self.appended += 1
            event = NewEvent("Happened", {"number": self.appended})
            commits.append(raw(f"order-{rng.randint(1, 4)}", f"c-{self.appended}-{rng.getrandbits(32)}", event))
        self.store.append(*commits)

    @property
    def parked(self) -> ParkedEvents:
        found = self.outbox._messages.parked
        assert found is not None
        return found.events

    async def retry(self, aggregate_id: str, *, skip: bool = False) -> None:
        self.retrying = True
        try:
            await self.outbox.retry(aggregate_id, "ada", "a test", skip=skip)
        finally:
            self.retrying = False

    async def retry_all(self) -> None:
        for aggregate_id in dict.fromkeys(each.aggregate_id for each in self.parked):
            await self.retry(aggregate_id)

    def judge(self) -> int:
        store = str(self.store.opened.uuid)
        seen = {**self.kept, **{message.position: message for message in self.in_topic()}}
        origins = [origin_of_message(seen[position], store) for position in sorted(seen)]
        found = [(each.aggregate_id, each.version) for each in origins if each is not None]
        events = {(each.aggregate_id, each.version) for each in self.store.state() if each.aggregate_id[0] != "$"}
        assert {*found} == events - self.skipped, f"left out: {events - self.skipped - {*found}}"
        first = list(dict.fromkeys(found))
        for aggregate_id, _ in events:
            versions = [version for of, version in first if of == aggregate_id]
            assert versions == sorted(versions), f"order of {aggregate_id}"
        return len(found) - len(first)


class Script:
    """A scenario that can crash anywhere, and resumes with the step that was not done."""

    def __init__(self, world: ParkingWorld) -> None:
        self.world = world
        self.rng = random.Random("parking")
        self.done = 0
        self.targets: dict[int, tuple[str, int]] = {}

    async def run(self) -> None:
        while self.done < STEPS:
            await self._step(self.done)
            self.done += 1
        await self.world.publish_all()
        await self.world.retry_all()
        await self.world.publish_all()
        assert not len(self.world.parked)

    async def _step(self, step: int) -> None:
        world = self.world
        world.broken = BROKEN.get(step, world.broken)
        world.append(self.rng)
        if step % 3 != 1:
            await world.publish_all()
        if step in SKIPPED:
            await self._skip()
        if step in RETRIED:
            await world.retry_all()
        if step % 4 == 1:
            world.send_foreign(self.rng)
        if step in SYNCED:
            world.sync_broker()
        if step in SAVED:
            await world.outbox.save()
            await world.outbox.save()
        if step in DELETED:
            world.delete_chunks()

    async def _skip(self) -> None:
        """Skips an event, also after a crash if it is still parked."""
        if self.done not in self.targets:
            first = next(iter(self.world.parked))
            self.targets[self.done] = first.aggregate_id, first.version
            self.world.skipped.add(self.targets[self.done])
        aggregate_id, version = self.targets[self.done]
        first_of = self.world.parked.first(aggregate_id)
        if first_of is not None and first_of.version == version:
            await self.world.retry(aggregate_id, skip=True)


async def operations(world: ParkingWorld, side: str) -> int:
    await world.outbox.resume()
    before = disk(world, side).operations
    await Script(world).run()
    assert world.kept, "chunks with events were deleted"
    assert len(world.skipped) == len(SKIPPED)
    assert world.judge() == 0
    records = [event.json().get("how") for event in world.store.state() if event.aggregate_id[0] == "$"]
    assert records.count("done") > 10
    return int(disk(world, side).operations - before)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("side", "recover"), [("store", one_machine), ("broker", one_machine), ("store", store_alone), ("broker", broker_alone)]
)
@pytest.mark.parametrize("settings", [SMALL_BROKER, ASYNC], ids=["sync", "async"])
async def test_after_a_crash_at_any_operation_what_is_parked_is_published_once_in_order(
    tmp_path: Path, settings: BrokerSettings, side: str, recover: Recover
) -> None:
    total = await operations(ParkingWorld(tmp_path, settings), side)
    for nth, mode in zip(range(7, total + 1, _STRIDE), cycle(CRASH_MODES), strict=False):
        world = ParkingWorld(tmp_path, settings)
        await world.outbox.resume()
        script = Script(world)
        disk(world, side).crash_at(nth)
        try:
            await script.run()
        except SimulatedCrash:
            await recover(world, mode)
            await script.run()
        assert world.judge() == 0, f"crash mode {mode!r}, {side} side, before operation {nth}"
        world.store.abandon()


class Unanswered(FlushedEnd):
    """A broker that takes the first late message, and whose answer is lost."""

    lost = 0

    async def send(self, messages: Sequence[RawMessage]) -> list[MessagePosition]:
        places = await super().send(messages)
        if not self.lost and any(b"parked" in (properties or b"") for _, _, _, properties, _ in messages):
            self.lost += 1
            raise ConnectionLost("the answer is lost")
        return places


async def test_a_retry_whose_answer_is_lost_is_not_repeated(tmp_path: Path) -> None:
    world = ParkingWorld(tmp_path, SMALL_BROKER, broken={1})
    world.outbox = Outbox(StoreEnd(world), Unanswered(world), None, world.messages())
    await world.outbox.resume()
    world.store.append(*[raw("order-1", f"c-{number}", NewEvent("Happened", {"number": number})) for number in (1, 2, 3)])
    await world.publish_all()
    assert [each.version for each in world.parked] == [1, 2, 3]
    world.broken = set()
    with pytest.raises(ConnectionLost):
        await world.retry("order-1")
    assert [each.version for each in world.parked] == [1, 2, 3]
    await world.retry("order-1")
    assert world.judge() == 0
    released = [event.json() for event in world.store.state() if event.type == "$Unparked"]
    assert [(each["version"], each["who"]) for each in released] == [(1, "eventstore"), (2, "ada"), (3, "ada")]
    world.store.abandon()


async def test_what_was_published_late_or_skipped_since_the_last_other_message_is_passed_over_after_a_start(
    tmp_path: Path,
) -> None:
    world = ParkingWorld(tmp_path, SMALL_BROKER, broken={1})
    await world.outbox.resume()
    world.store.append(*[raw("order-1", f"c-{number}", NewEvent("Happened", {"number": number})) for number in (1, 4)])
    await world.publish_all()
    world.skipped.add(("order-1", 1))
    await world.retry("order-1", skip=True)
    assert [each.version for each in world.parked] == [2]
    for broken in {1}, set[int]():
        world.broken = broken
        await world.retry_all()
        await one_machine(world, "kept")
        assert world.outbox.place == 0, "nothing else is in the topic"
        await world.publish_all()
    assert (len(world.parked), world.judge()) == (0, 0)
    world.store.abandon()


@pytest.mark.parametrize("mode", CRASH_MODES)
async def test_a_checkpoint_beside_what_is_parked_leaves_none_of_it_out(tmp_path: Path, mode: CrashMode) -> None:
    """The checkpoint says where the records begin: one that is parked stays before that, however much is published after it."""
    world = ParkingWorld(tmp_path, SMALL_BROKER, broken={1})
    await world.outbox.resume()
    numbers = iter(range(1, 100, 3))
    for aggregate in (1, 2, 2, 1, 3):
        world.store.append(raw(f"order-{aggregate}", f"c-{world.appended}", NewEvent("Happened", {"number": next(numbers)})))
        world.appended += 1
        await world.publish_all()
        await world.outbox.save()
        await world.outbox.save()
    file = CheckpointFile(CHECKPOINT, world.store_disk).load()
    oldest = next(event.sequence for event in world.store.state() if event.type == "$Parked")
    assert file is not None
    assert file.parked_after == oldest - 1 < file.origin.sequence
    await one_machine(world, mode)
    assert [(each.aggregate_id, each.version) for each in world.parked] == [("order-1", 1), ("order-1", 2)]
    world.broken = set()
    await world.retry_all()
    world.store.append(raw("order-3", "last", NewEvent("Happened", {"number": 100})))
    await world.publish_all()
    await world.outbox.save()
    await world.outbox.save()
    file = CheckpointFile(CHECKPOINT, world.store_disk).load()
    assert file is not None
    assert file.parked_after == file.origin.sequence, "the records of before need not be read again"
    await one_machine(world, mode)
    assert (len(world.parked), world.judge()) == (0, 0)
    world.store.abandon()
