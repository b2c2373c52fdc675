"""Commands that are decided on a query: in the server and in workers, ahead of the disk, under conflict."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import eventstore as es
from eventstore.domain.decisions import Decisions, QueryPlace
from eventstore.domain.runtime import decide
from eventstore.records.slots import number_of_slot, slot_of
from tests.server.commands.domain_hosts import DomainHost
from tests.server.commands.enrolments import MOST, Enrol, EnrolSlowly, Note, Offer, Rename, app
from tests.server.conftest import Begin

DOMAIN = "tests.server.commands.enrolments:app"
SCOPE = "{courses}"


def offer(course: str, places: int) -> Offer:
    return Offer(f"course-{SCOPE}-{course}", course, places)


def enrol(course: str, student: str, kind: Any = Enrol) -> Any:
    return kind(f"enrolment-{SCOPE}-{course}-{student}", course, student)


def enrolled(running: DomainHost) -> list[tuple[str, str]]:
    with es.blocking.connect(running.store_address) as store:
        events = [event.json() for event in store.read_all(types=["Enrolled"])]
    return [(event["course"], event["student"]) for event in events]


@pytest.mark.parametrize("kind", [Enrol, EnrolSlowly])
def test_a_rule_over_aggregates_holds(host: Begin, kind: Any) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        done = store.send(offer("c1", 2), "o", metadata={"by": "me"})
        assert (done.aggregate_id, done.version, done.duplicate) == (f"course-{SCOPE}-c1", 1, False)
        store.send(enrol("c1", "s1", kind))
        for student, code in (("s1", "enrolled"), ("s2", None), ("s3", "full")):
            if code is None:
                assert store.send(enrol("c1", student, kind)).version == 1
            else:
                with pytest.raises(es.Rejected) as caught:
                    store.send(enrol("c1", student, kind))
                assert caught.value.fields["reason"] == code
        for course in ("c2", "c3", "c4"):
            store.send(offer(course, 9))
        for course in ("c2", "c3"):
            store.send(enrol(course, "s1", kind))
        with pytest.raises(es.Rejected, match="busy"):
            store.send(enrol("c4", "s1", kind))
        with pytest.raises(es.Rejected, match="no such course"):
            store.send(enrol("c5", "s1", kind))
    assert enrolled(running) == [("c1", "s1"), ("c1", "s2"), ("c2", "s1"), ("c3", "s1")]
    (event,) = running.events(f"course-{SCOPE}-c1")
    assert (event.tags, event.metadata_json(), event.command_id) == (("course:c1",), {"by": "me"}, "o")


def test_a_repetition_has_the_first_outcome_also_if_it_would_be_refused_now(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        store.send(offer("c1", 1))
        done = store.send(enrol("c1", "s1"), "k")
        for _ in range(2):
            assert store.send(enrol("c1", "s1"), "k")[:4] == done._replace(duplicate=True)[:4]
            both = store.send_many([(enrol("c1", "s1"), "k")] * 2 + [(enrol("c1", "s2"), "other")])
            assert [type(each) for each in both] == [es.Committed, es.Committed, es.Rejected]
            running.restart()
    assert enrolled(running) == [("c1", "s1")]


def test_one_command_id_for_two_aggregates_of_a_scope_is_two_commands(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        done = store.send_many([(offer("c1", 1), "k"), (offer("c2", 1), "k"), (offer("c1", 1), "k")])
        assert [type(each) for each in done] == [es.Committed] * 3
        assert [each.aggregate_id[-2:] for each in done if isinstance(each, es.Committed)] == ["c1", "c2", "c1"]


def test_what_changes_nothing_or_fails_stores_nothing_and_says_why(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        assert isinstance(store.send(offer("c1", 0)), es.Unchanged)
        with pytest.raises(es.HandlerFailed, match="a bug"):
            store.send(offer("c1", -1))
        with pytest.raises(es.HandlerFailed, match="no query"):
            store.send(Note(f"n-{SCOPE}", "c1", "raise"))
        with pytest.raises(es.HandlerFailed, match="it must return a Query"):
            store.send(Note(f"n-{SCOPE}", "c1", "nothing"))
        with pytest.raises(es.InvalidArgument, match="the limit is 65536"):
            store.send(Note(f"n-{SCOPE}", "c1", "large"))
        store.send(offer("c1", 1))
        store.send(Note(f"n-{SCOPE}", "c1", "after"))
        store.send(Note(f"n-{SCOPE}", "c1", "and again"))
    assert [event.json()["text"] for event in running.events(f"n-{SCOPE}")] == ["after, 1 places", "and again, 1 places"]


def test_what_others_write_is_decided_on(host: Begin) -> None:
    running = host(domain=DOMAIN)

    def theirs(course: str, student: str, scope: str = SCOPE) -> None:
        event = es.NewEvent("Enrolled", {"course": course, "student": student}, tags=[f"course:{course}", f"student:{student}"])
        other.append(f"theirs-{scope}-{course}-{student}", [event], 0)

    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        store.send(offer("c1", 3))
        store.send(enrol("c1", "s1"))
        theirs("c1", "s2")
        theirs("c1", "s9", "{elsewhere}")  # of another scope: it does not count
        assert store.send(enrol("c1", "s3")).version == 1
        with pytest.raises(es.Rejected, match="full"):
            store.send(enrol("c1", "s4"))
        store.send(offer("c2", 1))
        theirs("c2", "s5")
        with pytest.raises(es.Rejected, match="enrolled"):
            store.send(enrol("c2", "s5"))


def test_a_model_in_memory_is_no_reason_to_accept_or_to_refuse(host: Begin) -> None:
    running = host(domain=DOMAIN)

    def offered(places: int) -> None:
        other.append(f"x-{SCOPE}", [es.NewEvent("Offered", {"course": "c1", "places": places}, tags=["course:c1"])], es.ANY)

    name = f"n-{SCOPE}"
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        for places in (1, 2, 3):
            offered(places)
            store.send(Note(name, "c1", f"unless {places - 1}"))  # as it was before, it would be refused
            with pytest.raises(es.Rejected):
                store.send(Note(name, "c1", f"unless {places}"))
            offered(places + 10)
            store.send(Note(name, "c1", "now"))
            offered(places)
            store.send(Note(name, "c1", "now"))
    expected = [(f"unless {n - 1}, {n} places", f"now, {n + 10} places", f"now, {n} places") for n in (1, 2, 3)]
    assert [event.json()["text"] for event in running.events(name)] == [text for texts in expected for text in texts]


def test_decisions_on_each_other_wait_and_others_run_ahead_so_none_conflicts(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        courses = [f"c{number}" for number in range(3)]
        commands: list[tuple[object, str]] = [(offer(course, 9), f"o-{course}") for course in courses]
        commands += [(enrol(courses[at % 3], f"s{at}"), f"e-{at}") for at in range(30)]
        commands += [(Note(f"n-{SCOPE}", "c1", f"{at}"), f"n-{at}") for at in range(10)]
        outcomes = store.send_many(commands)
        stats = store.stats()
    assert Counter(type(each) for each in outcomes) == {es.Committed: 3 + 27 + 10, es.Rejected: 3}
    assert (stats["command_conflicts"], stats["command_reruns"]) == (0, 0)


def test_an_aggregate_that_a_decision_has_written_is_refused_on_what_it_is_now(host: Begin) -> None:
    running = host(domain=DOMAIN)
    with running.connect() as store:
        name = f"course-{SCOPE}-c1"
        store.send(Rename(name, "first"))
        store.send(offer("c1", 7))
        with pytest.raises(es.Rejected, match="so it is"):
            store.send(Rename(name, "of 7"))
        assert store.send(Rename(name, "first")).version == 3


def test_nothing_builds_on_a_decision_that_comes_between_two_commands_of_an_aggregate(host: Begin) -> None:
    running, name = host(domain=DOMAIN), f"n-{SCOPE}"
    with running.connect() as store:
        store.send(Rename(name, "first"), "k")
        store.send(Note(f"m-{SCOPE}", "c1", "so the model is in memory"))
        store.send(Rename(name, "second"))
        # the repetition is handled before the store knows it; the decision then makes the version that the last one expects
        repeated, noted, same = store.send_many([(Rename(name, "first"), "k"), Note(name, "c1", "x"), Rename(name, "second")])
    assert [type(each) for each in (repeated, noted, same)] == [es.Committed, es.Committed, es.Rejected]
    assert repeated[3], "a duplicate"


def test_a_command_id_that_others_have_stored_with_other_events_leaves_no_wrong_model(host: Begin) -> None:
    running, name = host(domain=DOMAIN), f"n-{SCOPE}"
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        store.send(Note(name, "c1", "before"))
        theirs = es.NewEvent("Offered", {"course": "c1", "places": 5}, tags=["course:c1"])
        other.append(f"m-{SCOPE}", [theirs], 0, command_id="k")
        assert store.send(Note(f"m-{SCOPE}", "c1", "offer 7"), "k").duplicate
        store.send(Note(name, "c1", "after"))
    assert [event.json()["text"] for event in running.events(name)] == ["before, None places", "after, 5 places"]


def test_the_version_of_a_decision_counts_what_its_query_finds(host: Begin) -> None:
    running, name = host(domain=DOMAIN), f"n-{SCOPE}"
    with running.connect() as store:
        store.send_many([Note(name, "c1", "offer 1"), *[Note(name, "c1", "version")] * 3])
        store.send_many([Note(name, "c1", "offer 2"), *[Note(name, "c1", "version")] * 2])
    texts = [event.json()["text"] for event in running.events(name) if event.type == "Noted"]
    assert texts == ["version 1"] * 3 + ["version 2"] * 2


def test_events_of_another_scope_in_the_same_slot_do_not_count(host: Begin) -> None:
    running, number = host(domain=DOMAIN), number_of_slot(slot_of(SCOPE))
    with running.connect() as store:
        store.send(Offer(f"course-{{{number}}}", "c1", 9))
        with pytest.raises(es.Rejected, match="no such course"):
            store.send(enrol("c1", "s1"))
        store.send(offer("c1", 1))
        store.send(Enrol(f"enrolment-{{{number}}}", "c1", "s2"))
        assert store.send(enrol("c1", "s1")).version == 1


def test_the_rules_hold_whatever_conflicts_and_nothing_is_lost(host: Begin) -> None:
    running, chance = host(domain=DOMAIN), random.Random(11)
    courses, students = [f"c{number}" for number in range(6)], [f"s{number}" for number in range(12)]
    places = {course: chance.randint(1, 6) for course in courses}
    acknowledged: set[tuple[str, str]] = set()
    with running.connect() as store, es.blocking.connect(running.store_address) as other:
        store.send_many([(offer(course, places[course]), f"o-{course}") for course in courses])
        for number in range(15):
            wanted = [(chance.choice(courses), chance.choice(students)) for _ in range(25)]
            commands = [
                (enrol(*each, chance.choice([Enrol, Enrol, EnrolSlowly])), f"e-{number}-{at}") for at, each in enumerate(wanted)
            ]
            course = chance.choice(courses)
            as_before = es.NewEvent("Offered", {"course": course, "places": places[course]}, tags=[f"course:{course}"])
            other.append(f"theirs-{SCOPE}", [as_before], es.ANY)
            outcomes = store.send_many([*commands, *commands[:3]])
            for each, outcome in zip([*wanted, *wanted[:3]], outcomes, strict=True):
                assert isinstance(outcome, es.Committed | es.Rejected), outcome
                if isinstance(outcome, es.Committed):
                    acknowledged.add(each)
    found = enrolled(running)
    assert set(found) == acknowledged
    assert len(set(found)) == len(found), "nobody is in a course twice"
    by_course, by_student = Counter(course for course, _ in found), Counter(student for _, student in found)
    assert all(by_course[course] <= places[course] for course in courses)
    assert max(by_student.values()) <= MOST


@pytest.mark.parametrize("student", [None, "s9"])
async def test_what_came_up_while_a_handler_took_long_is_read_before_its_condition_is_checked(student: str | None) -> None:
    """The check stops the event loop: it took 5 seconds after 270,000 events of other types."""

    def event(type_: str, data: bytes, sequence: int) -> es.Event:
        return es.Event((f"x-{SCOPE}-{sequence}", 1, type_, data, None, "k", 0, sequence, 1))

    theirs = None if student is None else event("Enrolled", b'{"course":"c1","student":"%s"}' % student.encode(), 7)

    async def read(query: es.Query, scope: str, place: QueryPlace) -> AsyncGenerator[tuple[list[es.Event], QueryPlace], None]:
        await trio.lowlevel.checkpoint()
        if place is None:
            yield [event("Offered", b'{"course":"c1","places":1}', 1)], 5
        else:
            yield [], 6
            yield [] if theirs is None else [theirs], 9

    decisions = Decisions(read, lambda unless: unless.after > 5, 1)
    decided = decide(app, "EnrolSlowly", b'{"id":"e-%s","course":"c1","student":"s1"}' % SCOPE.encode(), f"e-{SCOPE}", "k")
    scope = decisions.restore(decisions.lane(decided) or "")
    assert scope is not None
    _, guarded, *_ = await cast(Any, decisions.handle(decided, scope))
    assert (guarded.unless.after, guarded.unless.found) == (9 if theirs is None else 6, theirs)


async def test_models_in_memory_are_bounded_by_the_events_that_they_have_folded() -> None:
    """Each enrolment has a query of its own, and a list of all that are in the course: 10,000 of them had 10,000 lists."""
    begun: list[str] = []

    async def read(query: es.Query, scope: str, place: QueryPlace) -> AsyncGenerator[tuple[list[es.Event], QueryPlace], None]:
        await trio.lowlevel.checkpoint()
        if place is None:
            begun.append(scope)
        data = b'{"course":"c","places":1}'
        events = [es.Event((scope, at, "Offered", data, None, "k", 0, at, 1)) for at in range(1, 11)]
        yield [] if place else events, 10

    decisions = Decisions(read, lambda unless: True, 1, events_max=25)
    for name in ("one", "two", "three", "three", "two", "one", "one"):
        decided = decide(app, "Offer", b'{"id":"%s","course":"c","places":1}' % name.encode(), name, name)
        scope = decisions.restore(decisions.lane(decided) or "")
        assert scope is not None
        with pytest.raises(es.Rejected):
            await cast(Any, decisions.handle(decided, scope))
    assert begun == ["one", "two", "three", "one"]


async def test_no_more_queries_are_read_at_once_than_allowed() -> None:
    """In a worker, commands of aggregates waited for seconds for the queries of 3,000 scopes."""
    reading, most = 0, 0

    async def read(query: es.Query, scope: str, place: QueryPlace) -> AsyncGenerator[tuple[list[es.Event], QueryPlace], None]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await wait_all_tasks_blocked()
        reading -= 1
        yield [], 1

    decisions, changes = Decisions(read, lambda unless: True, 3), list[object]()

    async def run(name: str) -> None:
        decided = decide(app, "Offer", b'{"id":"%s","course":"c","places":1}' % name.encode(), name, name)
        lane = decisions.lane(decided)
        assert lane is not None
        scope = decisions.restore(lane)
        assert scope is not None
        changes.append(await cast(Any, decisions.handle(decided, scope)))

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(run, f"o-{number}")
    assert (len(changes), most) == (10, 3)
