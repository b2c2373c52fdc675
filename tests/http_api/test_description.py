"""The OpenAPI document says what there is: it is made of the declarations that the routes are made of."""

from __future__ import annotations

import re
from typing import Any

from eventstore.http_api.operations import OPERATIONS
from eventstore.http_api.topics import TOPIC_OPERATIONS
from tests.http_api.asking import Api


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_the_document_describes_every_operation(api: Api) -> None:
    answer = api.get("/api/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(each.method, f"/api{each.path}") for each in (*OPERATIONS, *TOPIC_OPERATIONS)} | {
        ("GET", "/api/openapi.json")
    }
    names = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(names)) == len(names)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert operation["summary"].endswith(".")
            assert "401" in operation["responses"]


def test_every_reference_of_the_document_leads_somewhere(api: Api) -> None:
    document = api.get("/api/openapi.json").json
    found = references(document)
    assert found
    for each in found:
        place = document
        for part in each.removeprefix("#/").split("/"):
            place = place[part]
        assert place


def test_the_type_of_a_problem_is_its_place_in_the_document(api: Api) -> None:
    refused = api.append("a-1", "c-1", expected=7).json
    address, _, place = refused["type"].partition("#")
    found = api.get(address).json
    for part in place.removeprefix("/").split("/"):
        found = found[part]
    assert found["description"].startswith("The aggregate is at another version")


def test_what_is_described_is_what_is_answered(api: Api) -> None:
    """An answer has no members that its schema has not, and all that it requires."""
    schemas = api.get("/api/openapi.json").json["components"]["schemas"]
    event = {"type": "T", "data": 1, "metadata": 2, "tags": ["t"]}
    outcome = api.append("a-1", "c-1", event).json
    (stored,) = api.get("/api/events").json["events"]
    for name, given in (("Outcome", outcome), ("Event", stored), ("NewEvent", event)):
        assert set(schemas[name]["required"]) <= set(given) <= set(schemas[name]["properties"])
    problem = api.append("a-1", "c-2", expected=7).json
    assert set(schemas["Problem"]["required"]) <= set(problem) <= set(schemas["Problem"]["properties"])
