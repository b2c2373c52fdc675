"""Queries by types and tags, and commits that hold unless such an event has come up: the same in every way."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import anyio
import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, take

SMALL_FILES = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
COURSE, STUDENT = es.Query(tags=["course:c1"]), es.Query(tags=["student:s2"])
QUERIES = (
    COURSE,
    STUDENT,
    COURSE | STUDENT,
    es.Query(tags=["student:s2", "course:c1"]),
    es.Query(tags=["course:c1", "course:c1"]),
    es.Query(["Subscribed"]),
    es.Query(["Subscribed", "Left"], ["course:c2"]),
    es.Query(["Left"]) | es.Query(["Subscribed"], ["student:s1"]) | COURSE,
    es.Query(["Nothing"], ["course:c1"]),
    es.Query(tags=["course:"]),
    es.Query(),
)


def tagged(number: int, size: int = 10) -> es.NewEvent:
    tags = [[], ["course:c1"], [f"course:c{number % 4}", f"student:s{number % 3}"], ["stüdent:ß"]][number % 4]
    metadata = {"number": number} if number % 5 == 0 else None
    return es.NewEvent(("Subscribed", "Left", "Named")[number % 3], bytes(size), metadata, tags)


async def fill(subject: Subject, commits: int, size: int = 10) -> list[es.Event]:
    """Appends commits of one and two events to aggregates of one shard and of others; returns all events."""
    made = [
        es.Commit(f"a-{{{number % 3}}}", [tagged(number + each, size) for each in range(1 + number % 2)], es.ANY)
        for number in range(commits)
    ]
    for begin in range(0, commits, 50):
        await subject.store.append_many(made[begin : begin + 50])
    return await subject.all()


def passes(query: es.Query, event: es.Event) -> bool:
    """Says what a query means, in other words than the product."""
    return any((not types or event.type in types) and all(tag in event.tags for tag in tags) for types, tags in query.items)


async def check(subject: Subject, events: list[es.Event]) -> None:
    for query in QUERIES:
        wanted = [event for event in events if passes(query, event)]
        found, position = await subject.store.query(query)
        assert sorted(found) == sorted(wanted)
        assert [len(each) for each in subject.by_shard(found)] == [len(each) for each in subject.by_shard(wanted)]
        assert (await subject.store.query(query, position))[0] == []
        newest_first = await collect(subject.store.read_all(query=query, backwards=True))
        assert subject.by_shard(newest_first) == [each[::-1] for each in subject.by_shard(wanted)]
        few = await collect(subject.store.read_all(query=query, limit=2))
        assert len(few) == min(2, len(wanted))
        assert all(passes(query, event) for event in few)


@contract
async def test_events_have_the_tags_that_they_were_given(subject: Subject) -> None:
    event = es.NewEvent("T", {"x": 1}, {"m": 2}, ["b", "ä", "a", "b"])
    assert (event.tags, event.metadata) == (("a", "b", "ä"), b'{"m":2}')
    done = await subject.store.append("a", [event, es.NewEvent("T", b"", None, ("one",)), es.NewEvent("T", b"", b"")], 0, "c-1")
    found = await collect(subject.store.read("a"))
    assert [each.tags for each in found] == [("a", "b", "ä"), ("one",), ()]
    assert [each.metadata for each in found] == [b'{"m":2}', None, b""]
    assert found[0].metadata_json() == {"m": 2}
    again = es.NewEvent("T", {"x": 1}, {"m": 2}, {"a", "b", "ä"})
    rest = [es.NewEvent("T", b"", None, ["one"]), es.NewEvent("T", b"", b"")]
    assert await subject.store.append("a", [again, *rest], 0, "c-1") == done._replace(duplicate=True)
    with pytest.raises(es.CommandIdReused):
        await subject.store.append("a", [es.NewEvent("T", {"x": 1}, {"m": 2}, ["a"]), *rest], 0, "c-1")


@contract(**SMALL_FILES)
async def test_a_query_finds_what_its_items_say_in_unsorted_and_sorted_files(subject: Subject) -> None:
    events = await fill(subject, 40)
    await check(subject, events)
    events = await fill(subject, 400, 700)
    await subject.sorted()
    await check(subject, events)
    await subject.restart()
    await check(subject, events)


@contract
async def test_a_subscription_to_a_query_gets_its_events_and_no_others(subject: Subject) -> None:
    before = [each for each in await fill(subject, 20) if passes(COURSE | STUDENT, each)]
    stream = subject.store.subscribe(query=COURSE | STUDENT)
    stored = await take(stream, len(before) + 1)
    assert sorted(each for each in stored if isinstance(each, es.Event)) == sorted(before)
    assert isinstance(stored[-1], es.CaughtUp)
    await subject.store.append("a-{1}", [es.NewEvent("T", b"", tags=["course:c9"]), es.NewEvent("T", b"", tags=["x"])], es.ANY)
    await subject.store.append("a-{2}", [es.NewEvent("T", b"", tags=["x", "course:c1"])], es.ANY)
    (live,) = await take(stream, 1)
    assert live.tags == ("course:c1", "x")


@contract(**SMALL_FILES)
async def test_a_commit_holds_unless_an_event_has_come_up_that_its_query_lets_pass(subject: Subject) -> None:
    store, number = subject.store, 0
    write = es.Write("decided-{1}", [es.NewEvent("Decided", b"")], es.ANY)

    async def commit(**condition: Any) -> str:
        nonlocal number
        number += 1
        try:
            await store.commit([write], command_id=f"c-{number}", **condition)
        except es.ConditionFailed as error:
            return f"{error.fields['type']} of {error.fields['aggregate_id']}"
        return "committed"

    for _ in range(2):
        _, start = await store.query(COURSE)
        await store.append("s-{1}", [es.NewEvent("Subscribed", b"", tags=["course:c1", "student:s1"])], es.ANY)
        _, now = await store.query(COURSE)
        assert await commit(unless=COURSE, after=start) == "Subscribed of s-{1}"
        assert await commit(unless=COURSE) == "Subscribed of s-{1}"
        assert await commit(unless=es.Query(["Subscribed"]), after=start) == "Subscribed of s-{1}"
        assert await commit(unless=es.Query(tags=["x"]) | es.Query(["Subscribed"], ["student:s1"])) == "Subscribed of s-{1}"
        assert await commit(unless=es.Query(), scope="{1}", after=start) == "Subscribed of s-{1}"
        assert await commit(unless=COURSE, after=now) == "committed"
        assert await commit(unless=es.Query(["Left"], ["course:c1"]), after=start) == "committed"
        assert await commit(unless=es.Query(tags=["course:c1", "student:s2"]), after=start) == "committed"
        assert await commit(unless=COURSE, after=start, scope="other-{1}") == "Subscribed of s-{1}"
        await fill(subject, 300, 700)  # the same again about files that are sorted
        await subject.sorted()


@contract
async def test_events_of_other_slots_do_not_count(subject: Subject) -> None:
    _, start = await subject.store.query(COURSE)
    await subject.store.append("s-{2}", [es.NewEvent("Subscribed", b"", tags=["course:c1"])], 0)
    write = es.Write("d-{1}", [es.NewEvent("Decided", b"")], 0)
    (done,) = await subject.store.commit([write], unless=COURSE, after=start, command_id="c-1")
    assert done.version == 1
    with pytest.raises(es.ConditionFailed):
        await subject.store.commit([es.Write("d-{2}", [tagged(1)], 0)], unless=COURSE, after=start)


@contract
async def test_a_repeated_command_has_its_first_outcome_though_its_own_events_pass_the_query(subject: Subject) -> None:
    _, start = await subject.store.query(COURSE)
    for writes in (
        [es.Write("s-{1}", [es.NewEvent("Subscribed", b"", tags=["course:c1"])], 0)],
        [es.Write(f"{name}-{{2}}", [es.NewEvent("Subscribed", b"", tags=["course:c1"])], 0) for name in "st"],
    ):
        first = await subject.store.commit(writes, unless=COURSE, after=start, command_id="c-1")
        again = await subject.store.commit(writes, unless=COURSE, after=start, command_id="c-1")
        assert again == [each._replace(duplicate=True) for each in first]
        with pytest.raises(es.ConditionFailed):
            await subject.store.commit(writes, unless=COURSE, after=start, command_id="c-2")


@contract
async def test_of_commits_that_decide_on_the_same_place_one_is_written(subject: Subject) -> None:
    _, start = await subject.store.query(COURSE)
    outcomes: list[str] = []

    async def one(number: int) -> None:
        event = es.NewEvent("Subscribed", b"", tags=["course:c1"])
        try:
            await subject.store.commit([es.Write(f"s-{number}-{{1}}", [event], 0)], unless=COURSE, after=start)
            outcomes.append("committed")
        except es.ConditionFailed:
            outcomes.append("failed")

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(one, number)
    assert sorted(outcomes) == ["committed", *["failed"] * 11]
    assert len((await subject.store.query(COURSE))[0]) == 1


@contract
async def test_a_place_of_another_history_is_refused(subject: Subject) -> None:
    await subject.store.append("s-{1}", [tagged(1)], 0)
    write = [es.Write("d-{1}", [tagged(2)], 0)]
    async with subject.another() as other:
        _, position = await other.query(COURSE)
        if subject.embedded:
            with pytest.raises(es.InvalidArgument, match="place in cluster"):
                await subject.store.commit(write, unless=COURSE, after=position)
    _, position = await subject.store.query(COURSE)
    shards = {number: (place, "00000000" if digits else "") for number, (place, digits) in position.shards.items()}
    for after in (es.Position(position.cluster, position.layout, shards), *([] if subject.is_several else [99])):
        with pytest.raises(es.Diverged):
            await subject.store.commit(write, unless=COURSE, after=after)
    assert await subject.store.version("d-{1}") == 0


@contract
async def test_a_place_of_another_store_shard_or_layout_is_refused_by_field(subject: Subject) -> None:
    await subject.store.append("s-{1}", [tagged(1)], 0)
    _, position = await subject.store.query(COURSE)
    write = es.Write("d-{1}", [tagged(2)], 0)
    places = [
        es.Position("ab" * 16, position.layout, position.shards),
        es.Position(position.cluster, position.layout, {**position.shards, 99: (1, "")}),
        es.Position(position.cluster, position.layout, {99: (1, "")}),
    ]
    if not subject.is_several:  # a cluster that may have been split meanwhile is asked for its map first
        places.append(es.Position(position.cluster, position.layout + 7, position.shards))
    for after in places:
        with pytest.raises((es.InvalidArgument, es.ConnectionLost)) as error:
            await subject.store.commit([write], unless=COURSE, after=after)
        assert error.value.fields["field"] == "after"
    assert await subject.store.version("d-{1}") == 0


@contract
async def test_bad_tags_and_queries_are_refused_by_field(subject: Subject) -> None:
    store, write = subject.store, es.Write("a-{1}", [tagged(1)], 0)
    for make, field in (
        (lambda: es.NewEvent("T", b"", tags="course"), "tags"),
        (lambda: es.NewEvent("T", b"", tags=[""]), "tags"),
        (lambda: es.NewEvent("T", b"", tags=["x" * 256]), "tags"),
        (lambda: es.NewEvent("T", b"", tags=["ä" * 128]), "tags"),
        (lambda: es.NewEvent("T", b"", tags=[7]), "tags"),
        (lambda: es.NewEvent("T", b"", tags=7), "tags"),
        (lambda: es.NewEvent("T", b"", tags=["a\nb"]), "tags"),
        (lambda: es.NewEvent("T", b"", tags=["\ud800"]), "tags"),
        (lambda: es.NewEvent("T", b"", tags=[f"t-{number}" for number in range(33)]), "tags"),
        (lambda: es.Query("Subscribed"), "types"),
        (lambda: es.Query([""]), "types"),
        (lambda: es.Query([f"T-{number}" for number in range(257)]), "types"),
        (lambda: es.Query(tags=["", "a"]), "tags"),
    ):
        with pytest.raises(es.InvalidArgument) as error:
            make()
        assert error.value.fields["field"] == field
    many = reduce(or_, [es.Query(tags=[f"t-{number}"]) for number in range(64)])
    with pytest.raises(es.InvalidArgument, match="65 items"):
        many | COURSE
    several = [write, es.Write("b-{2}", [tagged(1)], 0)]
    for writes, condition, field in (
        ([write], {"unless": "course:c1"}, "query"),
        ([write], {"unless": es.Query()}, "scope"),
        ([write], {"unless": COURSE | es.Query()}, "scope"),
        ([write], {"scope": "{1}"}, "scope"),
        ([write], {"after": 3}, "after"),
        ([write], {"unless": COURSE, "after": es.END}, "after"),
        ([write], {"unless": COURSE, "after": -1}, "after"),
        ([write], {"unless": COURSE, "after": True}, "after"),
        ([write], {"unless": COURSE, "after": "3"}, "after"),
        ([write], {"unless": COURSE, "scope": ""}, "scope"),
        ([write], {"unless": COURSE, "scope": "x" * 256}, "scope"),
        ([write], {"unless": COURSE, "scope": 7}, "scope"),
        ([], {"unless": COURSE}, "writes"),
        ([], {"unless": COURSE, "scope": "{1}"}, "writes"),
        ([write, write], {"unless": COURSE}, "aggregate_id"),
        ([write], {"unless": COURSE, "scope": "$courses"}, "scope"),
        (several, {"unless": COURSE}, "scope"),
    ):
        with pytest.raises(es.InvalidArgument) as error:
            await store.commit(writes, **condition)
        assert error.value.fields["field"] == field
    with pytest.raises(es.InvalidArgument, match="types beside a query"):
        await collect(store.read_all(types=["A"], query=COURSE))
    assert await store.version("a-{1}") == 0
