"""What is refused, and how: problem details for every error, limits on everything that comes."""

from __future__ import annotations

import json
import socket
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from eventstore import errors
from eventstore.console.statuses import STATUSES, status_of
from eventstore.errors import EventStoreError
from eventstore.http_api import clients, declaration
from eventstore.http_api.problems import problem_of
from eventstore.server.work.worker import work
from eventstore.settings.sources import load_settings
from tests.http_api.asking import ANY_EVENT, EVENTS, Api
from tests.http_api.conftest import Serve
from tests.server_thread import ServerThread

APPEND = {"events": [ANY_EVENT], "expected_version": "any"}


def test_every_class_of_errors_has_a_status() -> None:
    classes = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, EventStoreError)}
    assert set(STATUSES) == classes
    retriable = {each for each in STATUSES if each.retriable}
    assert all(STATUSES[each] > HTTPStatus.BAD_GATEWAY for each in retriable)


def test_an_error_of_a_domain_has_the_status_of_its_class_and_all_its_fields() -> None:
    class Overdrawn(errors.Rejected):
        pass

    error = Overdrawn("no", cents=5)
    assert status_of(error) == 422
    details = problem_of(error)
    assert details["title"] == "Rejected"
    assert details["fields"] == {"reason": "Overdrawn", "cents": 5}
    assert json.loads(json.dumps(details)) == details


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"events": [], "events": []}',
        b'{"events": [{"type": "T", "data": NaN}], "expected_version": 0}',
        b'{"events": [{"type": "T", "data": 0.12345678901234567890}], "expected_version": 0}',
        b'{"events": [{"type": "T", "data": 1e400}], "expected_version": 0}',
        b'{"events": [{"type": "T", "data": {"a": 1, "a": 2}}], "expected_version": 0}',
        b'{"events": [{"type": "T", "data": "\\ud800"}], "expected_version": 0}',
        b'{"events": [{"type": "T", "more": 1}], "expected_version": 0}',
        b'{"events": [{"data": 1}], "expected_version": 0}',
        b'{"events": [{"type": 7}], "expected_version": 0}',
        b'{"events": [{"type": "T", "data": 1, "data_base64": ""}], "expected_version": 0}',
        b'{"events": [{"type": "T", "data_base64": "%"}], "expected_version": 0}',
        b'{"events": [{"type": "T", "tags": "t"}], "expected_version": 0}',
        b'{"events": [{"type": "T", "tags": [[]]}], "expected_version": 0}',
        b'{"events": [], "expected_version": 0}',
        b'{"events": {}, "expected_version": 0}',
        b'{"events": [{"type": "T"}], "expected_version": -1}',
        b'{"events": [{"type": "T"}], "expected_version": true}',
        b'{"events": [{"type": "T"}], "expected_version": "3"}',
        b'{"events": [{"type": "T"}], "expected_version": 99999999999999999999}',
        b'{"events": [{"type": "T"}], "expected_version": 0, "extra": 1}',
    ],
)
def test_a_body_that_is_not_as_declared_is_refused_and_nothing_is_stored(api: Api, body: bytes) -> None:
    refused = api.ask("POST", EVENTS, body, Content_Type="application/json", Idempotency_Key="c-1")
    assert refused.error == (400, "InvalidArgument")
    assert api.get("/api/events").json["events"] == []


@pytest.mark.parametrize("kind", [{}, {"Content_Type": "text/plain"}, {"Content_Type": "application/x-www-form-urlencoded"}])
def test_a_body_of_another_media_type_is_refused(api: Api, kind: dict[str, str]) -> None:
    refused = api.ask("POST", EVENTS, json.dumps(APPEND).encode(), Idempotency_Key="c-1", **kind)
    assert refused.error == (415, "Unsupported Media Type")


def test_json_may_name_its_encoding(api: Api) -> None:
    assert api.post(EVENTS, APPEND, Content_Type="application/json; charset=utf-8").status == 201


@pytest.mark.parametrize("key", [None, "", '""', "x" * 256])
def test_an_append_needs_a_command_id(api: Api, key: str | None) -> None:
    assert api.post(EVENTS, APPEND, key).error == (400, "InvalidArgument")


@pytest.mark.parametrize(
    "path",
    [
        f"{EVENTS}?limit=0",
        f"{EVENTS}?limit=1001",
        f"{EVENTS}?limit=x",
        f"{EVENTS}?from_version=0",
        f"{EVENTS}?from_version=1&from_version=2",
        f"{EVENTS}?unheard=1",
        "/api/aggregates/%ff/events",
        "/api/aggregates//events",
        f"/api/aggregates/{'x' * 256}/events",
        "/api/events?after=x",
        "/api/events?after=-1",
        "/api/events?after=end",
        "/api/events?after=99999999999999999999",
        "/api/events?type=",
        "/api/events?" + "&".join(f"type=t{n}" for n in range(257)),
        "/api/events?" + "&".join(f"tag=t{n}" for n in range(33)),
        "/api/events?" + "&".join(f"type=t{n}" for n in range(1001)),
        "/api/events?type=%ff",
    ],
)
def test_a_parameter_out_of_range_is_refused(api: Api, path: str) -> None:
    assert api.get(path).error == (400, "InvalidArgument")


STRANGE: list[object] = [
    None,
    0,
    -1,
    1.5,
    True,
    "",
    "x",
    "\ud800",
    "x" * 300,
    10**30,
    [],
    {},
    [None],
    [[]],
    {"a": 1},
    [{"a": 1}],
]
WRITE = {"aggregate_id": "a-1", "events": [ANY_EVENT], "expected_version": "any"}
COMMIT = {"writes": [WRITE], "only_if": [{"aggregate_id": "b", "version": 0}], "unless": [{"types": ["T"], "tags": ["t"]}]}
BODIES: list[tuple[str, object]] = [
    (EVENTS, APPEND),
    ("/api/commits", {**COMMIT, "after": 0, "scope": "a-1"}),
    ("/api/commands/T", {"aggregate_id": "a-1", "fields": {"a": 1}, "metadata": {"b": 1}}),
]


