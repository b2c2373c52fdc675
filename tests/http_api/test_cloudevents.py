"""CloudEvents over HTTP, sent and read by the SDK of the CNCF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_binary_event,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.v1.event import CloudEvent

import eventstore as es
from eventstore import blocking
from tests.http_api.asking import Answer, Api
from tests.http_api.conftest import Serve
from tests.server_thread import ServerThread
from tests.waiting import wait_until

BATCH = "application/cloudevents-batch+json"
PATH = "/api/cloudevents"


def made(id_: str = "e-1", data: Any = None, **attributes: Any) -> CloudEvent:
    given = {"id": id_, "source": "/shop", "type": "Placed", "subject": "order-1", "datacontenttype": "application/json"}
    return CloudEvent({**given, **attributes}, {"total": 12} if data is None else data)


def send(api: Api, message: HTTPMessage) -> Answer:
    named = {name.replace("-", "_"): value for name, value in message.headers.items()}
    return api.ask("POST", PATH, message.body, **named)


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event])
def test_an_event_of_the_sdk_is_stored_once_and_comes_back(api: Api, mode: Any) -> None:
    sent = made(subject="bestellung/Ä 1", traceparent="00-1", sequence="7")
    first, again = send(api, mode(sent)), send(api, mode(sent))
    assert (first.status, again.status) == (201, 200)
    (done,) = first.json["commits"]
    assert (done["aggregate_id"], done["version"], done["command_id"]) == ("bestellung/Ä 1", 1, "/shop e-1")
    assert again.json["commits"] == [{**done, "duplicate": True}]
    path = f"/api/aggregates/{quote('bestellung/Ä 1', safe='')}/cloudevents/1"
    binary, one = api.get(path), api.get(path, Accept="application/cloudevents+json")
    assert one.headers["content-type"] == "application/cloudevents+json"
    assert binary.headers["content-type"] == "application/json"
    batch = api.get("/api/events", Accept=BATCH)
    assert (batch.headers["content-type"], "position" in batch.headers) == (BATCH, True)
    for back in (
        from_binary_event(HTTPMessage(binary.headers, binary.text.encode())),
        from_structured_event(HTTPMessage({}, one.text.encode())),
        from_structured_event(HTTPMessage({}, json.dumps(batch.json[0]).encode())),
    ):
        assert {name: back.get_attributes()[name] for name in sent.get_attributes()} == sent.get_attributes()
        assert back.get_data() == {"total": 12}


def test_events_of_a_store_come_back_from_another_as_they_were(serve: Serve, tmp_path: Path) -> None:
    here, there = serve(), serve(tmp_path / "there")
    with blocking.connect(here.address) as store:
        store.append("a-1", [es.NewEvent("A", {"n": 1.5}, {"by": "me"}, ["t:1"]), es.NewEvent("B", b"\xff")], 0, "c-1")
        store.append("a-1", [es.NewEvent("C", None, {"correlation_id": "begin"})], 2, "c-2")
        before = list(store.read_all())
    batch = Api(here).get("/api/aggregates/a-1/events", Accept=BATCH)
    assert [each["id"] for each in batch.json] == ["a-1/1", "a-1/2", "a-1/3"]
    done = Api(there).ask("POST", PATH, batch.text.encode(), Content_Type=BATCH)
    assert [(each["version"], each["command_id"]) for each in done.json["commits"]] == [(2, "c-1"), (3, "c-2")]
    with blocking.connect(there.address) as store:
        assert list(store.read_all()) == before


def test_a_page_of_cloudevents_says_where_the_next_one_is(api: Api) -> None:
    for number in range(3):
        send(api, to_structured_event(made(f"e-{number}")))
    page = api.get("/api/aggregates/order-1/events?limit=2", Accept=BATCH)
    assert len(page.json) == 2
    rest = api.get(page.headers["link"].partition(">")[0][1:], Accept=BATCH)
    assert [each["id"] for each in rest.json] == ["e-2"]


def test_a_commit_of_several_aggregates_is_stored_whole_or_refused(api: Api) -> None:
    common = {
        "specversion": "1.0",
        "source": "/s",
        "type": "T",
        "escommandid": "c-1",
        "esjointcommit": "9",
        "esjointevents": "2",
    }
    pair = [{**common, "id": f"{name}/1", "subject": name} for name in ("{x}a", "{x}b")]
    assert post(api, pair[:1]).error == (400, "InvalidArgument")
    assert api.get("/api/events").json["events"] == []
    done = post(api, pair)
    assert [(each["aggregate_id"], each["version"]) for each in done.json["commits"]] == [("{x}a", 1), ("{x}b", 1)]


def test_a_batch_is_stored_in_its_order(api: Api) -> None:
    common = {"specversion": "1.0", "source": "/s", "type": "T"}
    joint = {**common, "escommandid": "c-1", "esjointcommit": "9", "esjointevents": "2"}
    sent = [
        {**common, "id": "before", "subject": "{x}a"},
        {**joint, "id": "{x}a/1", "subject": "{x}a"},
        {**joint, "id": "{x}b/1", "subject": "{x}b"},
        {**common, "id": "behind", "subject": "{x}a"},
    ]
    assert post(api, sent).status == 201
    stored = [(each["aggregate_id"], each["command_id"]) for each in api.get("/api/events").json["events"]]
    assert stored == [("{x}a", "/s before"), ("{x}a", "c-1"), ("{x}b", "c-1"), ("{x}a", "/s behind")]


def post(api: Api, events: list[dict[str, Any]]) -> Answer:
    return api.ask("POST", PATH, json.dumps(events).encode(), Content_Type=BATCH)


def test_an_event_that_is_twice_in_a_batch_is_stored_once(api: Api) -> None:
    one, other, changed = (
        json.loads(to_structured_event(each).body) for each in (made(), made("e-2"), made(data={"total": 13}))
    )
    refused = api.ask("POST", PATH, json.dumps([one, changed]).encode(), Content_Type=BATCH)
    assert (refused.status, refused.json["fields"]["field"]) == (400, "id")
    done = api.ask("POST", PATH, json.dumps([one, one, other]).encode(), Content_Type=BATCH)
    assert [each["version"] for each in done.json["commits"]] == [1, 2]
    assert api.ask("POST", PATH, json.dumps([one]).encode(), Content_Type=BATCH).status == 200


def test_what_is_refused_is_typed_and_stores_nothing(api: Api) -> None:
    good = {"specversion": "1.0", "id": "1", "source": "/s", "type": "T", "subject": "a"}
    refusals = [
        post(api, [good, {name: value for name, value in good.items() if name != "type"}]),
        post(api, [good, {**good, "id": "2", "data": "x" * (4 * 1024 * 1024)}]),
        post(api, [{**good, "escommandid": "c", "time": f"2026-01-0{day}T00:00:00Z"} for day in (1, 2)]),
        api.ask("POST", PATH, b"{}", ce_type="T"),
        api.ask("POST", PATH, b"\xff", Content_Type=BATCH),
        api.ask("POST", PATH, b"no", Content_Type="application/json", **{f"ce_{name}": value for name, value in good.items()}),
    ]
    assert [each.error for each in refusals] == [(400, "InvalidArgument")] * 6
    assert [each.json["fields"].get("field") for each in refusals] == ["type", "event", "time", "specversion", "body", "body"]
    assert "event 1 of the batch: type is missing" in refusals[0].json["detail"]
    assert api.ask("POST", PATH, b"<x/>", Content_Type="application/xml").error[0] == 415
    assert api.ask("POST", PATH, b"", Content_Type=BATCH, Content_Length=str(25 * 1024 * 1024)).error[0] == 413
    assert api.get("/api/aggregates/a/cloudevents/1").error[0] == 404
    assert api.get("/api/aggregates/a/cloudevents/x").error == (400, "InvalidArgument")
    assert api.get("/api/events").json["events"] == []


def test_a_domain_publishes_cloudevents(tmp_path: Path) -> None:
    with (
        ServerThread(tmp_path / "data", domain="tests.server.outbox.published_courses:app") as server,
        blocking.connect(server.address) as store,
    ):
        store.append("s-1", [es.NewEvent("Subscribed", {"course": "c1", "student": "p1"})], 0, "c-1")
        wait_until(lambda: store.stats()["publish_backlog"] == 0, "all is published")
        with store.consumer("readers", "cloudevents", from_end=False) as consumer:
            message = next(consumer)
        assert (message.key, message.properties["content_type"]) == ("s-1", "application/cloudevents+json")
        back = from_structured_event(HTTPMessage({}, message.body))
        uuid = server.ask(lambda running: running.store.opened.uuid)
        assert (back.get_source(), back.get_subject(), back.get_id()) == (f"urn:uuid:{uuid}", "s-1", "s-1/1")
        assert back.get_data() == {"course": "c1", "student": "p1"}
