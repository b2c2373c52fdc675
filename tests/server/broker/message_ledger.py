"""The answers that senders and consumers got, compared with the messages that exist afterwards.

A workload of concurrent connections sends messages of all sizes to a server that may die at any moment, while members of a
group pull, handle and commit. Acknowledged messages must exist at their places; the group must have handled all messages, at
least once, and no others.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from eventstore.errors import Rebalanced
from eventstore.protocol.answers import Failure
from eventstore.protocol.broker_requests import Pull, SendMessages
from eventstore.protocol.group_requests import CommitOffsets, Heartbeat, ShowGroup
from eventstore.protocol.message_answers import Messages
from eventstore.records.message import Message, decode_messages
from tests.server.broker.broker_raw import Sent, create, join, message, pull, sent_of, values_of
from tests.server.raw import Gone, Ok, Outcomes, RawClient

TOPIC, GROUP, QUEUES = "orders", "billing", 4
SENDERS, CONSUMERS, FRAMES_AHEAD = 4, 2, 8
Place = tuple[int, int]


@dataclass
class MessageLedger:
    """The answers of all servers that ran on one data folder."""

    seed: str
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    handled: dict[Place, bytes] = field(default_factory=dict)
    rounds: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def begin(self, port: int) -> None:
        with RawClient(port) as client:
            create(client, TOPIC, QUEUES)

    # -- the workload -------------------------------------------------------------------------------------------------

    def run(self, port: int, at: Callable[[int], None]) -> None:
        """Sends and consumes until the server is gone; `at` is called with the number of acknowledged messages of this run."""
        self.rounds += 1
        begun = len(self.acknowledged)

        def tell() -> None:
            at(len(self.acknowledged) - begun)

        senders = [partial(self._send, port, number, tell) for number in range(SENDERS)]
        consumers = [partial(self._consume, port, f"m-{number}") for number in range(CONSUMERS)]
        work = [*senders, *consumers]
        with ThreadPoolExecutor(len(work)) as pool:
            for ended in [pool.submit(_until_gone, each) for each in work]:
                ended.result()

    def _send(self, port: int, number: int, tell: Callable[[], None]) -> None:
        chance = random.Random(f"{self.seed}/{self.rounds}/{number}")
        count = 0
        with RawClient(port) as client:
            flying: dict[int, list[bytes]] = {}
            while True:
                while len(flying) < FRAMES_AHEAD:
                    bodies = []
                    for _ in range(chance.choice((1, 1, 5, 40))):
                        count += 1
                        name = b"%d-%d-%d " % (self.rounds, number, count)
                        bodies.append(name + chance.randbytes(chance.choice((0, 20, 200, 3_000))))
                    with self._lock:
                        self.sent.update(bodies)
                    request = SendMessages(TOPIC, [message(body, chance.choice((None, f"k-{number}"))) for body in bodies])
                    flying[client.send_request(request)] = bodies
                request_id, answer = client.answer()
                if isinstance(answer, Outcomes):
                    self._note(flying.pop(request_id), sent_of(answer))
                    tell()
                else:
                    assert isinstance(answer, Failure), answer
                    raise answer.error

    def _note(self, bodies: list[bytes], outcomes: list[Sent]) -> None:
        with self._lock:
            for body, outcome in zip(bodies, outcomes, strict=True):
                assert isinstance(outcome, tuple), outcome
                assert outcome[:2] not in self.acknowledged, "two messages at the same place"
                self.acknowledged[outcome[:2]] = body

    def _consume(self, port: int, member: str) -> None:
        with RawClient(port) as client:
            generation, assigned = join(client, GROUP, member, TOPIC)
            while True:
                offsets = {row[1]: row[2] for row in assigned}
                wants = tuple((TOPIC, queue, offsets[queue], None) for queue in sorted(offsets))  # type: ignore[type-var]
                answer = client.ask(Pull(200, 1 << 18, 200, wants=wants))  # type: ignore[arg-type] # scalars that are ints
                assert isinstance(answer, Messages), answer
                self._handle(decode_messages(bytes(answer.records), answer.count))
                nexts = tuple((TOPIC, want[1], page.next_offset) for want, page in zip(wants, answer.pages, strict=True))
                told = client.ask(CommitOffsets(GROUP, member, generation, nexts))  # type: ignore[arg-type] # likewise
                if isinstance(told, Ok):
                    assigned = [(TOPIC, queue, offset, None) for _, queue, offset in nexts]
                    news = values_of(client, Heartbeat(GROUP, member, generation))
                else:
                    assert isinstance(told, Failure)
                    assert isinstance(told.error, Rebalanced), told
                    news = values_of(client, Heartbeat(GROUP, member, generation))
                if news:
                    generation, assigned = int(news[0] or 0), [news[place : place + 4] for place in range(1, len(news), 6)]

    def _handle(self, found: list[Message]) -> None:
        with self._lock:
            for each in found:
                place = (each.queue, each.queue_offset)
                assert self.handled.setdefault(place, each.body) == each.body, "another message at the same place"

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def check(self, port: int) -> None:
        """Checks that acknowledged messages are at their places, that no queue has a gap, and that no other messages exist."""
        with RawClient(port) as client:
            stored: dict[Place, bytes] = {}
            for queue in range(QUEUES):
                offset = 0
                while True:
                    found, (page,) = pull(client, (TOPIC, queue, offset, None), messages_max=1_000)
                    assert [each.queue_offset for each in found] == list(range(offset, page.next_offset))
                    stored.update({(queue, each.queue_offset): each.body for each in found})
                    offset = page.next_offset
                    if offset >= page.end:
                        break
        for place, body in self.acknowledged.items():
            assert stored.get(place) == body, f"{place} was acknowledged and is lost"
        assert set(stored.values()) <= self.sent
        for place, body in self.handled.items():
            assert stored.get(place) == body, "a message that a consumer handled is lost"

    def check_consumed(self, port: int) -> None:
        """Consumes the rest, and checks that the group has handled every stored message."""
        with RawClient(port) as client:
            for member in range(CONSUMERS):
                join(client, GROUP, f"m-{member}", TOPIC)
            rows = [row for row in _group_rows(client) if row[0] == TOPIC]
            for _, queue, offset, _, end, _ in rows:
                assert isinstance(queue, int)
                assert isinstance(offset, int)
                assert isinstance(end, int)
                while offset < end:
                    found, (page,) = pull(client, (TOPIC, queue, offset, None), messages_max=1_000)
                    self._handle(found)
                    offset = page.next_offset
                assert {place[1] for place in self.handled if place[0] == queue} == set(range(end)), "a message was skipped"


def _group_rows(client: RawClient) -> list[tuple[object, ...]]:
    values = values_of(client, ShowGroup(GROUP))[2:]
    return [values[at : at + 6] for at in range(0, len(values), 6)]


def _until_gone(work: Callable[[], None]) -> None:
    with contextlib.suppress(Gone, ConnectionError):
        work()
