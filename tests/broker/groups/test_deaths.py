"""Members that die of a message: which one it was, however much they held; counted with the offsets of their group."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.broker.groups.attempts import HeldPage
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.client.consumer.commit_window import DeliveryTracker, Window
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.member_state import MemberState
from eventstore.errors import Corrupt
from eventstore.protocol.message_answers import Messages, QueuePage
from eventstore.records.consumer_groups import AssignedQueue
from tests.broker.groups.test_groups import House
from tests.broker.stepped import raw

GROUP, MEMBER = "billing", "m-1"


@dataclass
class Lives:
    """Lives of a member that dies of some messages of a log with two queues, one life after the other."""

    attempts: int
    deadly: set[tuple[int, int]]
    concurrency: int
    mode: str
    chance: random.Random
    tags: str | None
    house: House = field(default_factory=House)
    groups: Groups = field(init=False)
    handled: set[tuple[int, int]] = field(default_factory=set)
    dead: list[tuple[int, int]] = field(default_factory=list)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.house.broker.topic("payments", 2)
        for number in range(40):
            self.house.broker.send(
                raw(key=f"k-{number % 5}", tag="other" if number % 3 else "paid", queue=number % 2), topic="payments"
            )
        self.groups = self.house.groups
        self.groups.set_policy(GROUP, RetryPolicy((1.0,) * max(1, self.attempts - 1), self.attempts))

    def live(self) -> bool:
        """Lives until nothing is left, or until a message kills; returns whether it survived."""
        assignment = self.groups.join(GROUP, MEMBER, {"payments": self.tags})
        order = {"order": "key"} if self.mode == "key" else {"mode": self.mode}
        options = MemberOptions(GROUP, MEMBER, {"payments": self.tags}, commit_interval_s=1, **order)  # type: ignore[arg-type]
        state = MemberState(options, DeliveryTracker())
        state.assigned(assignment.generation, assignment.queues)
        hand: list[Delivery] = []
        while True:
            progress = self.pull(state)
            while len(hand) < self.concurrency and (item := state.ready.take()) is not None:
                assert isinstance(item, Delivery)
                hand.append(item)
            if hand and (not progress or self.chance.random() < 0.5):
                message = hand.pop(self.chance.randrange(len(hand)))
                if (message.queue, message.queue_offset) in self.deadly:
                    self.deaths += 1
                    return False
                self.handled.add((message.queue, message.queue_offset))
                message.done()
                progress = True
            for _, places in state.failures():
                self.dead += [(window.queue, offset) for window, offset in places]
                state.reported(places)
                progress = True
            if state.commit_due or self.chance.random() < 0.2 or not progress:
                progress = self.commit(state) or progress
            if not progress:
                return True

    def pull(self, state: MemberState) -> bool:
        pull = state.next_pull()
        if pull is None:
            return False
        records, pages, held = b"", [], []
        for window, want in zip(pull.windows, pull.request.wants, strict=True):
            most = min(pull.request.messages_max, 7)
            page = self.house.broker.pull(want[2], want[1], topic=want[0], tags=want[3], messages_max=most)
            records += page.records
            pages.append(QueuePage(page.next_offset, page.begin, page.end, None, None, page.count))
            if page.count:
                messages = self.house.broker.messages(want[1], want[2], topic=want[0], tags=want[3])
                first = messages[0].queue_offset
                held.append(((window.topic, window.queue), HeldPage(want[2], page.next_offset, first, page.count)))
        self.groups.handed_out(GROUP, MEMBER, held)
        before = [window.next_offset for window in pull.windows]
        state.received(pull, Messages(records, sum(page.messages for page in pages), tuple(pages)))
        state.decode()
        return before != [window.next_offset for window in pull.windows]

    def commit(self, state: MemberState) -> bool:
        moved: list[tuple[Window, int]] = []
        for request, part in list(state.commits()):
            self.groups.commit(GROUP, MEMBER, request.generation, request.offsets)
            state.committed(part)
            moved += part
        return bool(moved)


@given(
    attempts=st.integers(1, 4),
    deadly=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 19)), max_size=3),
    concurrency=st.integers(1, 6),
    mode=st.sampled_from(["parallel", "sequential", "key"]),
    tags=st.sampled_from([None, "paid"]),
    seed=st.integers(0, 1 << 32),
)
def test_exactly_the_messages_that_kill_their_members_are_dead_each_after_its_attempts(
    attempts: int, deadly: set[tuple[int, int]], concurrency: int, mode: str, tags: str | None, seed: int
) -> None:
    lives = Lives(attempts, deadly, concurrency, mode, random.Random(seed), tags)
    wanted = {
        (message.queue, message.queue_offset)
        for queue in range(2)
        for message in lives.house.broker.messages(queue, topic="payments", tags=tags)
    }
    met = deadly & wanted
    while not lives.live():
        assert lives.deaths <= max(2, attempts) * len(met), "a message killed more often than it has attempts"
    assert sorted(lives.dead) == sorted(met)
    assert lives.handled == wanted - met
    assert all(each.suspects_end == 0 for each in lives.groups.join(GROUP, MEMBER, {"payments": tags}).queues)


# ---- what counts, and for how long


def assigned(house: House, member: str = "a") -> AssignedQueue:
    """Has the member join, and returns what it is told of queue 0."""
    return house.groups.join(GROUP, member, {"orders": None}).queues[0]


def held(house: House, offset: int, next_offset: int, member: str = "a") -> None:
    """Hands the member the messages of queue 0 from one offset to before another."""
    house.groups.handed_out(GROUP, member, [(("orders", 0), HeldPage(offset, next_offset, offset, next_offset - offset))])


@pytest.fixture
def house() -> House:
    made = House()
    made.groups.set_policy(GROUP, RetryPolicy((1.0,), 3))
    return made


def test_a_member_that_expires_has_died_and_one_that_leaves_has_not(house: House) -> None:
    for _ in range(5):
        assert assigned(house).suspects_end == 0
        held(house, 0, 7)
        house.groups.leave(GROUP, "a")
    for _ in range(2):
        assert assigned(house).suspects_end == 0
        held(house, 0, 7)
        house.clock.now += 20
        house.groups.expire()
    assert assigned(house, "b").suspects_end == 7


def test_what_is_committed_is_no_suspect(house: House) -> None:
    for _ in range(2):
        assigned(house)
        held(house, 0, 7)
    assert assigned(house).suspects_end == 7
    house.groups.commit(GROUP, "a", house.groups.get(GROUP).generation, [("orders", 0, 7)])
    assert assigned(house).suspects_end == 0
    assert house.broker.opened.offsets_document.attempts == {GROUP: {}}


def test_a_message_held_with_others_is_never_the_killer(house: House) -> None:
    for _ in range(9):
        assert assigned(house).killer is None
        held(house, 0, 2)
    held(house, 0, 1)
    assert assigned(house).killer == 0


def test_deaths_survive_a_restart_and_end_with_a_reset(house: House) -> None:
    for _ in range(2):
        assigned(house)
        held(house, 0, 7)
    assigned(house)
    held(house, 0, 1)
    assert (assigned(house).suspects_end, assigned(house).killer) == (7, 0)
    document = house.broker.opened.offsets_document
    document.write(document.tree())
    document.attempts = {}
    document.load()
    house.groups = house.made()
    assert (assigned(house).suspects_end, assigned(house).killer) == (7, 0)
    house.groups.reset(GROUP, [("orders", 0, 0)])
    assert (assigned(house).suspects_end, assigned(house).killer) == (0, None)


def test_deaths_of_messages_that_the_log_has_lost_are_forgotten(house: House) -> None:
    for _ in range(2):
        assigned(house)
        held(house, 0, 15)  # the queue holds ten: a broker that lost its last writes
    house.groups.offsets.clamp()
    assert assigned(house).suspects_end == 10


def test_a_damaged_count_of_deaths_is_detected(house: House) -> None:
    document = house.broker.opened.offsets_document
    tree = document.tree()
    tree["deaths"] = {GROUP: [["orders", 0, None, -1]]}
    document.write(tree)
    document.write(tree)  # the copy as well
    with pytest.raises(Corrupt, match="not a document of offsets"):
        document.load()
