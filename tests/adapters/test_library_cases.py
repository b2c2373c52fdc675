"""The test cases that `eventsourcing` brings for persistence modules, on this one and a real server."""

from __future__ import annotations

import unittest
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from eventsourcing.dcb import tests as dcb_cases
from eventsourcing.persistence import ApplicationRecorder, Tracking
from eventsourcing.popo import POPOTrackingRecorder
from eventsourcing.tests import application as application_cases
from eventsourcing.tests import persistence as cases
from eventsourcing.tests import projection as projection_cases
from eventsourcing.utils import Environment, get_topic

from eventstore.adapters.eventsourcing import EventStoreFactory
from eventstore.adapters.eventsourcing.aggregate_recorder import EventStoreAggregateRecorder
from eventstore.adapters.eventsourcing.application_recorder import EventStoreApplicationRecorder
from eventstore.adapters.eventsourcing.process_recorder import EventStoreProcessRecorder
from eventstore.adapters.eventsourcing.tracking_recorder import EventStoreTrackingRecorder
from tests.server_thread import ServerThread

MODULE = "eventstore.adapters.eventsourcing"


class Served(unittest.TestCase):
    """A test with a server of its own, and a factory; the settings are in the environment as well."""

    folder: ClassVar[Path]

    def setUp(self) -> None:
        opened = ExitStack()
        self.addCleanup(opened.close)
        server = opened.enter_context(ServerThread(self.folder / self.id()))
        settings = {"PERSISTENCE_MODULE": MODULE, "EVENTSTORE_STORE": server.address}
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        for name, value in settings.items():
            patch.setenv(name, value)
        self.settings = settings
        self.factory = EventStoreFactory(settings)
        opened.callback(self.factory.close)
        super().setUp()


