"""Who may do what over HTTP: as over TCP, since each request is one of a client with the same token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventstore.http_api import clients
from tests.http_api.asking import ANY_EVENT, EVENTS, Api
from tests.http_api.conftest import Serve
from tests.security.access_file import give, take_away
from tests.waiting import wait_until


def test_without_a_token_every_request_is_refused(tmp_path: Path, serve: Serve) -> None:
    give(tmp_path / "data", "billing", "writer")
    api = Api(serve())
    for path in (EVENTS, "/api/events", "/api/openapi.json"):
        refused = api.get(path)
        assert refused.error == (401, "Unauthenticated")
        assert refused.headers["www-authenticate"] == "Bearer"
    for path in (EVENTS, "/api/commits", "/api/commands/Open"):
        assert api.post(path, {}).error == (401, "Unauthenticated")
    assert api.get("/api/events", Accept="text/event-stream").error == (401, "Unauthenticated")


@pytest.mark.parametrize("wrong", ["Bearer x", "Bearer", "Bearer " + "x" * 5_000, "Basic eDp5", ""])
def test_a_wrong_token_is_refused(tmp_path: Path, serve: Serve, wrong: str) -> None:
    token = give(tmp_path / "data", "billing", "writer")
    api = Api(serve())
    assert api.get("/api/events", Authorization=wrong).error == (401, "Unauthenticated")
    assert api.get("/api/events", Authorization=f"Bearer {token[:-1]}").error == (401, "Unauthenticated")


def test_permissions_are_those_of_the_identity(tmp_path: Path, serve: Serve) -> None:
    data = tmp_path / "data"
    orders = give(data, "orders", "append:order-", "read:order-")
    everything = give(data, "everything", "read", "subscribe")
    server = serve()
    api, reader = Api(server, orders), Api(server, everything)
    assert api.append("order-1", "c-1").status == 201
    refused = api.append("user-1", "c-1")
    assert refused.error == (403, "PermissionDenied")
    assert refused.json["fields"]["permission"] == "append"
    assert api.get("/api/aggregates/order-1/events").status == 200
    assert api.get("/api/aggregates/user-1/events").error == (403, "PermissionDenied")
    assert api.get("/api/events").error == (403, "PermissionDenied")
    assert len(api.get("/api/events?prefix=order-").json["events"]) == 1
    assert api.get("/api/events?prefix=order-", Accept="text/event-stream").error == (403, "PermissionDenied")
    writes = [{"aggregate_id": name, "events": [ANY_EVENT], "expected_version": "any"} for name in ("order-1", "user-1")]
    assert api.post("/api/commits", {"writes": writes}, "c-2").error == (403, "PermissionDenied")
    assert api.post("/api/commands/Open", {"aggregate_id": "order-1"}).error == (403, "PermissionDenied")
    assert reader.append("order-1", "c-3").error == (403, "PermissionDenied")
    with reader.stream("/api/events?prefix=order-") as stream:
        assert stream.next().json["aggregate_id"] == "order-1"


def test_tokens_do_not_share_what_they_may(tmp_path: Path, serve: Serve) -> None:
    data = tmp_path / "data"
    writer, reader = give(data, "writer", "append"), give(data, "reader", "read")
    server = serve()
    for _ in range(2):
        assert Api(server, writer).get(EVENTS).error == (403, "PermissionDenied")
        assert Api(server, reader).get(EVENTS).status == 200


def test_an_identity_that_is_taken_away_is_refused_and_its_streams_end(tmp_path: Path, serve: Serve) -> None:
    data = tmp_path / "data"
    token, other = give(data, "gone", "read", "subscribe"), give(data, "other", "read")
    server = serve()
    api = Api(server, token)
    assert api.get(EVENTS).status == 200
    with api.stream() as stream:
        assert stream.next().name == "caught-up"
        take_away(data, "gone")
        server.ask(lambda running: running.security.reload())
        assert api.get(EVENTS).error == (401, "Unauthenticated")
        ended = stream.next()
        assert (ended.name, ended.json["title"]) == ("failed", "Unauthenticated")
        with pytest.raises(EOFError):
            stream.next()
    assert Api(server, other).get(EVENTS).status == 200


def test_an_identity_has_as_many_streams_as_it_may(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "STREAMS_EACH_MAX", 1)
    data = tmp_path / "data"
    first, other = (Api(serve_once, each) for serve_once, each in _with(serve, data))
    with first.stream() as stream:
        assert stream.next().name == "caught-up"
        assert first.get("/api/events", Accept="text/event-stream").error == (503, "Overloaded")
        with other.stream() as others:
            assert others.next().name == "caught-up"

    def again() -> bool:
        with first.stream() as opened:
            return opened.status == 200

    wait_until(again, "its place is free again")


def _with(serve: Serve, data: Path) -> list[tuple[Any, str]]:
    tokens = [give(data, name, "read", "subscribe") for name in ("one", "two")]
    server = serve()
    return [(server, each) for each in tokens]


def test_the_servers_log_and_list_of_clients_name_it(tmp_path: Path, serve: Serve) -> None:
    token = give(tmp_path / "data", "billing", "read")
    server = serve()
    assert Api(server, token).get(EVENTS).status == 200
    names = server.ask(lambda running: [each.title for each in running.gate.connections])
    assert any("http 127.0.0.1" in each for each in names), names
