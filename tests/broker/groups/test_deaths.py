"""Members that die of a message: which one it was, however much they held; counted with the offsets of their group.

The lives of a member are a model of delivery as well: what dies, what fails in place and waits, what is handed out meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from eventstore.broker.administration import Administration
from eventstore.broker.failed_messages import FailedMessages
from eventstore.broker.groups.attempts import HeldPage
from eventstore.broker.groups.failed_offsets import FailedOffsets
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.message_lookups import MessageLookups
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.client.consumer.commit_window import DeliveryTracker, Window
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.member_state import MemberState
from eventstore.errors import Corrupt
from eventstore.protocol.group_requests import FailInPlace
from eventstore.protocol.message_answers import Messages, QueuePage
from eventstore.records.consumer_groups import AssignedQueue
from eventstore.records.message import RawMessage
from tests.broker.groups.test_groups import House
from tests.broker.stepped import raw

GROUP, MEMBER = "billing", "m-1"
DAY_S = 86_400.0
Place: TypeAlias = tuple[int, int]
"""A queue and an offset."""


@dataclass
class Lives:
    """Lives of a member that dies of some messages of a log with two queues, one life after the other.

    `failing`: how often a message fails in place before it is handled, or kills. `delay_s`: before its next attempt; a life
    ends if nothing is left to do for a day.
    """

    attempts: int
    deadly: set[Place]
    concurrency: int
    mode: str
    chance: random.Random
    tags: str | None
    failing: dict[Place, int] = field(default_factory=dict)
    delay_s: float = 1.0
    messages: int = 40
    page: int = 7
    house: House = field(default_factory=House)
    groups: Groups = field(init=False)
    handled: set[Place] = field(default_factory=set)
    dead: list[Place] = field(default_factory=list)
    deaths: int = 0
    now: float = 0.0
    waiting: set[Place] = field(default_factory=set)
    alone: set[Place] = field(default_factory=set)
    suspects_end: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.house.broker.topic("payments", 2)
        for number in range(self.messages):
            self.house.broker.send(
                raw(key=f"k-{number % 5}", tag="other" if number % 3 else "paid", queue=number % 2), topic="payments"
            )
        self.groups = self.house.groups
        self.groups.set_policy(GROUP, RetryPolicy((self.delay_s,) * max(1, self.attempts - 1), self.attempts))
        opened, broker = self.house.broker.opened, self.house.broker
        self.failed_messages = FailedMessages(
            self.groups, opened.topics, MessageLookups(broker.engine, opened.topics, opened.node),
            Administration(broker.engine, opened.topics, self.groups, broker.settings), FailedOffsets(),
            self.send_own, trio.lowlevel.checkpoint,
        )  # fmt: skip

    async def send_own(self, topic: str, messages: Sequence[RawMessage]) -> list[SendOutcome]:
        engine = self.house.broker.engine
        outcomes = engine.send(self.house.broker.opened.topics.get(topic), messages, own=True)
        self.house.broker.persist()
        return outcomes

    def live(self) -> bool:
        """Lives until nothing is left, or until a message kills; returns whether it survived."""
        assignment = self.groups.join(GROUP, MEMBER, {"payments": self.tags})
        order = {"order": "key"} if self.mode == "key" else {"mode": self.mode}
        options = MemberOptions(GROUP, MEMBER, {"payments": self.tags}, commit_interval_s=1, **order)  # type: ignore[arg-type]
        state = MemberState(options, DeliveryTracker())
        state.assigned(assignment.generation, assignment.queues)
        self.suspects_end = {each.queue: each.suspects_end for each in assignment.queues}
        hand: list[Delivery] = []
        self.alone, self.waiting, end = set(), set(), self.now + DAY_S
        while True:
            progress = self.chance.random() < 0.3 and self.hand_out_again(state)
            progress = self.pull(state) or progress
            while len(hand) < self.concurrency and (item := state.ready.take()) is not None:
                assert isinstance(item, Delivery)
                self.taken(item, hand)
                hand.append(item)
            if hand and (not progress or self.chance.random() < 0.5):
                message = hand.pop(self.chance.randrange(len(hand)))
                place = message.queue, message.queue_offset
                if self.failing.get(place, 0) > 0:
                    self.failing[place] -= 1
                    message.retry("no")
                elif place in self.deadly:
                    self.deaths += 1
                    return False
                else:
                    self.handled.add(place)
                    message.done()
                progress = True
            if self.chance.random() < 0.5 or not progress:
                progress = self.report(state) or progress
            if state.suspects.commit_due() or self.chance.random() < 0.2 or not progress:
                progress = self.commit(state) or progress
            if not progress and not self.hand_out_again(state):
                due = state.suspects.next_due(self.now)
                if due > end:
                    return True
                self.now = max(self.now, due)

    def taken(self, message: Delivery, hand: list[Delivery]) -> None:
        """Checks what is handed out against what is in hand."""
        place = message.queue, message.queue_offset
        others = [(each.queue, each.queue_offset) for each in hand]
        assert place not in others, "in hand twice"
        assert message.is_mine
        assert not self.alone & {*others}, "handed out beside a suspect"
        assert not others or place not in self.alone, "a suspect, handed out beside others"
        if self.mode != "parallel":
            keys = {(each.queue, each.key if self.mode == "key" else None) for each in hand}
            assert (message.queue, message.key if self.mode == "key" else None) not in keys
            same = [p for p in self.waiting if p[0] == place[0] and p < place]
            assert not any(self.mode == "sequential" or p[1] % 5 == place[1] % 5 for p in same), "before what failed"
        self.waiting.discard(place)

    def hand_out_again(self, state: MemberState) -> bool:
        return state.hand_out_again(self.now)

    def report(self, state: MemberState) -> bool:
        """Has all failures stored. What is dead is noted, what is to be tried again waits."""
        reports = state.failures()
        for reason, places in reports:
            named = [(window.queue, offset) for window, offset in places]
            if self.mode == "parallel":
                self.dead += named
                state.reported(places)
                continue
            request = state.failure_report(reason, places)
            assert isinstance(request, FailInPlace)
            for place, named_one, delay_s in zip(places, named, trio.run(self.failed, request), strict=True):
                self.alone.discard(named_one)
                if delay_s is None:
                    self.dead.append(named_one)
                    state.reported([place])
                else:
                    self.waiting.add(named_one)
                    state.suspects.suspend(*place, self.now + delay_s)
        return bool(reports)

    async def failed(self, request: FailInPlace) -> list[float | None]:
        return await self.failed_messages.fail_in_place(
            request.group, request.member, request.generation, request.places, request.reason
        )

    def wanted(self) -> set[Place]:
        """Returns all messages that the tags let through."""
        return {
            (message.queue, message.queue_offset)
            for queue in range(2)
            for message in self.house.broker.messages(queue, topic="payments", tags=self.tags)
        }

    def pull(self, state: MemberState) -> bool:
        pull = state.next_pull()
        if pull is None:
            return False
        records, pages, held = b"", [], []
        for window, want in zip(pull.windows, pull.request.wants, strict=True):
            most = min(pull.request.messages_max, self.page)
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
        alone = [window for window in pull.windows if window.committed < window.suspects_end]
        if alone and held:
            self.alone.add((alone[0].queue, held[0][1].first))
        if self.chance.random() < 0.3:
            assert not (alone and state.hand_out_again(self.now + 2 * DAY_S)), "a suspect travels"
        state.decode()
        return before != [window.next_offset for window in pull.windows]

    def commit(self, state: MemberState) -> bool:
        moved: list[tuple[Window, int]] = []
        for request, part in list(state.commits()):
            self.groups.commit(GROUP, MEMBER, request.generation, request.offsets)
            state.committed(part)
            self.alone -= {place for window, at in part for place in self.alone if place[0] == window.queue and place[1] < at}
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
    attempts: int, deadly: set[Place], concurrency: int, mode: str, tags: str | None, seed: int
) -> None:
    lives = Lives(attempts, deadly, concurrency, mode, random.Random(seed), tags)
    wanted = lives.wanted()
    met = deadly & wanted
    while not lives.live():
        assert lives.deaths <= max(2, attempts) * len(met), "a message killed more often than it has attempts"
    assert sorted(lives.dead) == sorted(met)
    assert lives.handled == wanted - met
    assert all(each.suspects_end == 0 for each in lives.groups.join(GROUP, MEMBER, {"payments": tags}).queues)


@given(
    attempts=st.integers(1, 4),
    deadly=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 8)), max_size=3),
    failing=st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 8)), st.integers(1, 6), max_size=4),
    concurrency=st.integers(1, 6),
    mode=st.sampled_from(["sequential", "key"]),
    delay_s=st.sampled_from([0.0, 1.0, 10 * DAY_S]),
    seed=st.integers(0, 1 << 32),
)
def test_what_fails_in_place_stops_only_what_waits_for_it_and_is_not_blamed_for_a_death(
    attempts: int, deadly: set[Place], failing: dict[Place, int], concurrency: int, mode: str, delay_s: float, seed: int
) -> None:
    lives = Lives(attempts, deadly, concurrency, mode, random.Random(seed), None, dict(failing), delay_s, 24, 4)
    wanted = lives.wanted()
    deaths_max = max(2, attempts) * len(deadly) + attempts * len(deadly & failing.keys())
    while not lives.live():
        assert lives.deaths <= deaths_max, "members die for ever"
    behind = {
        (queue, offset) for queue, offset in wanted for first, failed in lives.waiting
        if first == queue and failed <= offset
        and (mode == "sequential" or failed < lives.suspects_end[queue] or failed % 5 == offset % 5)
    }  # fmt: skip
    assert wanted - behind <= lives.handled | {*lives.dead}, "a message that waits for nothing was left"
    assert {*lives.dead} <= deadly | {place for place, times in failing.items() if times >= attempts}
    if delay_s < DAY_S:
        assert not lives.waiting
        assert {*lives.dead} >= deadly & wanted


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


def fails(house: House, offset: int, count: int = 1) -> None:
    """Counts a failure in place of a message of queue 0, as `FailedMessages` does."""
    member = house.groups.get(GROUP).members["a"]
    place = "orders", 0, offset
    member.attempts_before[place] = count - 1
    house.groups.offsets.attempts.raise_to(GROUP, *place, count)


def test_a_suspect_is_the_killer_although_another_queue_waits_for_what_failed_in_place(house: House) -> None:
    for _ in range(3):
        assigned(house)
        held(house, 0, 7)
        fails(house, 0)
        house.groups.handed_out(GROUP, "a", [(("orders", 1), HeldPage(0, 1, 0, 1))])
    queues = {each.queue: each for each in house.groups.join(GROUP, "a", {"orders": None}).queues}
    assert queues[1].killer == 0
    assert queues[0].killer is None


def test_a_message_that_failed_in_place_is_not_blamed_for_the_death_as_well(house: House) -> None:
    for count in range(1, 9):
        assert (assigned(house).suspects_end, assigned(house).killer) == (0, None)
        held(house, 0, 1)
        fails(house, 0, count)


def test_a_page_that_follows_what_failed_in_place_is_blamed(house: House) -> None:
    for _ in range(2):
        assigned(house)
        held(house, 0, 4)
        fails(house, 0)
        held(house, 4, 5)
    assert assigned(house).suspects_end == 5


def test_a_killer_is_none_while_it_has_attempts_left(house: House) -> None:
    for _ in range(3):
        assigned(house)
        held(house, 0, 1)
    assert assigned(house).killer == 0
    house.groups.set_policy(GROUP, RetryPolicy((1.0,), 5))
    assert (assigned(house).suspects_end, assigned(house).killer) == (0, None)


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
