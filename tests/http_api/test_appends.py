"""Appends over HTTP: conditions, repeated commands, commits of several aggregates, and commands."""

from __future__ import annotations

import base64
import json
import socket

import pytest

import bank
from eventstore import blocking
from eventstore.http_api import clients, operations
from tests.http_api.asking import ANY_EVENT, EVENTS, Api
from tests.http_api.conftest import Serve
from tests.waiting import wait_until


def test_an_append_is_stored_with_all_that_an_event_has(serve: Serve) -> None:
    server = serve()
    event = {"type": "Placed", "data": {"total": 12.5, "to": "Zoë"}, "metadata": {"by": "web"}, "tags": ["b", "a"]}
    done = Api(server).append("order-1", "c-1", event, {"type": "Raw", "data_base64": base64.b64encode(b"\xff\0").decode()})
    assert done.status == 201
    assert done.json == {
        "aggregate_id": "order-1",
        "version": 2,
        "sequence": 2,
        "duplicate": False,
        "durability": 1,
        "command_id": "c-1",
    }
    with blocking.connect(server.address) as store:
        placed, raw = store.read("order-1")
    assert (placed.json(), placed.metadata_json(), placed.tags) == (event["data"], event["metadata"], ("a", "b"))
    assert (raw.data, raw.is_json, raw.metadata, raw.command_id) == (b"\xff\0", False, None, "c-1")


@pytest.mark.parametrize("data", [None, "text", 7, [], {}, True, "\U0001f600", {"\U0001f600": 1.5e-7}])
def test_data_are_any_json(api: Api, data: object) -> None:
    api.append("a-1", "c-1", {"type": "T", "data": data})
    (event,) = api.get(EVENTS).json["events"]
    assert event["data"] == data


def test_an_event_without_data_has_none(api: Api) -> None:
    api.append("a-1", "c-1", {"type": "T"})
    (event,) = api.get(EVENTS).json["events"]
    assert (event["data_base64"], "data" in event, "metadata" in event) == ("", False, False)


def test_a_command_that_is_sent_again_has_the_first_outcome_and_stores_nothing(api: Api) -> None:
    first = api.append("a-1", "c-1", expected=0)
    api.append("a-1", "c-2", expected=1)
    again = api.append("a-1", "c-1", expected=0)
    assert (first.status, again.status) == (201, 200)
    assert again.json == {**first.json, "duplicate": True}
    assert len(api.get(EVENTS).json["events"]) == 2


def test_a_quoted_key_is_the_same_as_a_bare_one(api: Api) -> None:
    assert api.append("a-1", "c-1").status == 201
    assert api.append("a-1", '"c-1"').json["duplicate"]


def test_a_key_is_utf_8(api: Api) -> None:
    body = {"events": [ANY_EVENT], "expected_version": "any"}
    assert api.post(EVENTS, body, "Zoë".encode()).json["command_id"] == "Zoë"
    assert api.post(EVENTS, body, "Zoë".encode("latin-1")).error == (400, "InvalidArgument")


def test_a_key_with_other_content_is_refused(api: Api) -> None:
    api.append("a-1", "c-1")
    refused = api.append("a-1", "c-1", {"type": "Other"})
    assert refused.error == (422, "CommandIdReused")
    assert refused.json["fields"] == {"aggregate_id": "a-1", "command_id": "c-1", "version": 1, "sequence": 1}


def test_a_wrong_version_is_a_conflict_that_names_both(api: Api) -> None:
    api.append("a-1", "c-1")
    refused = api.append("a-1", "c-2", expected=5)
    assert refused.error == (409, "VersionConflict")
    assert refused.json["fields"] == {"aggregate_id": "a-1", "expected": 5, "actual": 1}
    assert refused.json["code"] == 3


def test_conditions_in_headers_are_preconditions(api: Api) -> None:
    body = {"events": [ANY_EVENT]}
    assert api.post(EVENTS, body, "c-0", If_Match="*").error == (412, "VersionConflict")
    assert api.post(EVENTS, body, "c-1", If_None_Match="*").status == 201
    refused = api.post(EVENTS, body, "c-2", If_None_Match="*")
    assert refused.error == (412, "VersionConflict")
    assert (refused.json["fields"]["expected"], refused.json["fields"]["actual"]) == (0, 1)
    assert api.post(EVENTS, body, "c-3", If_Match='"1"').status == 201
    assert api.post(EVENTS, body, "c-4", If_Match='"1"').error == (412, "VersionConflict")
    assert api.post(EVENTS, body, "c-5", If_Match="*").status == 201
    for wrong in ({"If_Match": "1"}, {"If_Match": 'W/"1"'}, {"If_None_Match": '"1"'}, {"If_Match": "*", "If_None_Match": "*"}):
        assert api.post(EVENTS, body, "c-6", **wrong).error == (400, "InvalidArgument")
    assert api.post(EVENTS, {**body, "expected_version": 3}, "c-7", If_Match='"3"').error == (400, "InvalidArgument")
    assert api.post(EVENTS, body, "c-8").error == (428, "Precondition Required")
    assert [event["command_id"] for event in api.get(EVENTS).json["events"]] == ["c-1", "c-3", "c-5"]


def sent(api: Api, body: bytes, length: int) -> None:
    """Sends an append, of a body that is said to have this length, and goes away."""
    with socket.create_connection(api.host.split(":"), 60) as opened:  # type: ignore[arg-type] # of two texts
        head = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.host}\r\nContent-Type: application/json\r\nIdempotency-Key: c-gone\r\n"
        opened.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)


