"""Crashes at every operation of a broker's life, in every mode: acknowledged messages exist, in order, byte for byte.

The script creates topics, sends, indexes completed chunks, commits offsets, deletes old chunks, and opens again. Each run is
stopped before the nth operation on the disk; then the broker is opened from the rest of the disk, checked, and used again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.log.queue_bounds import QueueBounds
from eventstore.errors import EventStoreError
from eventstore.records.message import RawMessage
from tests.broker.stepped import Stepped, raw
from tests.crash_harness import RUNS, after_each_crash, crash_in_recovery
from tests.simulated_disk import CrashMode, SimulatedDisk

TOPICS = {"orders": 3, "events": 1}
QUEUES = [(topic, queue) for topic, queues in TOPICS.items() for queue in range(queues)]
BATCHES = 30
INDEX_AFTER, DELETE_AFTER, REOPEN_AFTER, SAVE_AFTER = (8, 15, 22), (18, 25), (12, 20), (5, 14, 23)


def batches() -> list[tuple[str, list[RawMessage]]]:
    rng = random.Random("messages")
    made = []
    for batch in range(BATCHES):
        topic = rng.choice(("orders", "orders", "events"))
        sizes = [9_000] if batch == 10 else [rng.choice((0, 10, 60, 600)) for _ in range(rng.randint(1, 6))]
        messages = [
            raw(f"{batch}.{place}".encode().ljust(size, b"."), f"key-{rng.randint(1, 5)}", rng.choice((None, "a", "b")))
            for place, size in enumerate(sizes)
        ]
        made.append((topic, messages))
    return made


SENT = batches()


@dataclass
class Life:
    """A broker that runs the script, and the answers of its users: acknowledged messages, durable offsets."""

    disk: SimulatedDisk
    acknowledged: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    attempted: set[bytes] = field(default_factory=set)
    saved: dict[tuple[str, int], int] = field(default_factory=dict)
    done: int = 0
    broker: Stepped | None = None

    def open(self) -> Stepped:
        self.broker = Stepped(self.disk)
        assert not self.broker.opened.report.rebuilt, "no crash leaves an index that covers more than there is"
        return self.broker

    def reopen(self) -> None:
        self.open()

    def live(self) -> None:
        self.run(self.open())

    def judge(self) -> None:
        assert self.broker is not None
        judge(self.broker, self)

    def copy(self, crashed: SimulatedDisk) -> Life:
        return replace(
            self, disk=crashed, broker=None, acknowledged=self.acknowledged.copy(), attempted=self.attempted.copy(),
            saved=self.saved.copy(),
        )  # fmt: skip

    def abandon(self) -> None:
        """A broker has nothing outside the simulated disk."""

    def discard(self) -> None:
        """A broker has nothing outside the simulated disk."""

    def run(self, broker: Stepped) -> Stepped:
        """Continues the script where it was stopped. Returns the broker, which is another one after a reopening."""
        for topic, queues in TOPICS.items():
            if topic not in broker.opened.topics.by_name:
                broker.topic(topic, queues)
        groups = joined(broker)
        while self.done < BATCHES:
            number, (topic, messages) = self.done, SENT[self.done]
            self.attempted |= {message[0] for message in messages}
            for message, outcome in zip(messages, broker.send(*messages, topic=topic), strict=True):
                assert not isinstance(outcome, EventStoreError), outcome
                self.acknowledged[topic, outcome[0], outcome[1]] = message[0]
            broker.engine.writer.zero_ahead.step()
            self.done += 1
            if number in INDEX_AFTER:
                broker.index()
            if number in SAVE_AFTER:
                self.save(broker, groups)
            if number in DELETE_AFTER:
                self.delete(broker)
            if number in REOPEN_AFTER:
                broker.close()
                broker = self.open()
                groups = joined(broker)
        return broker

    def save(self, broker: Stepped, groups: Groups) -> None:
        """The group consumes two thirds of all messages."""
        progress = groups.offsets.document
        offsets = [(topic, queue, 2 * bounds(broker, topic, queue)[1] // 3) for topic, queue in QUEUES]
        generation = groups.get("billing").generation
        now = groups.commit("billing", "m", generation, offsets)
        progress.write(progress.tree())
        self.saved = {(each.topic, each.queue): each.offset for each in now}

    def delete(self, broker: Stepped) -> None:
        """Deletes the oldest chunk, consumed or not."""
        engine = broker.engine
        through = engine.files.first
        if through + 2 < engine.files.last and through <= engine.indexed:
            state = engine.files.state(through + 1)
            assert state is not None
            engine.forget_chunks(through, state)
            engine.delete_chunks(through)


def bounds(broker: Stepped, topic: str, queue: int) -> tuple[int, int]:
    return QueueBounds(broker.engine, broker.opened.topics)(topic, queue)


def joined(broker: Stepped) -> Groups:
    """Returns the group, with its only member just joined."""
    progress: OffsetsDocument = broker.opened.offsets_document
    held = QueueBounds(broker.engine, broker.opened.topics)
    groups = Groups(progress, broker.opened.topics, held, member_timeout_s=10)
    groups.offsets.clamp()
    groups.join("billing", "m", dict.fromkeys(TOPICS))
    return groups


def judge(broker: Stepped, told: Life) -> None:
    there: dict[tuple[str, int, int], bytes] = {}
    for topic, queue in QUEUES:
        if topic not in broker.opened.topics.by_name:
            continue
        begin, end = bounds(broker, topic, queue)
        messages = broker.messages(queue, begin, topic=topic)
        assert [message.queue_offset for message in messages] == list(range(begin, end)), "no gap, no repetition"
        assert [message.position for message in messages] == sorted({message.position for message in messages})
        there |= {(topic, queue, message.queue_offset): message.body for message in messages}
    lost = {place for place in told.acknowledged.keys() - there.keys() if place[2] >= bounds(broker, *place[:2])[0]}
    assert not lost, "an acknowledged message is lost"
    assert {place: there[place] for place in told.acknowledged.keys() & there.keys()} == {
        place: body for place, body in told.acknowledged.items() if place in there
    }
    assert {there[place] for place in there.keys() - told.acknowledged.keys()} <= told.attempted
    if told.saved:
        offsets = broker.opened.offsets_document.groups["billing"]
        for (topic, queue), offset in told.saved.items():
            begin, _ = bounds(broker, topic, queue)
            assert offsets[topic][queue] >= offset or begin > offsets[topic][queue]


@pytest.fixture(scope="module")
def operations() -> int:
    """Returns how many operations there are without a crash."""
    life = Life(SimulatedDisk(0))
    broker = life.run(life.open())
    assert broker.engine.files.first > 1, "chunks were deleted"
    judge(broker, life)
    return life.disk.operations


@pytest.mark.heavy
@pytest.mark.parametrize(("mode", "seed", "every"), RUNS)
def test_after_a_crash_at_any_operation_every_acknowledged_message_exists_and_sending_continues(
    mode: CrashMode, seed: int, every: int, operations: int
) -> None:
    def check(life: Life) -> None:
        broker = life.open()
        judge(broker, life)
        broker = life.run(broker)
        judge(broker, life)
        broker.close()

    last = after_each_crash(Life(SimulatedDisk(seed)), mode, check, first=min(seed, every), step=every)
    assert operations - every < last <= operations


@pytest.mark.heavy
@pytest.mark.parametrize(("mode", "seed", "every"), RUNS)
def test_a_crash_at_any_operation_of_a_recovery_loses_nothing(mode: CrashMode, seed: int, every: int) -> None:
    after_each_crash(Life(SimulatedDisk(seed)), mode, crash_in_recovery, first=3 + seed, step=17 if every == 1 else 51)
