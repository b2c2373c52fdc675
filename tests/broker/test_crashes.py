"""A crash at every single operation of a broker's life, in every mode: what was acknowledged is there, in order, byte for byte.

The script creates topics, sends, indexes completed chunks, moves offsets on, deletes old chunks, and opens again. Each run of
it is stopped before the nth operation on the disk; then the broker is opened from what is left, and judged; then it lives on.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import pytest

from eventstore.broker.groups import Groups
from eventstore.broker.message import RawMessage
from eventstore.broker.progress import Progress
from eventstore.errors import EventStoreError
from tests.broker.stepped import Stepped, raw
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

RUNS: list[tuple[CrashMode, int]] = [("kept", 1), ("lost", 1), ("sectors", 1), ("sectors", 2)]
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
    """A broker going through the script, and what its users were told: who was acknowledged where, which offsets are safe."""

    disk: SimulatedDisk
    acknowledged: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    attempted: set[bytes] = field(default_factory=set)
    saved: dict[tuple[str, int], int] = field(default_factory=dict)
    done: int = 0
    broker: Stepped | None = None

    def open(self) -> Stepped:
        self.broker = Stepped(self.disk)
        assert not self.broker.opened.report.rebuilt, "no crash leaves an index that says more than is there"
        return self.broker

    def run(self, broker: Stepped) -> Stepped:
        """The script from where it was stopped. Returns the broker, another one after it was opened again."""
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
        """The group consumes two thirds of everything."""
        progress = groups.offsets.progress
        offsets = [(topic, queue, 2 * bounds(broker, topic, queue)[1] // 3) for topic, queue in QUEUES]
        generation = groups.get("billing").generation
        now = groups.commit("billing", "m", generation, offsets)
        progress.write(progress.tree())
        self.saved = {(each.topic, each.queue): each.offset for each in now}

    def delete(self, broker: Stepped) -> None:
        """The oldest chunk goes, whoever has consumed it."""
        engine = broker.engine
        through = engine.files.first
        if through + 2 < engine.files.last and through <= engine.indexed:
            state = engine.files.state(through + 1)
            assert state is not None
            engine.forget_chunks(through, state)
            engine.delete_chunks(through)


def bounds(broker: Stepped, topic: str, queue: int) -> tuple[int, int]:
    log = broker.engine.queues[broker.opened.topics.get(topic).id, queue]
    return log.first, log.visible_end(broker.engine.visible_position)


def joined(broker: Stepped) -> Groups:
    """The group with its one member, which has just joined."""
    progress: Progress = broker.opened.progress
    groups = Groups(progress, broker.opened.topics, lambda *queue: bounds(broker, *queue), member_timeout_s=10)
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
    assert not lost, "acknowledged, and gone"
    assert {place: there[place] for place in told.acknowledged.keys() & there.keys()} == {
        place: body for place, body in told.acknowledged.items() if place in there
    }
    assert {there[place] for place in there.keys() - told.acknowledged.keys()} <= told.attempted
    if told.saved:
        offsets = broker.opened.progress.groups["billing"]
        for (topic, queue), offset in told.saved.items():
            begin, _ = bounds(broker, topic, queue)
            assert offsets[topic][queue] >= offset or begin > offsets[topic][queue]


@contextmanager
def explained(disk: SimulatedDisk, mode: CrashMode, seed: int, nth: int) -> Iterator[None]:
    """Says how to run a failure again."""
    try:
        yield
    except BaseException as error:
        trace = "\n".join(disk.trace[-12:])
        error.add_note(f"crash mode {mode!r}, seed {seed}, before operation {nth}; the last operations were:\n{trace}")
        raise


def crashes(mode: CrashMode, seed: int) -> Iterator[tuple[int, SimulatedDisk, Life]]:
    """For each operation of the script the disk that is left when it is stopped there, and what users were told by then."""
    life, left = Life(SimulatedDisk(seed)), deque[tuple[SimulatedDisk, Life]]()

    def look(disk: SimulatedDisk) -> None:
        crashed = disk.crash(mode)
        left.append((crashed, replace(
            life, disk=crashed, acknowledged=life.acknowledged.copy(), attempted=life.attempted.copy(), saved=life.saved.copy()
        )))  # fmt: skip

    life.disk.at_each_operation(look)
    life.run(life.open())
    for nth in range(1, len(left) + 1):
        yield nth, *left.popleft()


@pytest.fixture(scope="module")
def operations() -> int:
    """How many there are without a crash."""
    life = Life(SimulatedDisk(0))
    broker = life.run(life.open())
    assert broker.engine.files.first > 1, "chunks were deleted"
    judge(broker, life)
    return life.disk.operations


@pytest.mark.heavy
@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_after_a_crash_at_any_operation_every_acknowledged_message_is_there_and_life_goes_on(
    mode: CrashMode, seed: int, operations: int
) -> None:
    nth = 0
    for nth, disk, life in crashes(mode, seed):
        with explained(disk, mode, seed, nth):
            broker = life.open()
            judge(broker, life)
            broker = life.run(broker)
            judge(broker, life)
            broker.close()
    assert nth == operations


@pytest.mark.heavy
@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_a_crash_at_any_operation_of_a_recovery_loses_nothing_either(mode: CrashMode, seed: int, operations: int) -> None:
    for nth, disk, life in islice(crashes(mode, seed), 2 + seed, operations, 17):
        step, crashed = 0, True
        while crashed:
            step += 1
            life.disk = disk.crash("kept")  # the same disk again
            life.disk.crash_at(step)
            with explained(life.disk, mode, seed, nth):
                try:
                    life.open()
                    crashed = False
                except SimulatedCrash:
                    pass
                life.disk = life.disk.crash(CRASH_MODES[step % 3])
                judge(life.open(), life)
