"""The recorders for `eventsourcing` on a node of three shards: each application is in the shard that has its scope."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from eventsourcing.dcb.api import DCBAppendCondition, DCBEvent, DCBQuery, DCBQueryItem
from eventsourcing.persistence import IntegrityError, StoredEvent, Tracking

from eventstore.adapters.eventsourcing import EventStoreFactory
from tests.cluster.node_process import NodeProcess

SHARDS = 3
SCOPES = [f"app-{number}" for number in range(9)]

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", SHARDS) as node:
        yield node


@pytest.fixture
def factories(node: NodeProcess) -> Iterator[list[EventStoreFactory]]:
    made = [EventStoreFactory({"EVENTSTORE_STORE": node.address, "EVENTSTORE_SCOPE": scope}) for scope in SCOPES]
    yield made
    for each in made:
        each.close()


def test_the_scopes_of_these_tests_are_in_several_shards(factories: list[EventStoreFactory]) -> None:
    assert len({each.scoped.store._shard_of(each.scoped.prefix("events")) for each in factories}) == SHARDS


def test_an_application_has_one_order_of_its_events(factories: list[EventStoreFactory]) -> None:
    for factory in factories:
        recorder, one, other = factory.process_recorder(), uuid4(), uuid4()
        first = recorder.insert_events([StoredEvent(one, 1, "t", b""), StoredEvent(other, 1, "t", b"")])
        second = recorder.insert_events([StoredEvent(one, 2, "t", b"")], tracking=Tracking("upstream", 4))
        with pytest.raises(IntegrityError):
            recorder.insert_events([StoredEvent(other, 2, "t", b"")], tracking=Tracking("upstream", 4))
        ids = [*(first or ()), *(second or ())]
        assert [each.id for each in recorder.select_notifications(None, 9)] == ids
        assert [each.id for each in recorder.select_notifications(ids[1], 9)] == ids[1:]
        assert recorder.max_notification_id() == ids[-1]
        assert recorder.max_tracking_id("upstream") == 4
        with recorder.subscribe(gt=ids[0]) as subscription:
            assert [next(subscription).id for _ in range(2)] == ids[1:]
            (new,) = recorder.insert_events([StoredEvent(other, 2, "t", b"")]) or ()
            assert next(subscription).id == new


def test_a_condition_holds_within_the_scope(factories: list[EventStoreFactory]) -> None:
    boundary = DCBQuery([DCBQueryItem(tags=["course:1"])])
    joined = [DCBEvent("Joined", b"", ["course:1"])]
    for factory in factories:
        recorder = factory.dcb_recorder()
        head = recorder.read(boundary).head
        assert recorder.append(joined, DCBAppendCondition(boundary, head)) > (head or 0)
        with pytest.raises(IntegrityError):
            recorder.append(joined, DCBAppendCondition(boundary, head))
        found = recorder.read(boundary)
        assert [each.event for each in found] == joined
        recorder.append(joined, DCBAppendCondition(boundary, found.head))
        with recorder.subscribe(boundary, after=found.head) as subscription:
            assert next(subscription).event == joined[0]
