"""A server that publishes its events, killed repeatedly while it appends: every event is in the topic, in order."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.records.message import Message
from tests.server_process import ServerProcess
from tests.waiting import wait_until

TOPIC = "events"
AGGREGATES = 7
ROUNDS = 6


def published(store: blocking.BlockingStore, topic: str = TOPIC) -> list[Message]:
    """Returns all messages of the topic, in the order of the log; none if nothing has been published to it yet."""
    found: list[Message] = []
    if topic not in {row.name for row in store.broker.topics()}:
        return found
    for queue in store.broker.queues(topic):
        offset = queue.begin
        while offset < queue.end:
            pulled = store.broker.pull([(topic, queue.queue, offset, None)], 1_000)
            found += pulled.messages()
            offset = pulled.queues[0].next_offset
    return sorted(found, key=lambda message: message.position)


def check(store: blocking.BlockingStore, messages: Sequence[Message]) -> int:
    """Checks that each event is there, in order per aggregate without duplicates. Returns the number of duplicates."""
    events = {event.sequence: event for event in store.read_all()}
    first: dict[int, Message] = {}
    for message in messages:
        first.setdefault(int(message.properties["sequence"]), message)
    assert first.keys() == events.keys()
    latest = dict.fromkeys({event.aggregate_id for event in events.values()}, 0)
    for sequence, message in first.items():
        event = events[sequence]
        told = (message.key, message.properties["version"], message.properties["command_id"], message.body)
        assert told == (event.aggregate_id, str(event.version), event.command_id, event.data)
        assert event.version == latest[event.aggregate_id] + 1
        latest[event.aggregate_id] = event.version
    return len(messages) - len(first)


def caught_up(store: blocking.BlockingStore) -> bool:
    stats = store.stats()
    return stats["published_sequence"] == stats["events"]


def append_until_it_is_gone(address: str, life: int) -> None:
    """Appends batches of commits, one after the other, as fast as they are answered."""
    rng, number = random.Random(life), 0
    with suppress(es.EventStoreError), blocking.connect(address, reconnect_timeout=0) as store:
        while True:
            commits = []
            for _ in range(rng.randint(1, 100)):
                number += 1
                events = [es.NewEvent("Happened", {"number": number})] * rng.randint(1, 3)
                commits.append(es.Commit(f"a-{rng.randrange(AGGREGATES)}", events, es.ANY, f"c-{life}-{number}"))
            if any(isinstance(outcome, es.ConnectionLost) for outcome in store.append_many(commits)):
                return


@pytest.mark.heavy
@pytest.mark.parametrize("durability", [pytest.param("sync", marks=pytest.mark.long), "async"])
def test_a_server_that_is_killed_while_it_publishes_leaves_nothing_out(tmp_path: Path, durability: str) -> None:
    rng = random.Random(durability)
    settings = {
        "publish": TOPIC, "broker_durability": durability, "broker_chunk_size_bytes": 65_536, "broker_preallocate_bytes": 4_096
    }  # fmt: skip
    for life in range(ROUNDS):
        with ServerProcess(tmp_path / "data", **settings) as server, blocking.connect(server.address) as store:
            appender = threading.Thread(target=append_until_it_is_gone, args=(server.address, life))
            appender.start()
            goal = int(store.stats()["published_sequence"] or 0) + rng.randint(1, 2_000)
            wait_until(lambda store=store, goal=goal: store.stats()["published_sequence"] >= goal, "some are published")  # type: ignore[misc]
            server.kill()
            appender.join()
    with ServerProcess(tmp_path / "data", **settings) as server:
        with blocking.connect(server.address) as store:
            wait_until(lambda: caught_up(store), "everything is published")
            assert check(store, published(store)) == 0, (
                "a killed process loses nothing that was written, so nothing is sent twice"
            )
        assert server.terminate() == 0