class AggregateRecorderCases(Served, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.aggregate_recorder()


class AggregateRecorderFromZeroCases(AggregateRecorderCases):
    INITIAL_VERSION = 0


class TextIdCases(AggregateRecorderCases):
    def new_originator_id(self) -> str:
        return f"dog-{super().new_originator_id()}"


class ApplicationRecorderCases(Served, cases.ApplicationRecorderTestCase[ApplicationRecorder]):
    def create_recorder(self) -> ApplicationRecorder:
        return self.factory.application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class ApplicationRecorderFromZeroCases(ApplicationRecorderCases):
    INITIAL_VERSION = 0


class NonInterleavingCases(Served, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> Any:
        return self.factory.application_recorder()


class TrackingRecorderCases(Served, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.tracking_recorder()


class ProcessRecorderCases(Served, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()


class ProcessRecorderTracksCases(Served, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()


class ProcessRecorderAppliesCases(Served, cases.ApplicationRecorderTestCase[ApplicationRecorder]):
    def create_recorder(self) -> Any:
        return self.factory.process_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class OwnTrackingRecorder(EventStoreTrackingRecorder):
    """One that a topic names."""


class FactoryCases(Served, cases.InfrastructureFactoryTestCase[EventStoreFactory]):
    def setUp(self) -> None:
        self.env = Environment("TestCase", {"PERSISTENCE_MODULE": MODULE, "EVENTSTORE_STORE": "tcp://127.0.0.1:7701"})
        super().setUp()

    def expected_factory_class(self) -> type[EventStoreFactory]:
        return EventStoreFactory

    def expected_aggregate_recorder_class(self) -> type[EventStoreAggregateRecorder]:
        return EventStoreAggregateRecorder

    def expected_application_recorder_class(self) -> type[EventStoreApplicationRecorder]:
        return EventStoreApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[EventStoreTrackingRecorder]:
        return EventStoreTrackingRecorder

    def tracking_recorder_subclass(self) -> type[EventStoreTrackingRecorder]:
        return OwnTrackingRecorder

    def expected_process_recorder_class(self) -> type[EventStoreProcessRecorder]:
        return EventStoreProcessRecorder


class BankCases(Served, application_cases.ExampleApplicationTestCase):
    """The bank of the library, with snapshots."""

    expected_factory_topic = get_topic(EventStoreFactory)


class ApplicationCases(Served, application_cases.ApplicationTestCase):
    """Applications with caches, and a log, under contention."""


class CountersInMemory(POPOTrackingRecorder, projection_cases.EventCountersView):
    """A read model that is not in the store."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = {"created": 0, "subsequent": 0}

    def get_created_event_counter(self) -> int:
        return self._counts["created"]

    def get_subsequent_event_counter(self) -> int:
        return self._counts["subsequent"]

    def incr_created_event_counter(self, tracking: Tracking) -> None:
        self._increment("created", tracking)

    def incr_subsequent_event_counter(self, tracking: Tracking) -> None:
        self._increment("subsequent", tracking)

    def _increment(self, name: str, tracking: Tracking) -> None:
        with self._database_lock:
            self.insert_tracking(tracking)
            self._counts[name] += 1


class WithView(Served):
    """The read model is in memory, the events are in the store."""

    view_class = CountersInMemory

    def setUp(self) -> None:
        super().setUp()
        self.env = {"EVENTCOUNTERS_PERSISTENCE_MODULE": "eventsourcing.popo", **self.own_settings()}

    def own_settings(self) -> dict[str, str]:
        return {}


class ProjectionCases(WithView, projection_cases.AggregateEventCountersProjectionTestCase):
    env: Any


class TaggedProjectionCases(WithView, projection_cases.TaggedDecisionCountersProjectionTestCase):
    env: Any

    def own_settings(self) -> dict[str, str]:
        return {"MAPPER_TOPIC": "eventsourcing.dcb.msgpack:MessagePackMapper"}


class EventSourcedProjectionCases(Served, projection_cases.EventSourcedProjectionTestCase):
    """A projection that is itself an application, on a process recorder."""


class DCBCases(Served, dcb_cases.DCBRecorderTestCase):
    """Its methods begin with an underscore: they are called here by name."""

    def test_append_read(self) -> None:
        self._test_append_read(self.factory.dcb_recorder())

    def test_append_read_after_others(self) -> None:
        recorder = self.factory.dcb_recorder()
        self._test_append_read(recorder)
        self._test_append_read(recorder, initial_position=13)

    def test_append_subscribe(self) -> None:
        self._test_append_subscribe(self.factory.dcb_recorder())


ALL = {
    AggregateRecorderCases: 2,
    AggregateRecorderFromZeroCases: 2,
    TextIdCases: 2,
    ApplicationRecorderCases: 5,
    ApplicationRecorderFromZeroCases: 5,
    NonInterleavingCases: 1,
    TrackingRecorderCases: 2,
    ProcessRecorderCases: 4,
    ProcessRecorderTracksCases: 2,
    ProcessRecorderAppliesCases: 5,
    FactoryCases: 9,
    BankCases: 1,
    ApplicationCases: 12,
    ProjectionCases: 2,
    TaggedProjectionCases: 2,
    EventSourcedProjectionCases: 1,
    DCBCases: 3,
}
"""Each class, and how many of the library's tests it runs."""


@pytest.mark.filterwarnings("default:'log' is deprecated:DeprecationWarning")  # the library tests its own old name
@pytest.mark.parametrize(("cases_class", "count"), ALL.items(), ids=[each.__name__ for each in ALL])
def test_the_cases_of_the_library_pass(cases_class: type[Served], count: int, tmp_path: Path) -> None:
    cases_class.folder = tmp_path
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(cases_class).run(result)
    assert [trace for _, trace in (*result.errors, *result.failures)] == []
    assert (result.testsRun, result.skipped) == (count, [])


def test_each_method_of_the_librarys_case_for_tags_is_called() -> None:
    methods = {name for name in dir(dcb_cases.DCBRecorderTestCase) if name.startswith("_test")}
    assert methods == {"_test_append_read", "_test_append_subscribe"}
    assert methods <= {f"_{name}" for name in dir(DCBCases)}


# unittest.TestCase classes would be collected, without their folder
for _each in (*ALL, Served, WithView):
    _each.__test__ = False  # type: ignore[attr-defined]
