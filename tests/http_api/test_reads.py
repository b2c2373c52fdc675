"""Replay and queries over HTTP: pages, their links, media types."""

from __future__ import annotations

import json

import pytest

from eventstore import blocking
from eventstore.http_api import operations
from eventstore.model import NewEvent
from tests.http_api.asking import EVENTS, Answer, Api
from tests.http_api.conftest import Serve


def lines(answer: Answer) -> list[dict[str, object]]:
    return [json.loads(line) for line in answer.text.splitlines()]


def walk(api: Api, path: str, **headers: str) -> tuple[list[int], int]:
    """Follows the links; returns the sequences of all events, and the number of pages."""
    found, pages, following = list[int](), 0, path or None
    while following is not None:
        page = api.get(following, **headers)
        assert page.status == 200
        pages += 1
        if headers:
            found += [int(str(each["sequence"])) for each in lines(page)]
            link = page.headers.get("link")
            following = None if link is None else link.removeprefix("<").removesuffix('>; rel="next"')
        else:
            found += [each["sequence"] for each in page.json["events"]]
            following = page.json["next"]
    return found, pages


@pytest.mark.parametrize("headers", [{}, {"Accept": "application/jsonl"}, {"Accept": "application/x-ndjson"}])
def test_the_links_of_pages_lead_through_all_events_once(api: Api, headers: dict[str, str]) -> None:
    for each in range(4):
        api.append("a-1", f"c-{each}", *[{"type": "T", "tags": ["t"]}] * 2)
    assert walk(api, f"{EVENTS}?limit=3", **headers) == ([1, 2, 3, 4, 5, 6, 7, 8], 3)
    assert walk(api, f"{EVENTS}?limit=4", **headers) == ([1, 2, 3, 4, 5, 6, 7, 8], 2)
    assert walk(api, f"{EVENTS}?from_version=7", **headers) == ([7, 8], 1)
    assert walk(api, "/api/events?limit=5&tag=t&type=T&prefix=a-", **headers) == ([1, 2, 3, 4, 5, 6, 7, 8], 2)
    assert walk(api, "/api/events?after=6", **headers) == ([7, 8], 1)


def test_a_page_is_bounded_in_bytes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "PAGE_BYTES_MAX", 100)
    for each in range(4):
        api.append("a-1", f"c-{each}", {"type": "T", "data": "x" * 60})
    assert walk(api, EVENTS) == ([1, 2, 3, 4], 2)
    assert walk(api, "/api/events") == ([1, 2, 3, 4], 3)  # the last one looks whether there are more


def test_a_page_that_takes_long_says_up_to_where_it_looked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_LOOK_S", -1.0)
    for each in range(3):
        api.append("a-1", f"c-{each}", {"type": "Other"})
    page = api.get("/api/events?type=Wanted").json
    assert page["events"] == []
    assert page["next"].startswith("/api/events?after=p1.")
    api.append("a-1", "c-4", {"type": "Wanted"})
    assert [each["sequence"] for each in api.get(page["next"]).json["events"]] == [4]


def test_an_aggregate_that_does_not_exist_has_no_events(api: Api) -> None:
    assert api.get("/api/aggregates/none/events").json == {"events": [], "aggregate_id": "none", "next": None}


def test_the_last_page_has_the_version_that_an_append_takes_as_its_condition(api: Api) -> None:
    body = {"events": [{"type": "T"}, {"type": "T"}]}
    assert api.get(EVENTS).headers["etag"] == '"0"'
    assert api.post(EVENTS, body, "c-1", If_Match='"0"').status == 201
    assert "etag" not in api.get(f"{EVENTS}?limit=1").headers
    assert "etag" not in api.get(f"{EVENTS}?from_version=9").headers
    version = api.get(f"{EVENTS}?from_version=2", Accept="application/jsonl").headers["etag"]
    assert api.post(EVENTS, body, "c-2", If_Match=version).json["version"] == 4
    assert api.post(EVENTS, body, "c-3", If_Match=version).error == (412, "VersionConflict")


def test_a_query_answers_with_the_position_up_to_which_it_looked(api: Api) -> None:
    api.append("a-1", "c-1", {"type": "T", "tags": ["x", "y"]}, {"type": "U", "tags": ["x"]}, {"type": "U"})
    both = api.get("/api/events?tag=x&tag=y").json
    assert [each["sequence"] for each in both["events"]] == [1]
    assert [each["sequence"] for each in api.get("/api/events?type=T&type=U&tag=x").json["events"]] == [1, 2]
    api.append("b-1", "c-1", {"type": "T", "tags": ["x", "y"]})
    after = api.get(f"/api/events?tag=x&tag=y&after={both['position']}")
    assert [each["sequence"] for each in after.json["events"]] == [4]
    assert after.headers["position"] == after.json["position"]
    assert [each["aggregate_id"] for each in api.get("/api/events?prefix=b").json["events"]] == ["b-1"]


def test_data_are_sent_as_they_are_stored_in_one_line(serve: Serve) -> None:
    server = serve()
    spelled = b'{\n "n": 1.10,\r\n "n2": 12345678901234567890.5}'
    broken, marked = b'{"a": \n', b"\xef\xbb\xbf{}"
    with blocking.connect(server.address) as store:
        events = [tuple.__new__(NewEvent, (1, "T", data, None)) for data in (spelled, broken, marked)]
        store.append("a-1", events, 0)
    (line, *others) = Api(server).get(EVENTS, Accept="application/jsonl").text.splitlines()
    assert '"data":{  "n": 1.10,   "n2": 12345678901234567890.5}' in line
    assert all("data_base64" in json.loads(each) for each in others)
    assert len(others) == 2


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/*", "application/json"),
        ("application/json;q=0.2, application/x-ndjson", "application/x-ndjson"),
        ("application/jsonl;q=0.5, application/json;q=0.4", "application/jsonl"),
        ("application/json;q=0, application/jsonl;q=0.1", "application/jsonl"),
    ],
)
def test_the_media_type_is_the_one_that_is_preferred(api: Api, accept: str, kind: str) -> None:
    assert api.get(EVENTS, Accept=accept).headers["content-type"] == kind


def test_a_media_type_that_there_is_not_is_refused(api: Api) -> None:
    assert api.get(EVENTS, Accept="text/html").error == (406, "Not Acceptable")
    assert api.get(EVENTS, Accept="text/event-stream").error == (406, "Not Acceptable")
