"""Consumer groups: assignment, fencing by generation, and the bounds of offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.broker.groups import offsets
from eventstore.broker.groups.assignment import assign_in_turns, assign_queues
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.log.queue_bounds import QueueBounds
from eventstore.broker.opening import OFFSETS
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.errors import Corrupt, FolderRefused, InvalidArgument, Rebalanced, UnknownGroup, UnknownTopic
from tests.broker.stepped import DATA, NoMessages, Stepped, raw
from tests.simulated_disk import SimulatedDisk


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class House:
    """A broker with a topic of four queues with ten messages each, and its groups."""

    clock: Clock = field(default_factory=Clock)
    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk(0))

    def __post_init__(self) -> None:
        self.broker = Stepped(self.disk)
        self.broker.topic("orders", 4)
        self.broker.send(*(raw(queue=number % 4) for number in range(40)))
        self.groups = self.made()

    def made(self) -> Groups:
        opened = self.broker.opened
        bounds = QueueBounds(opened.engine, opened.topics)
        return Groups(opened.offsets_document, opened.topics, bounds, member_timeout_s=15, clock=self.clock)

    def queues(self, member: str) -> list[int]:
        return self.groups.get("billing").members[member].queues["orders"]


@given(
    queues=st.integers(0, 40),
    members=st.sets(st.sampled_from([f"m{number}" for number in range(12)]), min_size=1),
    before=st.lists(st.integers(0, 13), max_size=50),
)
def test_every_queue_has_one_reader_and_the_assignment_is_balanced_and_sticky(
    queues: int, members: set[str], before: list[int]
) -> None:
    held: dict[str, list[int]] = {}
    for queue, holder in enumerate(before):
        held.setdefault(f"m{holder}", []).append(queue)
    assigned = assign_queues(range(queues), members, held, {})
    assert sorted(queue for own in assigned.values() for queue in own) == list(range(queues))
    sizes = sorted(len(assigned.get(member, [])) for member in members)
    assert sizes[-1] - sizes[0] <= 1
    low, extra = divmod(queues, len(members))
    mine = [len({queue for queue in held.get(member, ()) if queue < queues}) for member in members]
    fewest_moves = queues - sum(min(count, low) for count in mine) - min(extra, sum(count > low for count in mine))
    moves = sum(queue not in held.get(member, ()) for member, own in assigned.items() for queue in own)
    assert moves == fewest_moves


@given(
    queues=st.integers(0, 12),
    shards=st.integers(2, 5),
    members=st.sets(st.sampled_from([f"m{number}" for number in range(9)]), min_size=1),
    before=st.lists(st.integers(0, 10), max_size=20),
)
def test_over_the_shards_of_a_cluster_each_queue_has_one_reader_and_members_have_as_many_but_one(
    queues: int, shards: int, members: set[str], before: list[int]
) -> None:
    held: dict[str, list[int]] = {}
    for queue, holder in enumerate(before):
        held.setdefault(f"m{holder}", []).append(queue)
    assigned = [assign_in_turns(range(queues), members, held, "orders", shard) for shard in range(shards)]
    for one in assigned:
        assert sorted(queue for own in one.values() for queue in own) == list(range(queues))
        sizes = [len(one.get(member, [])) for member in members]
        assert max(sizes) - min(sizes) <= 1
        low = queues // len(members)
        for member in members:  # what is its own whatever the turn, it keeps
            mine = [queue for queue in held.get(member, ()) if queue < queues]
            assert len({*mine} & {*one.get(member, [])}) >= min(len(mine), low)
    totals = [sum(len(one.get(member, [])) for one in assigned) for member in members]
    assert max(totals) - min(totals) <= 1


@given(changes=st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=12), queues=st.integers(1, 7))
def test_members_that_come_and_go_have_as_many_queues_of_all_shards_but_one(
    changes: list[tuple[str, bool]], queues: int
) -> None:
    shards = []
    for shard in range(3):
        opened = Stepped(SimulatedDisk(0)).opened
        opened.topics.create("orders", queues)
        groups = Groups(opened.offsets_document, opened.topics, NoMessages(), member_timeout_s=15, shard=shard)
        shards.append(groups)
        for member, joins in changes:
            if joins:
                groups.join("billing", member, {"orders": None})
            elif "billing" in groups.by_name:
                groups.leave("billing", member)
    members = shards[0].by_name["billing"].members if "billing" in shards[0].by_name else {}
    held = [each.by_name["billing"].members[name].queues.get("orders", []) for each in shards for name in members]
    assert not members or sum(map(len, held)) == 3 * queues
    totals = [sum(len(own) for own in held[place :: len(members)]) for place in range(len(members))]
    assert not members or max(totals) - min(totals) <= 1


def test_joining_leaving_and_expiring_rebalance_and_begin_a_generation() -> None:
    house = House()
    first = house.groups.join("billing", "a", {"orders": None})
    assert [each.queue for each in first.queues] == [0, 1, 2, 3]
    house.clock.now = 10
    second = house.groups.join("billing", "b", {"orders": None})
    assert (house.queues("a"), house.queues("b")) == ([0, 1], [2, 3])
    assert second.generation > first.generation
    news = house.groups.heartbeat("billing", "a", first.generation)
    assert news is not None
    assert [each.queue for each in news.queues] == [0, 1]
    assert house.groups.heartbeat("billing", "a", news.generation) is None
    house.clock.now = 20
    house.groups.heartbeat("billing", "b", second.generation)
    house.clock.now = 26
    assert house.groups.expire() == [("billing", "a")]
    assert house.queues("b") == [0, 1, 2, 3]
    with pytest.raises(Rebalanced):
        house.groups.heartbeat("billing", "a", news.generation)
    house.groups.leave("billing", "b")
    assert house.groups.get("billing").members == {}


def test_a_commit_of_an_old_generation_is_refused_and_changes_nothing() -> None:
    house = House()
    first = house.groups.join("billing", "a", {"orders": None})
    house.groups.commit("billing", "a", first.generation, [("orders", 0, 4), ("orders", 3, 2)])
    second = house.groups.join("billing", "b", {"orders": None})
    before = {topic: dict(queues) for topic, queues in house.groups.offsets.document.groups["billing"].items()}
    for member, generation, queue in (
        ("a", first.generation, 0), ("a", second.generation, 3), ("b", second.generation, 0), ("c", second.generation, 0),
    ):  # fmt: skip
        with pytest.raises(Rebalanced):
            house.groups.commit("billing", member, generation, [("orders", queue, 9)])
    assert house.groups.offsets.document.groups["billing"] == before
    moved = next(each for each in second.queues if each.queue == 3)
    assert moved.offset == 2, "the successor continues at the last commit"
    with pytest.raises(UnknownGroup):
        house.groups.commit("other", "a", 1, [])


def test_an_offset_moves_back_only_by_a_reset_and_never_beyond_the_log() -> None:
    house = House()
    generation = house.groups.join("billing", "a", {"orders": None}).generation
    commit = house.groups.commit
    assert commit("billing", "a", generation, [("orders", 0, 99)])[0].offset == 10
    back = commit("billing", "a", generation, [("orders", 0, 3)])[0]
    assert (back.offset, back.clamped) == (10, True)
    assert house.groups.reset("billing", [("orders", 0, 3)])[0].offset == 3
    with pytest.raises(Rebalanced):
        commit("billing", "a", generation, [("orders", 0, 8)])
    with pytest.raises(InvalidArgument):
        house.groups.reset("billing", [("orders", 0, -1)])


def test_a_topic_that_a_group_no_longer_reads_can_be_forgotten_and_holds_back_no_deletion() -> None:
    house = House()
    house.groups.join("billing", "a", {"orders": None})
    assert house.groups.offsets.unconsumed("orders", 0, 5) == "billing"
    with pytest.raises(InvalidArgument, match="reads"):
        house.groups.unsubscribe("billing", "orders")
    house.groups.leave("billing", "a")
    house.groups.unsubscribe("billing", "orders")
    assert house.groups.offsets.unconsumed("orders", 0, 5) is None
    assert house.groups.offsets.document.groups["billing"] == {}


def test_members_with_other_tags_for_the_same_topic_are_refused() -> None:
    house = House()
    house.groups.join("billing", "a", {"orders": "paid | sent"})
    house.groups.join("billing", "b", {"orders": "sent|paid"})
    with pytest.raises(
        InvalidArgument, match=r"wants the tags 'paid \| sent' of 'orders'; all members must want the same: stop"
    ):
        house.groups.join("billing", "c", {"orders": None})
    with pytest.raises(UnknownTopic):
        house.groups.join("billing", "c", {"nothing": None})
    with pytest.raises(InvalidArgument):
        house.groups.join("a/b", "c", {"orders": None})
    assert sorted(house.groups.get("billing").members) == ["a", "b"]


def test_generations_grow_across_restarts_and_offsets_come_from_the_copy_if_the_document_is_damaged() -> None:
    house = House()
    first = house.groups.join("billing", "a", {"orders": None})
    house.groups.commit("billing", "a", first.generation, [("orders", 1, 5)])
    progress = house.groups.offsets.document
    progress.write(progress.tree())
    house.broker = house.broker.reopen()
    again = house.made().join("billing", "a", {"orders": None})
    assert again.generation > first.generation
    assert [each.offset for each in again.queues] == [0, 5, 0, 0]
    house.broker.close()
    house.disk.replace(DATA / OFFSETS, b"{ rubbish")
    recovered = OffsetsDocument(house.disk, DATA / OFFSETS)
    recovered.load()
    assert recovered.groups["billing"]["orders"][1] == 5
    house.disk.replace(DATA / f"{OFFSETS}.previous", b"[]")
    with pytest.raises(Corrupt):
        OffsetsDocument(house.disk, DATA / OFFSETS).load()
    house.disk.remove(DATA / OFFSETS)
    house.disk.remove(DATA / f"{OFFSETS}.previous")
    with pytest.raises(FolderRefused, match="is missing"):
        OffsetsDocument(house.disk, DATA / OFFSETS).load()


def test_a_topic_that_is_deleted_and_created_again_between_two_heartbeats_is_noticed() -> None:
    house = House()
    first = house.groups.join("billing", "a", {"orders": None})
    for change in (house.broker.opened.topics.delete, lambda name: house.broker.opened.topics.create(name, 1)):
        change("orders")
        house.groups.topic_changed("orders")
    newcomer = house.groups.join("billing", "b", {"orders": None})
    assert [each.queue for each in newcomer.queues] == [0], "a member without old messages reads the new topic at once"
    house.groups.leave("billing", "b")
    told = house.groups.heartbeat("billing", "a", first.generation)
    assert told is not None
    assert told.queues == (), "it holds messages of the deleted topic"
    with pytest.raises(Rebalanced):
        house.groups.commit("billing", "a", told.generation, [("orders", 0, 5)])
    news = house.groups.heartbeat("billing", "a", told.generation)
    assert news is not None
    assert [(each.queue, each.offset) for each in news.queues] == [(0, 0)]
    assert house.groups.heartbeat("billing", "a", news.generation) is None


def test_a_topic_that_is_replaced_while_a_member_is_expired_is_noticed_when_it_joins_again() -> None:
    house = House()
    house.groups.join("billing", "a", {"orders": None})
    house.clock.now = 15
    assert house.groups.expire() == [("billing", "a")]
    for change in (house.broker.opened.topics.delete, lambda name: house.broker.opened.topics.create(name, 1)):
        change("orders")
        house.groups.topic_changed("orders")
    back = house.groups.join("billing", "a", {"orders": None})
    assert back.queues == (), "it holds messages of the deleted topic"
    news = house.groups.heartbeat("billing", "a", back.generation)
    assert news is not None
    assert [(each.queue, each.offset) for each in news.queues] == [(0, 0)]
    house.clock.now = 30
    house.groups.expire()
    again = house.groups.join("billing", "a", {"orders": None})
    assert [each.queue for each in again.queues] == [0], "it got this assignment"


def test_a_member_may_join_again_while_its_topic_is_deleted_and_a_new_member_is_refused() -> None:
    house = House()
    house.groups.join("billing", "a", {"orders": None})
    house.broker.opened.topics.delete("orders")
    house.groups.topic_changed("orders")
    house.clock.now = 15
    house.groups.expire()
    waiting = house.groups.join("billing", "a", {"orders": None})
    assert waiting.queues == ()
    with pytest.raises(UnknownTopic):
        house.groups.join("others", "a", {"orders": None})
    house.broker.topic("orders", 1)
    house.groups.topic_changed("orders")
    news = house.groups.heartbeat("billing", "a", waiting.generation)
    assert news is not None
    assert [(each.topic, each.queue, each.offset) for each in news.queues] == [("orders", 0, 0)]


def test_failures_in_place_are_counted_until_the_offset_passes_them_or_their_message_is_lost() -> None:
    house = House()
    groups = house.groups
    attempts = groups.offsets.attempts
    generation = groups.join("billing", "a", {"orders": None}).generation
    for offset in (1, 4, 7):
        assert attempts.raise_to("billing", "orders", 0, offset, 2) == 2
    assert attempts.raise_to("billing", "orders", 0, 4, 1) == 2, "a report that comes again changes nothing"
    groups.commit("billing", "a", generation, [("orders", 0, 3)])
    assert [attempts.of("billing", "orders", 0, offset) for offset in (1, 4, 7)] == [0, 2, 2]
    document = house.broker.opened.offsets_document
    document.write(document.tree())
    document.attempts = {}
    document.load()
    assert attempts.of("billing", "orders", 0, 7) == 2
    attempts.raise_to("billing", "orders", 0, 10, 1)  # beyond the end, as after a crash that lost the end of the log
    groups.offsets.clamp()
    assert [attempts.of("billing", "orders", 0, offset) for offset in (4, 7, 10)] == [2, 2, 0]
    groups.reset("billing", [("orders", 0, 5)])
    assert document.attempts == {}


def test_the_offsets_of_all_groups_are_bounded_and_a_join_beyond_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 10)
    house = House()
    groups = house.groups
    for name in ("a", "b"):
        groups.join(name, "m", {"orders": None})  # four queues each
    with pytest.raises(InvalidArgument, match="all groups together have 8 offsets") as refused:
        groups.join("c", "m", {"orders": None})
    assert (refused.value.limit, refused.value.value) == (10, 12)
    assert groups.by_name.keys() == house.broker.opened.offsets_document.groups.keys() == {"a", "b"}
    groups.join("b", "n", {"orders": None})  # a member more takes no more offsets
    groups.reset("b", [("orders", 1, 0)])
    assert groups.offsets.count == 8
    groups.leave("a", "m")
    groups.unsubscribe("a", "orders")
    assert groups.offsets.count == 4
    groups.join("c", "m", {"orders": None})
    for member in ("m", "n"):
        groups.leave("b", member)
    groups.delete("b")
    assert groups.offsets.count == house.made().offsets.count == 4


def test_a_group_does_not_read_the_topic_of_its_dead_letters() -> None:
    house = House()
    house.broker.topic("failed", 1)
    groups, policy = house.groups, RetryPolicy((1.0,), dead_letters="failed")
    groups.join("billing", "m", {"orders": None, "failed": None})
    with pytest.raises(InvalidArgument, match="'failed' takes the dead letters of group 'billing', which reads it"):
        groups.set_policy("billing", policy)
    assert groups.policy("billing").dead_letters is None
    groups.leave("billing", "m")
    groups.set_policy("billing", policy)
    with pytest.raises(InvalidArgument, match="let another group read them"):
        groups.join("billing", "m", {"failed": None})
    groups.join("billing", "m", {"orders": None})
    groups.join("repair", "m", {"failed": None})
