"""The API of a node: it answers for any shard, as a client of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore import blocking
from tests.cluster.node_process import NodeProcess
from tests.http_api.asking import ANY_EVENT, Api

pytestmark = pytest.mark.heavy


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", 2, http_api="true") as node:
        yield node
        assert node.terminate() == 0


def test_a_node_answers_for_every_shard(node: NodeProcess) -> None:
    with blocking.connect(node.address) as store:
        names = [next(f"a-{n}" for n in range(100) if store.cluster_map().owner_of(f"a-{n}") == shard) for shard in (0, 1)]
    api = Api(node)
    for name in names:
        assert api.append(name, "c-1", {"type": "T", "tags": ["t"]}).status == 201
        assert [each["version"] for each in api.get(f"/api/aggregates/{name}/events").json["events"]] == [1]
    page = api.get("/api/events?tag=t&limit=1").json
    rest = api.get(page["next"]).json
    both = page["events"] + rest["events"]
    assert sorted(each["aggregate_id"] for each in both) == sorted(names)
    assert sorted(each["shard"] for each in both) == [0, 1]
    writes = [{"aggregate_id": name, "events": [ANY_EVENT], "expected_version": 1} for name in names]
    assert api.post("/api/commits", {"writes": writes}, "c-2").error == (400, "CrossShard")
    assert api.get("/api/events?after=1").error == (400, "InvalidArgument")


def test_a_stream_of_a_node_has_the_events_of_all_shards_and_continues(node: NodeProcess) -> None:
    api = Api(node)
    for each in range(20):
        api.append(f"a-{each}", "c-1")
    with api.stream() as stream:
        some = [stream.next() for _ in range(7)]
    with api.stream(Last_Event_ID=some[-1].id) as stream:
        rest = [stream.next() for _ in range(13)]
        names = {each.json["aggregate_id"] for each in some + rest}
        assert names == {f"a-{each}" for each in range(20)}
        assert stream.next().name == "caught-up"


def test_messages_of_all_shards_are_pulled_and_finished_at_a_node(node: NodeProcess) -> None:
    api = Api(node)
    assert api.ask("PUT", "/api/topics/orders", b'{"queues": 1}', Content_Type="application/json").status == 201
    sent = api.post("/api/topics/orders/messages", {"messages": [{"body": n, "key": f"k-{n}"} for n in range(20)]}, None).json
    assert {each["shard"] for each in sent["messages"]} == {0, 1}
    pulled: list[Any] = []
    while len(pulled) < 20:
        pulled += api.post("/api/groups/billing/pull", {"topics": ["orders"], "limit": 7}, None).json["messages"]
    assert sorted(each["body"] for each in pulled) == list(range(20))
    receipts = [each["receipt"] for each in pulled]
    assert api.post("/api/groups/billing/finish", {"done": receipts}, None).json == {"finished": 20, "unknown": []}


def test_events_of_a_cluster_have_one_source_and_come_back_from_it(node: NodeProcess) -> None:
    api = Api(node)
    for each in range(20):
        api.append(f"a-{each}", "c-1")
    page = api.get("/api/events", Accept="application/cloudevents-batch+json")
    batch = page.json
    (source,) = {each["source"] for each in batch}
    assert {each["sequence"][:6] for each in batch} == {"00000-", "00001-"}
    with blocking.connect(node.address) as store:
        position = store.read_all()
        list(position)
        assert source.replace("-", "").removeprefix("urn:uuid:") == store.origin == str(position.position).split(".")[1]
    one = api.get("/api/aggregates/a-0/cloudevents/1", Accept="application/cloudevents+json").json
    assert (one["source"], one["id"]) == (source, "a-0/1")
    again = api.ask("POST", "/api/cloudevents", page.text.encode(), Content_Type="application/cloudevents-batch+json")
    assert (again.status, [each["duplicate"] for each in again.json["commits"]]) == (200, [True] * 20)
