from __future__ import annotations

import json
import uuid

import pytest

from tests.cli.processes import Server, output, refused, run


@pytest.fixture
def aggregate() -> str:
    return f"aggregate-{uuid.uuid4()}"


def test_an_appended_event_is_read(shared: Server, aggregate: str) -> None:
    said = output(
        "append",
        aggregate,
        "--type",
        "OrderPlaced",
        "--data",
        '{"total": 12.50}',
        "--metadata",
        '{"by":"me"}',
        store=shared.store,
    )
    assert said.startswith(f"{aggregate} is at version 1 (sequence ")
    event = json.loads(output("read", aggregate, "--json", store=shared.store))
    assert (event["event_type"], event["version"]) == ("OrderPlaced", 1)
    assert (event["data"], event["metadata"]) == ({"total": 12.5}, {"by": "me"})
    assert output("read", aggregate, "--raw", store=shared.store) == '{"total": 12.50}\n'
    text = output("read", aggregate, store=shared.store)
    assert "v1" in text
    assert 'OrderPlaced  {"total": 12.50}  metadata {"by":"me"}' in text


def test_tags_are_given_shown_and_found(shared: Server, aggregate: str) -> None:
    append = ("append", aggregate, "--type", "Subscribed", "--data", "1")
    output(*append, "--tag", f"course:{aggregate}", "--tag", "b", store=shared.store)
    output(*append, "--tag", f"course:{aggregate}", store=shared.store)
    assert f"tags b, course:{aggregate}\n" in output("read", aggregate, store=shared.store)
    tail = ("tail", "--no-follow", "--after", "0", "--json", "--tag", f"course:{aggregate}")
    assert [json.loads(each)["version"] for each in output(*tail, store=shared.store).splitlines()] == [1, 2]
    assert [json.loads(each)["version"] for each in output(*tail, "--tag", "b", store=shared.store).splitlines()] == [1]
    assert output(*tail, "--type", "Other", store=shared.store) == ""
    lines = output("export", "--tag", f"course:{aggregate}", store=shared.store).splitlines()
    assert [json.loads(each)["tags"] for each in lines] == [["b", f"course:{aggregate}"], [f"course:{aggregate}"]]
    assert "a tag has 0 bytes" in refused(*append, "--tag", "", store=shared.store, code=2)


def test_data_comes_from_standard_input(shared: Server, aggregate: str) -> None:
    output("append", aggregate, "--type", "T", "--data", "-", store=shared.store, text=' {"a": "ü"}\n')
    assert output("read", aggregate, "--raw", store=shared.store) == '{"a": "ü"}\n'


def test_a_repeated_command_writes_nothing(shared: Server, aggregate: str) -> None:
    command = ("append", aggregate, "--type", "T", "--data", "1", "--command-id", "c-1", "--json")
    first = json.loads(output(*command, store=shared.store))
    again = json.loads(output(*command, store=shared.store))
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert (first["version"], first["sequence"]) == (again["version"], again["sequence"])
    assert "nothing was written" in output(*command[:-1], store=shared.store)
    assert "with other content" in refused(*command[:4], "--data", "2", *command[6:], store=shared.store)


def test_a_stale_expected_version_is_refused_with_both_versions(shared: Server, aggregate: str) -> None:
    append = ("append", aggregate, "--type", "T", "--data", "1", "--expected-version")
    assert "is at version 0, expected exists" in refused(*append, "exists", store=shared.store)
    output(*append, "new", store=shared.store)
    assert "is at version 1, expected 0" in refused(*append, "new", store=shared.store)
    output(*append, "1", store=shared.store)
    output(*append, "exists", store=shared.store)
    output(*append, "any", store=shared.store)
    assert "is at version 4, expected 7" in refused(*append, "7", store=shared.store)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "{total: 12}"], "data is not JSON: "),
        (["--data", "1 2"], "there is more text after the value"),
        (["--data", "NaN"], "NaN is not JSON"),
        (["--data", ""], "not JSON"),
        (["--data", "1", "--metadata", "x"], "metadata is not JSON: "),
        (["--data", "1", "--metadata", ""], "metadata is not JSON: "),
        (["--data", "1", "--expected-version", "-1"], "--expected-version is '-1'"),
        (["--data", "1", "--expected-version", "9223372036854775808"], "expected_version"),
        (["--data", "1", "--command-id", ""], "command_id"),
    ],
)
def test_wrong_values_are_refused_by_name(shared: Server, aggregate: str, options: list[str], words: str) -> None:
    assert words in refused("append", aggregate, "--type", "T", *options, store=shared.store, code=2)
    assert output("read", aggregate, store=shared.store) == ""


def test_ids_that_are_empty_or_too_long_are_refused(shared: Server) -> None:
    assert "aggregate_id" in refused("append", "", "--type", "T", "--data", "1", store=shared.store, code=2)
    assert "255" in refused("append", "ä" * 128, "--type", "T", "--data", "1", store=shared.store, code=2)
    assert "type" in refused("append", "a", "--type", "", "--data", "1", store=shared.store, code=2)


def test_two_forms_of_output_are_refused(shared: Server) -> None:
    assert "give one of the two" in refused("read", "a", "--raw", "--json", store=shared.store, code=2)


def test_a_range_of_versions_is_read(shared: Server, aggregate: str) -> None:
    for number in range(5):
        output("append", aggregate, "--type", "T", "--data", number, store=shared.store)
    read = ("read", aggregate, "--raw")
    assert output(*read, "--from-version", 2, "--to-version", 3, store=shared.store) == "1\n2\n"
    assert output(*read, "--backwards", "--limit", 2, store=shared.store) == "4\n3\n"
    assert output(*read, "--from-version", 9, store=shared.store) == ""


def test_an_aggregate_that_does_not_exist_has_no_events(shared: Server, aggregate: str) -> None:
    result = run("read", aggregate, store=shared.store)
    assert (result.returncode, result.stdout) == (0, "")
    assert f"no events: aggregate '{aggregate}' is at version 0" in result.stderr


def test_an_unreachable_server_is_named(shared: Server) -> None:
    for command in (["stats"], ["read", "a"], ["tail"], ["export"], ["append", "a", "--type", "T", "--data", "1"]):
        assert "127.0.0.1:1" in refused(*command, store="tcp://127.0.0.1:1")
    assert "tcp://host:port" in refused("stats", store="127.0.0.1:7701", code=2)


def test_stats_are_shown_for_people_and_for_programs(shared: Server) -> None:
    assert "events" in output("stats", store=shared.store)
    assert shared.stats()["durability"] == "sync"
