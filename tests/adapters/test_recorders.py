"""What the recorders for `eventsourcing` do beyond its own cases: compared with its recorders in memory where they agree."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from eventsourcing.application import Application, EventSourcedLog, ProcessingEvent
from eventsourcing.dcb.api import DCBAppendCondition, DCBEvent, DCBQuery, DCBQueryItem, DCBRecorder
from eventsourcing.dcb.application import DCBApplication
from eventsourcing.dcb.domain import EnduringObject
from eventsourcing.dcb.msgpack import Decision, InitialDecision
from eventsourcing.dcb.popo import InMemoryDCBRecorder
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    DataError,
    InfrastructureFactoryError,
    IntegrityError,
    InterfaceError,
    Notification,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
    Tracking,
)
from eventsourcing.popo import POPOAggregateRecorder, POPOApplicationRecorder
from eventsourcing.system import MultiThreadedRunner, ProcessApplication, Runner, SingleThreadedRunner, System
from eventsourcing.utils import Environment

import eventstore as es
from eventstore.adapters.eventsourcing import EventStoreFactory
from eventstore.adapters.eventsourcing.application_recorder import EventStoreApplicationRecorder
from tests.server_thread import ServerThread

Make = Callable[[EventStoreFactory], EventStoreApplicationRecorder]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("served") / "data") as server:
        yield server


@pytest.fixture
def factory(server: ServerThread) -> Iterator[EventStoreFactory]:
    """Each test is an application of its own."""
    made = made_for(server, uuid4().hex)
    yield made
    made.close()


def made_for(server: ServerThread, scope: str) -> EventStoreFactory:
    return EventStoreFactory({"EVENTSTORE_STORE": server.address, "EVENTSTORE_SCOPE": scope})


def stored(originator_id: UUID | str, *versions: int, topic: str = "topic") -> list[StoredEvent]:
    return [StoredEvent(originator_id, version, topic, b"%d" % version) for version in versions]


# aggregates


@pytest.mark.parametrize("first", [0, 1])
def test_each_selection_of_events_is_the_one_of_the_recorder_in_memory(factory: EventStoreFactory, first: int) -> None:
    originator_id, own, model = uuid4(), factory.aggregate_recorder(), POPOAggregateRecorder()
    for recorder in (own, model):
        recorder.insert_events(stored(originator_id, first))
        recorder.insert_events(stored(originator_id, first + 1, first + 2))
        recorder.insert_events(stored(originator_id, first + 3))
    bounds = [None, *range(-1, first + 6)]
    for gt, lte, desc, limit in product(bounds, bounds, (False, True), (None, 1, 2, 3)):
        asked: dict[str, Any] = {"gt": gt, "lte": lte, "desc": desc, "limit": limit}
        assert own.select_events(originator_id, **asked) == model.select_events(originator_id, **asked), asked


def test_each_selection_of_snapshots_is_the_one_of_the_recorder_in_memory(factory: EventStoreFactory) -> None:
    originator_id, own, model = uuid4(), factory.aggregate_recorder("snapshots"), POPOAggregateRecorder()
    for recorder in (own, model):
        for version in (0, 3, 4, 9):
            recorder.insert_events(stored(originator_id, version))
    bounds = [None, *range(-1, 11)]
    for gt, lte, desc, limit in product(bounds, bounds, (False, True), (None, 0, 1, 2, 3)):
        asked: dict[str, Any] = {"gt": gt, "lte": lte, "desc": desc, "limit": limit}
        expected = [] if limit == 0 else model.select_events(originator_id, **asked)
        assert own.select_events(originator_id, **asked) == expected, asked


def test_an_older_snapshot_is_dropped_and_the_same_one_is_refused(factory: EventStoreFactory) -> None:
    recorder, originator_id = factory.aggregate_recorder("snapshots"), uuid4()
    recorder.insert_events(stored(originator_id, 10))
    recorder.insert_events(stored(originator_id, 5))
    with pytest.raises(IntegrityError, match=r"a snapshot of .* at version 10"):
        recorder.insert_events(stored(originator_id, 10))
    assert recorder.select_events(originator_id) == stored(originator_id, 10)


def test_a_gap_between_versions_is_refused_and_nothing_is_stored(factory: EventStoreFactory) -> None:
    recorder, originator_id = factory.application_recorder(), uuid4()
    recorder.insert_events(stored(originator_id, 1))
    with pytest.raises(IntegrityError, match="is at version 1, expected 2"):
        recorder.insert_events(stored(originator_id, 3))
    with pytest.raises(IntegrityError, match=r"version 4 of .* comes after version 2; versions have no gaps"):
        recorder.insert_events(stored(originator_id, 2, 4))
    assert recorder.select_events(originator_id) == stored(originator_id, 1)


@pytest.mark.parametrize(("version", "error"), [(-1, DataError), (2, IntegrityError), (5, IntegrityError)])
def test_an_aggregate_begins_at_0_or_1(factory: EventStoreFactory, version: int, error: type[Exception]) -> None:
    recorder = factory.application_recorder()
    with pytest.raises(error):
        recorder.insert_events(stored("a", version))
    assert recorder.max_notification_id() is None


@pytest.mark.parametrize("make", [EventStoreFactory.application_recorder, EventStoreFactory.process_recorder])
def test_versions_that_begin_at_0_go_on_from_any_recorder(factory: EventStoreFactory, make: Make) -> None:
    originator_id = uuid4()
    first = make(factory)
    first.insert_events(stored(originator_id, 0, 1))
    for version in (2, 3):
        first.insert_events(stored(originator_id, version))
    other = make(factory)
    other.insert_events(stored(originator_id, 4))
    for refused in (0, 1, 3, 4, 6, 7):
        for recorder in (first, make(factory)):
            with pytest.raises(IntegrityError):
                recorder.insert_events(stored(originator_id, refused))
    assert other.select_events(originator_id) == stored(originator_id, 0, 1, 2, 3, 4)
    assert [each.originator_version for each in other.select_notifications(None, 9)] == [0, 1, 2, 3, 4]


def test_events_of_several_aggregates_are_stored_together_or_not_at_all(factory: EventStoreFactory) -> None:
    recorder, ones, others = factory.application_recorder(), uuid4(), uuid4()
    recorder.insert_events(stored(others, 1))
    with pytest.raises(IntegrityError):
        recorder.insert_events(stored(ones, 1) + stored(others, 1))
    assert recorder.select_events(ones) == []
    ids = recorder.insert_events(stored(ones, 1, 2) + stored(others, 2))
    assert [(each.id, each.originator_id) for each in recorder.select_notifications(None, 9)][1:] == [
        *zip(ids or [], (ones, ones, others), strict=True)
    ]


def test_events_of_an_aggregate_that_do_not_follow_each_other_are_refused(factory: EventStoreFactory) -> None:
    recorder, ones, others = factory.application_recorder(), uuid4(), uuid4()
    with pytest.raises(NotSupportedError, match="collect those of each aggregate once"):
        recorder.insert_events(stored(ones, 1) + stored(others, 1) + stored(ones, 2))
    assert recorder.max_notification_id() is None


def test_an_id_comes_back_as_it_was_given(factory: EventStoreFactory) -> None:
    recorder = factory.application_recorder()
    ids: list[UUID | str] = [
        uuid4(),
        str(uuid4()),
        str(uuid4()).upper(),
        "dog-1",
        "=dog",
        f"={uuid4()}",
        "{in braces}",
        "Ü" * 36,
    ]
    for each in ids:
        recorder.insert_events(stored(each, 1))
        assert recorder.select_events(each) == stored(each, 1)
    assert [each.originator_id for each in recorder.select_notifications(None, 99)] == ids


# notifications


def test_each_selection_of_notifications_is_the_one_of_the_recorder_in_memory(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "alone") as server:
        factory = made_for(server, "alone")
        own, model = factory.application_recorder(), POPOApplicationRecorder()
        for recorder in (own, model):
            for number, topic in enumerate("aabca"):
                recorder.insert_events(stored(UUID(int=number), 1, 2, topic=topic))
        bounds = [None, *range(-1, 13)]
        for start, stop, limit, topics, inclusive in product(bounds, bounds, (1, 3, 20), ([], "a", "bc"), (True, False)):
            asked = (start, limit, stop, list(topics))
            expected = model.select_notifications(*asked, inclusive_of_start=inclusive)
            assert own.select_notifications(*asked, inclusive_of_start=inclusive) == expected, (asked, inclusive)
        factory.close()


def test_an_application_does_not_see_the_events_of_another_one(server: ServerThread) -> None:
    one, other = (made_for(server, f"{name}-{uuid4()}") for name in ("one", "one-other"))
    one.application_recorder().insert_events(stored("same", 1))
    other.application_recorder().insert_events(stored("same", 1, 2))
    other.aggregate_recorder("snapshots").insert_events(stored("same", 2))
    assert len(one.application_recorder().select_notifications(None, 9)) == 1
    assert one.application_recorder().select_events("same") == stored("same", 1)
    assert one.application_recorder().max_notification_id() == one.application_recorder().select_notifications(None, 9)[0].id
    one.close()
    other.close()


def test_a_subscription_that_waits_in_a_thread_is_ended_by_stop(factory: EventStoreFactory) -> None:
    recorder = factory.application_recorder()
    got: list[Notification] = []
    with recorder.subscribe(topics=["wanted"]) as subscription:
        thread = Thread(target=lambda: got.extend(subscription))
        thread.start()
        recorder.insert_events(stored("a", 1, topic="other") + stored("b", 1, topic="wanted"))
        while not got:
            thread.join(0.01)
        subscription.stop()
        thread.join()
    assert [each.originator_id for each in got] == ["b"]
    with pytest.raises(StopIteration):
        next(subscription)


def test_a_subscription_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        factory = made_for(server, "restarted")
        recorder = factory.application_recorder()
        recorder.insert_events(stored("a", 1))
        with recorder.subscribe() as subscription:
            assert next(subscription).originator_id == "a"
            server.restart()
            recorder.insert_events(stored("b", 1))
            assert next(subscription).originator_id == "b"
        factory.close()


def test_a_subscription_begun_after_the_end_of_the_log_says_so(factory: EventStoreFactory) -> None:
    with factory.application_recorder().subscribe(gt=10**9) as subscription, pytest.raises(OperationalError):
        next(subscription)


# tracking


def test_events_and_tracking_are_recorded_together_or_not_at_all(factory: EventStoreFactory) -> None:
    recorder, originator_id = factory.process_recorder(), uuid4()
    recorder.insert_events(stored(originator_id, 1), tracking=Tracking("upstream", 5))
    with pytest.raises(IntegrityError):
        recorder.insert_events(stored(originator_id, 1), tracking=Tracking("upstream", 6))
    with pytest.raises(IntegrityError, match="5 of upstream is not behind the one that is recorded, 5"):
        recorder.insert_events(stored(originator_id, 2), tracking=Tracking("upstream", 5))
    assert (recorder.max_tracking_id("upstream"), len(recorder.select_events(originator_id))) == (5, 1)


def test_a_recorder_goes_on_from_where_another_one_of_the_application_is(factory: EventStoreFactory) -> None:
    one, other = factory.process_recorder(), factory.process_recorder()
    one.insert_events(stored("a", 1), tracking=Tracking("upstream", 1))
    other.insert_events(stored("b", 1), tracking=Tracking("upstream", 2))
    one.insert_events(stored("c", 1), tracking=Tracking("upstream", 3))  # its own place is an old one
    with pytest.raises(IntegrityError):
        other.insert_events(stored("d", 1), tracking=Tracking("upstream", 3))
    assert other.select_events("d") == []
    assert factory.tracking_recorder().max_tracking_id("upstream") == 3


class Sent(Aggregate):
    pass


class Received(Aggregate):
    @event("Counted")
    def count(self, other: UUID) -> None:
        self.other = other


class Senders(ProcessApplication[UUID]):
    def policy(self, domain_event: Any, processing_event: ProcessingEvent[UUID]) -> None:
        pass


class Receivers(ProcessApplication[UUID]):
    def policy(self, domain_event: Any, processing_event: ProcessingEvent[UUID]) -> None:
        if isinstance(domain_event, Sent.Created):
            received = Received()
            received.count(domain_event.originator_id)
            processing_event.collect_events(received)


@pytest.mark.parametrize("runner_class", [SingleThreadedRunner, MultiThreadedRunner])
def test_a_system_processes_each_event_once(server: ServerThread, runner_class: type[Runner[UUID]]) -> None:
    settings = {"PERSISTENCE_MODULE": "eventstore.adapters.eventsourcing", "EVENTSTORE_STORE": server.address}
    settings |= {f"{name}_EVENTSTORE_SCOPE": f"{name}-{uuid4()}" for name in ("SENDERS", "RECEIVERS")}
    runner = runner_class(System([[Senders, Receivers]]), env=settings)
    with runner:
        senders, receivers = runner.get(Senders), runner.get(Receivers)
        last = 0
        for _ in range(20):
            last = senders.save(Sent(), Sent())[-1].notification.id
        receivers.recorder.wait(senders.name, last, timeout=60)
        counted = receivers.recorder.select_notifications(None, 999)
        assert len([each for each in counted if each.topic.endswith("Received.Counted")]) == 40


# dynamic consistency boundaries


def test_a_query_finds_what_the_recorder_in_memory_finds(tmp_path: Path) -> None:
    chance = random.Random(7)
    tags, types = [f"tag-{number}" for number in range(6)], ["A", "B", "C"]
    with ServerThread(tmp_path / "alone") as server:
        factory = made_for(server, "alone")
        own, model = factory.dcb_recorder(), InMemoryDCBRecorder()
        for number in range(60):
            events = [
                DCBEvent(chance.choice(types), b"%d" % number, sorted(chance.sample(tags, chance.randrange(4))))
                for _ in range(chance.randrange(1, 4))
            ]
            assert own.append(events) == model.append(events)
        end = model.read().head or 0
        for _ in range(300):
            items = [
                DCBQueryItem(chance.sample(types, chance.randrange(3)), chance.sample(tags, chance.randrange(3)))
                for _ in range(chance.choice([0, 1, 2, 5, 70]))
            ]
            after, limit = chance.choice([None, 0, 3, end // 2, end]), chance.choice([None, None, 1, 4, 500])
            found, expected = (each.read(DCBQuery(items), after=after, limit=limit) for each in (own, model))
            assert list(found) == list(expected)
            assert found.head == expected.head
            new = [DCBEvent(chance.choice(types), b"", sorted(chance.sample(tags, chance.randrange(3))))]
            condition = DCBAppendCondition(DCBQuery(items[:64]), after)
            assert appended(own, new, condition) == appended(model, new, condition)
        factory.close()


def appended(recorder: DCBRecorder, events: list[DCBEvent], condition: DCBAppendCondition) -> int | None:
    """Returns the position; None if the condition failed."""
    try:
        return recorder.append(events, condition)
    except IntegrityError:
        return None


def test_a_query_of_many_items_is_answered_in_order(factory: EventStoreFactory) -> None:
    recorder, tags = factory.dcb_recorder(), [f"tag-{number}" for number in range(150)]
    positions = [recorder.append([DCBEvent("E", b"", [tag])]) for tag in tags]
    query = DCBQuery([DCBQueryItem(tags=[tag]) for tag in reversed(tags)])
    found = recorder.read(query)
    assert ([each.position for each in found], found.head) == (positions, positions[-1])
    some = recorder.read(query, after=positions[9], limit=100)
    assert ([each.position for each in some], some.head) == (positions[10:110], positions[109])


def test_one_of_two_decisions_on_the_same_events_is_refused(factory: EventStoreFactory) -> None:
    one, other = factory.dcb_recorder(), factory.dcb_recorder()
    boundary = DCBQuery([DCBQueryItem(tags=["course:1"])])
    one.append([DCBEvent("Opened", b"", ["course:1"])])
    heads = [each.read(boundary).head for each in (one, other)]
    one.append([DCBEvent("Joined", b"", ["course:1", "student:1"])], DCBAppendCondition(boundary, heads[0]))
    with pytest.raises(IntegrityError, match="Joined"):
        other.append([DCBEvent("Joined", b"", ["course:1", "student:2"])], DCBAppendCondition(boundary, heads[1]))
    assert [each.event.type for each in other.read(boundary)] == ["Opened", "Joined"]


def test_what_another_application_appends_after_the_head_fails_no_condition(server: ServerThread) -> None:
    one, other = made_for(server, "one-of-two"), made_for(server, "another-of-two")
    boundary = DCBQuery([DCBQueryItem(tags=["course:1"])])
    head = one.dcb_recorder().read(boundary).head
    other.dcb_recorder().append([DCBEvent("Opened", b"", ["course:1"])])
    one.dcb_recorder().append([DCBEvent("Opened", b"", ["course:1"])], DCBAppendCondition(boundary, head))
    assert [len(list(each.dcb_recorder().read(boundary))) for each in (one, other)] == [1, 1]
    one.close()
    other.close()


def test_a_condition_after_the_end_of_the_log_is_refused(factory: EventStoreFactory) -> None:
    recorder = factory.dcb_recorder()
    with pytest.raises(OperationalError, match="the store ends at"):
        recorder.append([DCBEvent("E", b"")], DCBAppendCondition(DCBQuery(), after=10**9))
    assert list(recorder.read(after=10**9)) == list(recorder.read()) == []


def test_tags_are_kept_in_the_order_of_their_bytes_each_once(factory: EventStoreFactory) -> None:
    recorder = factory.dcb_recorder()
    recorder.append([DCBEvent("E", b"", ["b", "a", "b"])])
    assert [each.event.tags for each in recorder.read()] == [["a", "b"]]


def test_a_subscription_to_tags_ends_with_stop(factory: EventStoreFactory) -> None:
    recorder = factory.dcb_recorder()
    recorder.append([DCBEvent("E", b"1", ["a"]), DCBEvent("E", b"2", ["b"])])
    with recorder.subscribe(DCBQuery([DCBQueryItem(tags=["b"])])) as subscription:
        assert next(subscription).event.data == b"2"
        subscription.stop()
        assert list(subscription) == []


@pytest.mark.parametrize(
    ("new", "condition"),
    [
        ([DCBEvent("E", b"", [f"tag-{number}" for number in range(33)])], None),
        ([DCBEvent("E", b"", [""])], None),
        ([DCBEvent("", b"")], None),
        ([DCBEvent("E", b"")], DCBAppendCondition(DCBQuery([DCBQueryItem(tags=[f"tag-{number}"]) for number in range(65)]))),
    ],
)
def test_what_breaks_a_limit_is_a_data_error(
    factory: EventStoreFactory, new: list[DCBEvent], condition: DCBAppendCondition | None
) -> None:
    recorder = factory.dcb_recorder()
    with pytest.raises(DataError):
        recorder.append(new, condition)
    assert list(recorder.read()) == []


def test_to_append_no_event_is_refused(factory: EventStoreFactory) -> None:
    with pytest.raises(ProgrammingError):
        factory.dcb_recorder().append([])


class Opened(InitialDecision):
    course_id: str
    places: int


class Joined(Decision):
    student: str


class Course(EnduringObject[Decision, str]):
    def __init__(self, places: int) -> None:
        self.places = places
        self.students: list[str] = []

    Registered = Opened

    @event(Joined)
    def join(self, student: str) -> None:
        self.students.append(student)


class Courses(DCBApplication):
    env: Mapping[str, str] = {"MAPPER_TOPIC": "eventsourcing.dcb.msgpack:MessagePackMapper"}


def test_an_enduring_object_is_saved_once_by_those_who_know_the_same_of_it(server: ServerThread) -> None:
    settings = {"PERSISTENCE_MODULE": "eventstore.adapters.eventsourcing", "EVENTSTORE_STORE": server.address}
    with Courses(settings) as courses:
        course = Course(places=2)
        courses.repository.save(course)
        one, other = (cast(Course, courses.repository.get(course.id)) for _ in range(2))
        one.join("ada")
        courses.repository.save(one)
        other.join("bob")
        with pytest.raises(IntegrityError):
            courses.repository.save(other)
        assert cast(Course, courses.repository.get(course.id)).students == ["ada"]


# settings


def test_an_address_is_needed() -> None:
    with pytest.raises(InfrastructureFactoryError, match="set EVENTSTORE_STORE to the address of a server"):
        EventStoreFactory({})


@pytest.mark.parametrize(
    "settings", [{"EVENTSTORE_STORE": "nowhere"}, {"EVENTSTORE_SCOPE": "{a}"}, {"EVENTSTORE_SCOPE": "a" * 101}]
)
def test_a_malformed_setting_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(DataError):
        EventStoreFactory({"EVENTSTORE_STORE": "tcp://127.0.0.1:1", **settings})


def test_a_topic_that_names_another_class_is_refused(server: ServerThread) -> None:
    env = {"EVENTSTORE_STORE": server.address, "PROCESS_RECORDER_TOPIC": "eventsourcing.popo:POPOProcessRecorder"}
    with pytest.raises(InfrastructureFactoryError, match="POPOProcessRecorder, which is no EventStoreProcessRecorder"):
        EventStoreFactory(env).process_recorder()


def test_the_scope_is_the_name_of_the_application_unless_it_is_set(server: ServerThread) -> None:
    named = Environment("Bank", {"EVENTSTORE_STORE": server.address})
    assert EventStoreFactory(named).scoped.scope == "bank"
    named["BANK_EVENTSTORE_SCOPE"] = "old-bank"
    assert EventStoreFactory(named).scoped.scope == "old-bank"


def test_after_close_a_recorder_says_that_it_is_closed(factory: EventStoreFactory) -> None:
    recorder = factory.application_recorder()
    recorder.insert_events(stored("a", 1))
    factory.close()
    with pytest.raises(InterfaceError):
        recorder.insert_events(stored("a", 2))


def test_other_programs_find_the_events_by_scope_and_id(factory: EventStoreFactory, server: ServerThread) -> None:
    class Logged(Aggregate.Event):
        pass

    scope, originator_id = factory.scoped.scope, uuid4()
    settings = {"PERSISTENCE_MODULE": "eventstore.adapters.eventsourcing"}
    settings |= {"EVENTSTORE_STORE": server.address, "EVENTSTORE_SCOPE": scope}
    with Application[UUID](settings) as application:
        log = EventSourcedLog(application.events, originator_id, Logged)
        application.save(log.trigger_event())
        application.save(log.trigger_event())
    with es.blocking.connect(server.address) as store:
        found = list(store.read(f"{{{scope}}}-events-{originator_id}"))
    assert [(each.version, each.metadata) for each in found] == [(1, None), (2, None)]
    assert all(each.type.endswith("Logged") for each in found)
