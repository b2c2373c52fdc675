from __future__ import annotations

import json
import uuid
from pathlib import Path

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


def lines(*members: dict[str, object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in members)


def event(aggregate_id: str, event_type: str = "T", data: object = 1, **more: object) -> dict[str, object]:
    return {"aggregate_id": aggregate_id, "event_type": event_type, "data": data, **more}


def test_events_of_several_aggregates_are_appended_together(shared: Server, aggregate: str, tmp_path: Path) -> None:
    one, other, asked = (f"{name}-{{{aggregate}}}" for name in ("one", "other", "asked"))
    output("append", asked, "--type", "T", "--data", "1", store=shared.store)
    text = lines(
        event(one, "Withdrawn", {"amount": 5}, metadata={"by": "me"}, expected_version="new"),
        event(other, "Deposited", {"amount": 5}),
        event(one, "Noted", "x"),
        {"aggregate_id": asked, "expected_version": 1},
    )
    (file := tmp_path / "transfer.jsonl").write_text(f"\n{text}")
    command = ("append", "--together", file, "--command-id", "t-1")
    said = output(*command, store=shared.store).splitlines()
    assert said[0].startswith(f"{one} is at version 2 (sequence ")
    assert said[1].startswith(f"{other} is at version 1 (sequence ")
    assert len(said) == 2
    stored = [json.loads(each) for each in output("read", one, "--json", store=shared.store).splitlines()]
    assert [(each["event_type"], each["data"], each["command_id"]) for each in stored] == [
        ("Withdrawn", {"amount": 5}, "t-1"),
        ("Noted", "x", "t-1"),
    ]
    assert stored[0]["metadata"] == {"by": "me"}
    assert output("read", asked, "--raw", store=shared.store) == "1\n"

    assert "this command was appended before" in output(*command, store=shared.store)
    again = json.loads(output(*command, "--json", store=shared.store))
    assert [(each["aggregate_id"], each["version"], each["duplicate"]) for each in again] == [(one, 2, True), (other, 1, True)]


def test_none_of_them_is_written_if_one_condition_fails(shared: Server, aggregate: str) -> None:
    one, other = f"one-{aggregate}", f"other-{aggregate}"
    text = lines(event(one), {"aggregate_id": other, "expected_version": "exists"})
    assert "is at version 0, expected exists" in refused("append", "--together", "-", store=shared.store, text=text)
    assert output("read", one, store=shared.store) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "-, line 1: not a JSON object"),
        ('{"aggregate_id": "a"}', "line 1: the line has neither an event"),
        ('{"event_type": "T", "data": 1}', "line 1: aggregate_id is missing"),
        ('{"aggregate_id": 7, "event_type": "T", "data": 1}', "aggregate_id is not a string"),
        ('{"aggregate_id": "a", "event_type": "T"}', "data is missing"),
        ('{"aggregate_id": "a", "data": 1}', "event_type is missing"),
        ('{"aggregate_id": "a", "event_type": "T", "data": 1, "command_id": "c"}', "'command_id' is not one of"),
        (lines(event("a", expected_version=1), event("a", expected_version="new")), "line 2: expected_version is 'new'"),
        (lines(event("a", expected_version=-1)), "expected_version is -1, allowed are"),
        (lines(event("a", expected_version=True)), "expected_version is True, allowed are"),
        (lines({"aggregate_id": "a", "expected_version": 1}), "one commit writes 0 aggregates"),
        ("", "one commit writes 0 aggregates"),
    ],
)
def test_wrong_lines_are_refused_by_number(shared: Server, text: str, words: str) -> None:
    assert words in refused("append", "--together", "-", store=shared.store, text=text, code=2)
    assert output("read", "a", store=shared.store) == ""


def test_what_the_lines_say_is_not_given_beside_them(shared: Server) -> None:
    assert "--type cannot be given with --together" in refused(
        "append", "--together", "-", "--type", "T", store=shared.store, text=lines(event("a")), code=2
    )
    assert "--data is missing; give ID, --type and --data, or --together FILE" in refused(
        "append", "a", "--type", "T", store=shared.store, code=2
    )
