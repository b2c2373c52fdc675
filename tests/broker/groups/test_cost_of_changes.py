"""What a change of a group costs: by what changes, not by its members times their topics. What it leaves is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.broker.groups import group
from eventstore.broker.groups.group import ConsumerGroup
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.groups.offsets import GroupOffsets
from eventstore.broker.groups.views import queues_of
from eventstore.broker.log.queue_bounds import QueueBounds
from eventstore.broker.topics import Topics
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.records.topic_names import retry_topic
from tests.broker.stepped import NoMessages, Stepped
from tests.instructions import instructions
from tests.simulated_disk import SimulatedDisk

TOPICS = 20
FEW, MANY = 6, 60


def groups(members: int) -> Groups:
    """A group whose members all read 20 topics of three queues."""
    opened = Stepped(SimulatedDisk(0)).opened
    for number in range(TOPICS):
        opened.topics.create(f"topic-{number:02}", 3)
    opened.topics.create(retry_topic("group"), 1)
    made = Groups(opened.offsets_document, opened.topics, NoMessages(), member_timeout_s=15)
    for number in range(members):
        made.join("group", f"member-{number:03}", wanted())
    return made


def wanted() -> dict[str, str | None]:
    return {f"topic-{number:02}": "paid | sent" for number in range(TOPICS)}


@pytest.mark.parametrize("change", ["join", "join again", "reset", "leave", "one topic"])
def test_a_change_costs_the_same_whether_a_group_has_few_members_or_many(change: str) -> None:
    def cost(members: int) -> int:
        made = groups(members)
        last = f"member-{members - 1:03}"
        changes = {
            "join": lambda: made.join("group", "new", wanted()),
            "join again": lambda: made.join("group", last, wanted()),
            "reset": lambda: made.reset("group", [("topic-00", 0, 0)]),
            "leave": lambda: made.leave("group", last),
            "one topic": lambda: made.topic_changed("topic-00"),
        }
        return instructions(changes[change])

    assert cost(MANY) < 1.2 * cost(FEW) + 40 * MANY, "a few instructions a member, none for each of its topics"


def test_a_join_takes_few_instructions_for_each_of_its_queues() -> None:
    def cost(queues: int) -> int:
        opened = Stepped(SimulatedDisk(0)).opened
        opened.topics.create("many", queues)
        made = Groups(opened.offsets_document, opened.topics, NoMessages(), member_timeout_s=15)
        made.join("group", "member", {"many": None})
        return instructions(lambda: made.join("group", "member", {"many": None}))

    assert cost(250) < cost(50) + 200 * 25


@pytest.mark.parametrize("from_end", [False, True])
def test_the_first_join_takes_few_instructions_for_each_queue(from_end: bool) -> None:
    """It reads one bound of each queue, the one that is its offset."""

    def cost(queues: int) -> int:
        broker = Stepped(SimulatedDisk(0))
        broker.topic("many", queues)
        opened = broker.opened
        offsets = GroupOffsets(opened.offsets_document, opened.topics, QueueBounds(opened.engine, opened.topics))
        return instructions(lambda: offsets.begin("group", "many", from_end=from_end))

    assert cost(250) < cost(50) + 200 * (50 if from_end else 20)


def test_a_join_that_would_get_too_many_queues_is_refused_before_any_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "ASSIGNED_QUEUES_MAX", 60)
    opened = Stepped(SimulatedDisk(0)).opened
    for number in range(4):
        opened.topics.create(f"topic-{number}", 20)
    made = Groups(opened.offsets_document, opened.topics, NoMessages(), member_timeout_s=15)
    topics: dict[str, str | None] = {f"topic-{number}": None for number in range(4)}

    def refused() -> None:
        with pytest.raises(InvalidArgument, match="would read 80 queues, allowed are 60"):
            made.join("group", "a", topics)

    few = instructions(refused)
    assert (made.by_name, made.offsets.count) == ({}, 0)
    opened.topics.add_queues("topic-0", 200)
    with pytest.raises(InvalidArgument, match="would read 280 queues"):
        assert instructions(lambda: made.join("group", "a", topics)) < few + 200
    assert (made.by_name, made.offsets.count) == ({}, 0)
    made.join("group", "a", {"topic-1": None, "topic-2": None})
    made.join("group", "b", {"topic-1": None, "topic-2": None, "topic-3": None})
    made.leave("group", "a")
    assert sum(map(len, made.by_name["group"].members["b"].queues.values())) == 60


def test_a_page_of_a_groups_queues_costs_what_it_shows() -> None:
    def cost(topics: int) -> int:
        opened = Stepped(SimulatedDisk(0)).opened
        for number in range(topics):
            opened.topics.create(f"topic-{number:02}", 50)
        made = Groups(opened.offsets_document, opened.topics, NoMessages(), member_timeout_s=15)
        made.join("group", "member", {f"topic-{number:02}": None for number in range(topics)})

        def page(skip: int) -> list[tuple[str, int, str | None]]:
            count, rows = queues_of(made, "group", NoMessages(), skip, 60)
            assert count == 50 * topics
            return [(row.topic, row.queue, row.member) for row in rows]

        everything = [(f"topic-{number:02}", queue, "member") for number in range(topics) for queue in range(50)]
        assert [row for skip in range(0, len(everything), 60) for row in page(skip)] == everything
        return instructions(lambda: page(70))

    assert cost(40) < cost(4) + 36 * 20


def test_saving_offsets_takes_no_instructions_for_each_of_them() -> None:
    def cost(queues: int) -> int:
        opened = Stepped(SimulatedDisk(0)).opened
        document = opened.offsets_document
        document.groups = {"group": {"topic": dict.fromkeys(range(queues), 7)}}
        took = instructions(lambda: document.write(document.tree()))
        document.groups = {}
        document.load()
        assert document.groups == {"group": {"topic": dict.fromkeys(range(queues), 7)}}
        return took

    assert cost(5_000) < cost(5) + 5_000


CHANGES = st.one_of(
    st.tuples(st.just("join"), st.sampled_from("abcde"), st.sets(st.sampled_from(["one", "two", "three"]), min_size=1)),
    st.tuples(st.sampled_from(["leave", "heartbeat"]), st.sampled_from("abcde")),
    st.tuples(st.sampled_from(["create", "delete", "add queues", "forget"]), st.sampled_from(["one", "two", retry_topic("g")])),
    st.tuples(st.just("time passes")),
)


@given(changes=st.lists(CHANGES, max_size=25))
def test_after_any_changes_each_queue_has_one_reader_of_its_topic_and_the_readers_have_equal_shares(
    changes: list[tuple[str, ...]],
) -> None:
    now = 0.0
    opened = Stepped(SimulatedDisk(0)).opened
    opened.topics.create("three", 2)
    made = Groups(opened.offsets_document, opened.topics, NoMessages(), member_timeout_s=15, clock=lambda: now)
    for change, *rest in changes:
        now += 10 * (change == "time passes")
        with contextlib.suppress(EventStoreError):
            apply(made, opened.topics, change, *rest)
        made.expire()
        if "g" in made.by_name:
            check(made.get("g"), made, opened.topics)


def apply(made: Groups, topics: Topics, change: str, name: str = "", wanted: Collection[str] = ()) -> None:
    if change == "join":
        made.join("g", name, dict.fromkeys(sorted(wanted)))
    elif change == "leave":
        made.leave("g", name)
    elif change == "heartbeat":
        made.heartbeat("g", name, 0)
    elif change == "forget":
        made.unsubscribe("g", name)
    elif change in ("create", "delete", "add queues"):
        {"create": lambda: topics.create(name, 3), "delete": lambda: topics.delete(name)}.get(
            change, lambda: topics.add_queues(name, 2)
        )()
        made.topic_changed(name)


def check(group: ConsumerGroup, made: Groups, topics: Topics) -> None:
    offsets = made.offsets.of("g")
    for topic in ("one", "two", "three", retry_topic("g")):
        deleted, own = group.deleted_topics.get(topic, 0), topic == retry_topic("g")
        readers = [each for each in group.members.values() if own or (topic in each.topics and each.sent_generation >= deleted)]
        shares = [each.queues.get(topic, []) for each in readers]
        due = topics.get(topic).readable if topic in offsets and topic in topics.by_name and readers else ()
        assert sorted(queue for share in shares for queue in share) == list(due)
        assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1
        others = [each for each in group.members.values() if each not in readers]
        assert not any(topic in each.queues for each in others)
    load = {each.id: sum(map(len, each.queues.values())) for each in group.members.values()}
    assert group.subscriptions.load == load
    assert group.members or not group.subscriptions.by_topic