def test_an_append_whose_client_does_not_wait_for_the_answer_is_stored_whole_and_once(api: Api) -> None:
    body = json.dumps({"events": [ANY_EVENT] * 3, "expected_version": "any"}).encode()
    sent(api, body, len(body))
    wait_until(lambda: api.get(EVENTS).json["events"], "it is stored")
    assert api.post(EVENTS, json.loads(body), "c-gone").json["duplicate"]
    assert len(api.get(EVENTS).json["events"]) == 3


def test_an_append_whose_client_goes_away_before_its_end_stores_nothing_and_holds_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "HELD_BYTES_MAX", 20_000)
    body = json.dumps({"events": [{"type": "T", "data": "x" * 15_000}], "expected_version": "any"}).encode()
    for _ in range(3):
        sent(api, body[:-1], len(body))
    wait_until(lambda: api.append("b-1", "c-1", {"type": "T", "data": "x" * 15_000}).status < 300, "what they held is free")
    assert api.get(EVENTS).json["events"] == []


def test_an_append_that_is_not_answered_in_time_is_sent_again_with_its_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(operations, "CALL_S", 0.0)
        refused = api.append("a-1", "c-1")
    assert refused.error == (504, "TimedOut")
    assert refused.json["fields"]["outcome"] in ("none", "unknown")
    assert api.append("a-1", "c-1").json["version"] == 1
    assert len(api.get(EVENTS).json["events"]) == 1


def test_the_location_of_an_append_has_its_events(api: Api) -> None:
    api.append("a%2Fb%20c", "c-1")
    done = api.append("a%2Fb%20c", "c-2", ANY_EVENT, {"type": "Last"})
    found = api.get(done.headers["location"]).json
    assert found["aggregate_id"] == "a/b c"
    assert [(event["version"], event["command_id"]) for event in found["events"]] == [(2, "c-2"), (3, "c-2")]


def write(aggregate_id: str, expected: object = 0) -> dict[str, object]:
    return {"aggregate_id": aggregate_id, "events": [ANY_EVENT], "expected_version": expected}


def test_a_commit_writes_all_aggregates_or_none(api: Api) -> None:
    done = api.post("/api/commits", {"writes": [write("a-1"), write("a-2")]})
    assert done.status == 201
    assert [(each["aggregate_id"], each["version"]) for each in done.json["commits"]] == [("a-1", 1), ("a-2", 1)]
    again = api.post("/api/commits", {"writes": [write("a-1"), write("a-2")]})
    assert again.status == 200
    assert all(each["duplicate"] for each in again.json["commits"])
    refused = api.post("/api/commits", {"writes": [write("a-3"), write("a-2")]}, "c-2")
    assert refused.error == (409, "VersionConflict")
    assert refused.json["fields"]["aggregate_id"] == "a-2"
    asserted = {"writes": [write("a-3")], "only_if": [{"aggregate_id": "a-2", "version": 7}]}
    assert api.post("/api/commits", asserted, "c-3").error == (409, "VersionConflict")
    assert api.get("/api/aggregates/a-3/events").json["events"] == []


def test_a_commit_is_refused_if_its_query_has_found_others_since(api: Api) -> None:
    seat = {"type": "Taken", "tags": ["course:c1"]}
    api.append("s-1%7Bc1%7D", "c-1", seat)
    looked = api.get("/api/events?tag=course:c1&type=Taken").json
    assert [event["aggregate_id"] for event in looked["events"]] == ["s-1{c1}"]

    def decide(name: str, **after: object) -> dict[str, object]:
        writes = [{"aggregate_id": name, "events": [seat], "expected_version": 0}]
        return {"writes": writes, "unless": [{"tags": ["course:c1"], "types": ["Taken"]}], **after, "scope": "{c1}"}

    assert api.post("/api/commits", decide("s-2{c1}"), "c-2").error == (409, "ConditionFailed")
    assert api.post("/api/commits", decide("s-2{c1}", after=looked["position"]), "c-3").status == 201
    refused = api.post("/api/commits", decide("s-3{c1}", after=looked["position"]), "c-4")
    assert refused.error == (409, "ConditionFailed")
    assert refused.json["fields"] == {"aggregate_id": "s-2{c1}", "type": "Taken", "sequence": 2}
    assert api.post("/api/commits", decide("s-3{c1}", after=2), "c-5").status == 201


@pytest.mark.usefixtures("examples")
def test_a_command_is_handled_by_the_domain_of_the_server(serve: Serve) -> None:
    server = serve(domain="bank:app")
    api = Api(server)
    opened = api.post("/api/commands/Open", {"aggregate_id": "acc-1", "fields": {"account": "acc-1", "owner": "Ada"}})
    assert (opened.status, opened.json["version"]) == (200, 1)
    deposit = {"aggregate_id": "acc-1", "fields": {"account": "acc-1", "cents": 500}, "metadata": {"by": "web"}}
    assert api.post("/api/commands/Deposit", deposit, "c-2").json["version"] == 2
    assert api.post("/api/commands/Deposit", deposit, "c-2").json["duplicate"]
    refused = api.post("/api/commands/Withdraw", {"aggregate_id": "acc-1", "fields": {"account": "acc-1", "cents": 900}}, "c-3")
    assert refused.error == (422, "Rejected")
    assert api.post("/api/commands/Unheard", {"aggregate_id": "acc-1"}, "c-4").error == (404, "UnknownCommand")
    assert api.post("/api/commands/Deposit", {"aggregate_id": "acc-1", "fields": {"cents": "x"}}, "c-5").error == (
        422,
        "PayloadInvalid",
    )
    with blocking.connect(server.address) as store:
        assert [event.metadata_json() for event in store.read("acc-1")][1]["by"] == "web"
        assert store.send(bank.Deposit("acc-1", 1)).version == 3


def test_without_a_domain_commands_are_refused(api: Api) -> None:
    status, title = api.post("/api/commands/Open", {"aggregate_id": "a"}).error
    assert (status, title) == (404, "UnknownCommand")