def places(value: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Returns where in a value others are."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for name, each in inner for place in places(each, (*at, name)))]


def with_other(value: object, at: tuple[str | int, ...], other: object) -> object:
    if not at:
        return other
    copied = value.copy() if isinstance(value, dict | list) else None
    assert copied is not None
    copied[at[0]] = with_other(copied[at[0]], at[1:], other)  # type: ignore[index] # of either kind
    return copied


@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
def test_whatever_stands_in_a_place_of_a_body_is_taken_or_refused_in_order(api: Api, path: str, body: object) -> None:
    for number, (place, other) in enumerate((place, other) for place in places(body) for other in STRANGE):
        answer = api.post(path, with_other(body, place, other), f"c-{number}")
        assert answer.status in {200, 201, 400, 404, 409, 428}, (place, other, answer.text)
        if answer.status > 201:
            assert answer.error[1] != "Internal Server Error"


def test_a_header_that_comes_twice_is_refused_and_others_may_be_in_any_encoding(api: Api) -> None:
    with socket.create_connection(api.host.split(":"), 60) as opened:  # type: ignore[arg-type] # of two texts
        head = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.host}\r\nContent-Type: application/json\r\nContent-Length: 0\r\n"
        opened.sendall(f"{head}Idempotency-Key: c-1\r\nIdempotency-Key: c-2\r\n\r\n".encode())
        assert opened.recv(12) == b"HTTP/1.1 400"
    assert api.get(EVENTS, Cookie="Zo\xeb").status == 200


def test_what_there_is_not_is_refused_in_the_same_form(api: Api) -> None:
    assert api.get("/api/unheard").error == (404, "Not Found")
    assert api.get("/api").error == (404, "Not Found")
    assert api.get("/api/events/").error == (404, "Not Found")
    refused = api.ask("DELETE", "/api/events")
    assert refused.error == (405, "Method Not Allowed")
    assert refused.headers["allow"] == "GET"
    assert api.ask("HEAD", "/api/events").status == 405


def test_a_body_over_the_limit_is_refused_before_it_is_sent(api: Api) -> None:
    with socket.create_connection(api.host.split(":"), 60) as opened:  # type: ignore[arg-type] # of two texts
        size = declaration.BODY_BYTES_MAX + 1
        head = f"POST {EVENTS} HTTP/1.1\r\nHost: {api.host}\r\nContent-Type: application/json\r\nIdempotency-Key: c\r\n"
        opened.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
        assert opened.recv(12) == b"HTTP/1.1 413"


def test_a_body_without_a_length_is_refused_when_it_is_over_the_limit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declaration, "BODY_BYTES_MAX", 10_000)
    connection = HTTPConnection(api.host, timeout=60)
    headers = {"Content-Type": "application/json", "Idempotency-Key": "c-1"}
    connection.request("POST", EVENTS, iter([b"x" * 1_000] * 20), headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_commit_over_the_limit_of_the_store_is_refused(api: Api) -> None:
    refused = api.append("a-1", "c-1", {"type": "T", "data": "x" * (4 * 1024 * 1024 + 1)})
    assert refused.error == (400, "InvalidArgument")
    assert refused.json["fields"]["limit"] == 4 * 1024 * 1024


def test_bodies_of_all_requests_together_are_bounded_and_released(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "HELD_BYTES_MAX", 20_000)
    for each in range(10):
        assert api.append("a-1", f"c-{each}", {"type": "T", "data": "x" * 5_000}).status == 201
    refused = api.append("a-1", "c-10", {"type": "T", "data": "x" * 30_000})
    assert refused.error == (503, "Overloaded")
    assert refused.headers["retry-after"] == "1"
    assert api.get(f"{EVENTS}?limit=1").status == 200
    assert api.get(EVENTS).error == (503, "Overloaded")


def test_a_request_that_names_another_host_is_refused_while_anyone_may_do_everything(api: Api) -> None:
    """A stranger's page, whose name was made to point to this machine, would be of this origin to a browser."""
    assert api.get("/api/events", Host="stranger.example").error == (421, "Misdirected Request")


def test_without_the_setting_there_is_no_api(serve: Serve) -> None:
    answer = Api(serve(http_api=False)).get("/api/events")
    assert (answer.status, answer.text) == (404, "there are /metrics, /health and /console\n")


def test_the_api_is_there_without_the_console_and_beside_it(serve: Serve) -> None:
    api = Api(serve(console=False))
    assert api.get("/api/events").status == 200
    assert api.get("/health").status == 200
    assert api.get("/console").text == "there are /metrics, /health and /api\n"


def test_a_server_that_cannot_serve_it_does_not_start(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(errors.InvalidArgument, match="no address for it: give --http")):
        serve(http=None)
    monkeypatch.setattr("eventstore.console.subject.API_LIBRARIES", ("a_library_of_nowhere",))
    with pytest.RaisesGroup(pytest.RaisesExc(errors.InvalidArgument, match="install the extra http: pip install")):
        serve()


async def test_a_worker_that_is_to_serve_it_does_not_start() -> None:
    with pytest.raises(errors.InvalidArgument, match="a worker does not serve it"):
        await work(load_settings(None, domain="bank:app", http_api=True), "tcp://127.0.0.1:1", None)


def test_a_server_that_was_stopped_is_not_waited_for(serve: Serve) -> None:
    server: ServerThread = serve()
    api = Api(server)
    assert api.get("/api/events").status == 200
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        api.get("/api/events")
