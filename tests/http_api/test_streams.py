"""Streams of events: from any place on, continued by Last-Event-ID, with heartbeats, at the pace of their readers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from eventstore import blocking
from eventstore.console import listener
from eventstore.http_api import event_streams
from eventstore.http_api.event_streams import sent_event
from eventstore.model import NewEvent
from eventstore.server.requests.subscriptions import ServedSubscription
from tests.http_api.asking import Api
from tests.http_api.conftest import Serve
from tests.server_thread import ServerThread
from tests.waiting import wait_until

MIB = 1024 * 1024


def served(server: ServerThread) -> list[ServedSubscription]:
    """Returns the subscriptions that the server has."""

    def question(running: Any) -> list[ServedSubscription]:
        bound = [each for connection in running.gate.connections for each in connection.bound.values()]
        return [each for each in bound if isinstance(each, ServedSubscription)]

    return server.ask(question)


def test_a_stream_has_what_is_stored_and_then_what_is_appended(api: Api) -> None:
    api.append("a-1", "c-1", {"type": "T", "data": 1}, {"type": "T", "data": 2})
    with api.stream() as stream:
        assert [stream.next().json["data"] for _ in range(2)] == [1, 2]
        caught_up = stream.next()
        assert (caught_up.name, caught_up.json) == ("caught-up", {"position": caught_up.id})
        api.append("a-2", "c-1", {"type": "T", "data": 3})
        sent = stream.next()
        assert (sent.name, sent.json["aggregate_id"], sent.json["data"]) == ("message", "a-2", 3)


def test_a_stream_continues_after_the_event_whose_id_is_given(api: Api) -> None:
    for each in range(3):
        api.append("a-1", f"c-{each}", {"type": "T", "data": each})
    with api.stream() as stream:
        ids = [stream.next().id for _ in range(3)]
    assert len(set(ids)) == 3
    for place, last in enumerate(ids, 1):
        with api.stream(Last_Event_ID=last) as stream:
            assert [stream.next().json["data"] for _ in range(3 - place)] == list(range(place, 3))
            assert stream.next().name == "caught-up"
    with api.stream("/api/events?after=1", Last_Event_ID=ids[1]) as stream:  # as a browser that connects again asks
        assert stream.next().json["data"] == 2


def test_an_id_is_the_position_of_a_read(api: Api) -> None:
    api.append("a-1", "c-1", {"type": "T"}, {"type": "T"})
    with api.stream() as stream:
        first = stream.next()
    assert [each["sequence"] for each in api.get(f"/api/events?after={first.id}").json["events"]] == [2]
    with api.stream(f"/api/events?after={api.get('/api/events').json['position']}") as stream:
        assert stream.next().name == "caught-up"


def test_a_stream_from_the_end_has_new_events_only(api: Api) -> None:
    api.append("a-1", "c-1")
    with api.stream("/api/events?after=end") as stream:
        assert stream.next().name == "caught-up"
        api.append("a-1", "c-2")
        assert stream.next().json["command_id"] == "c-2"


def test_a_stream_has_what_passes_the_filter(api: Api) -> None:
    api.append("a-1", "c-1", {"type": "T", "tags": ["x"]}, {"type": "T", "tags": ["y"]}, {"type": "U", "tags": ["x"]})
    with api.stream("/api/events?type=T&tag=x&prefix=a-") as stream:
        assert stream.next().json["version"] == 1
        assert stream.next().name == "caught-up"
        api.append("b-1", "c-1", {"type": "T", "tags": ["x"]})
        api.append("a-2", "c-1", {"type": "T", "tags": ["x"]})
        assert stream.next().json["aggregate_id"] == "a-2"


def test_a_stream_without_events_has_heartbeats_whose_id_is_where_it_stands(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.05)
    api.append("a-1", "c-1", {"type": "Passed"})
    with api.stream("/api/events?type=T") as stream:
        caught_up = stream.next()
        assert [stream.until_heartbeat() for _ in range(2)] == [caught_up.id] * 2
        api.append("a-1", "c-2", {"type": "T"})
        assert stream.next().json["command_id"] == "c-2"
    assert ".0-1-" in caught_up.id


def test_the_id_of_another_store_is_refused(tmp_path: Path, serve: Serve) -> None:
    api, other = Api(serve()), Api(serve(tmp_path / "other"))
    other.append("a-1", "c-1")
    place = other.get("/api/events").json["position"]
    for headers, path in (({"Last_Event_ID": place}, "/api/events"), ({}, f"/api/events?after={place}")):
        refused = api.get(path, Accept="text/event-stream", **headers)
        assert refused.error == (400, "InvalidArgument")
        assert "but this is" in refused.json["detail"]
    assert api.get("/api/events", Accept="text/event-stream", Last_Event_ID="x").error == (400, "InvalidArgument")


def test_the_id_of_an_event_that_the_store_does_not_have_is_refused(api: Api) -> None:
    api.append("a-1", "c-1")
    place = api.get("/api/events").json["position"]
    other = f"{place[:-1]}{'0' if place[-1] != '0' else '1'}"
    assert api.get("/api/events", Accept="text/event-stream", Last_Event_ID=other).error == (409, "Diverged")
    assert api.get(f"/api/events?after={other}").error == (409, "Diverged")
    ahead = place.replace(".0-1-", ".0-7-")
    assert api.get("/api/events", Accept="text/event-stream", Last_Event_ID=ahead).error == (409, "Diverged")


def test_a_long_event_arrives_as_one(api: Api) -> None:
    data = "line\nline\r\n\u2028" * 100_000
    api.append("a-1", "c-1", {"type": "T", "data": data}, {"type": "After"})
    with api.stream() as stream:
        assert stream.next().json["data"] == data
        assert stream.next().json["type"] == "After"


def test_json_of_several_lines_arrives_as_one_event(serve: Serve) -> None:
    server = serve()
    with blocking.connect(server.address) as store:
        store.append("a-1", [tuple.__new__(NewEvent, (1, "T", b'{\n\n"a":\r\n1}', None))], 0)
    with Api(server).stream() as stream:
        assert stream.next().json["data"] == {"a": 1}


def test_each_line_of_data_has_its_field() -> None:
    assert sent_event(None, "a\nb\r\nc\rd") == b"data: a\ndata: b\ndata: c\ndata: d\n\n"
    assert sent_event("n", "") == b"event: n\ndata: \n\n"


def test_a_client_that_goes_away_takes_its_subscription_along(serve: Serve) -> None:
    server = serve()
    api = Api(server)
    with api.stream() as stream:
        assert stream.next().name == "caught-up"
        assert len(served(server)) == 1
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets it
    wait_until(lambda: not served(server), "the subscription ends")
    assert api.append("a-1", "c-1").status == 201


def test_a_reader_that_takes_nothing_holds_its_own_stream_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TAKEN_S", 600)  # longer than the test takes
    server = serve()
    api, count = Api(server), 256
    with blocking.connect(server.address) as store:
        for each in range(count):
            store.append("a-1", [NewEvent("T", {"n": each, "text": "x" * 65_536})], each)
    with api.stream(buffer=65_536) as slow:
        wait_until(lambda: served(server)[0].after >= 3, "it is sent to")
        with api.stream() as other:  # which takes all of it meanwhile
            assert [other.next().json["data"]["n"] for _ in range(count)] == list(range(count))
            assert served(server)[0].after < count / 2
            assert [slow.next().json["data"]["n"] for _ in range(count)] == list(range(count))
            assert slow.next().name == "caught-up"


def test_a_reader_that_takes_nothing_for_long_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TAKEN_S", 0.1)
    server = serve()
    with blocking.connect(server.address) as store:
        for each in range(16):
            store.append("a-1", [NewEvent("T", "x" * MIB)], each)
    with Api(server).stream(buffer=65_536):
        wait_until(lambda: not served(server), "its subscription ends")


def test_a_server_stops_with_streams_open_and_they_end(serve: Serve) -> None:
    server = serve()
    with Api(server).stream() as stream:
        assert stream.next().name == "caught-up"
        server.stop()
        rest = b""
        while part := stream.socket.recv(65_536):
            rest += part
        assert rest in (b"", b"0\r\n\r\n") or b"failed" in rest


def test_a_stream_outlives_a_store_that_is_away_for_a_moment(tmp_path: Path, serve: Serve) -> None:
    """The connection of the API to its server is a client's, which connects again and continues."""
    server = serve()
    api = Api(server)
    with api.stream() as stream:
        assert stream.next().name == "caught-up"
        server.ask(lambda running: [running.gate.drop(each) for each in list(running.gate.connections)])
        api.append("a-1", "c-1")
        sent = stream.next()
        while sent.name == "caught-up":
            sent = stream.next()
        assert json.loads(sent.data)["command_id"] == "c-1"
