"""Topics, queues and messages on the command line, with a real server."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import Server, fork, output, refused, run, wait_for


def parsed(*arguments: object, server: Server, text: str | None = None) -> object:
    return json.loads(output(*arguments, "--json", store=server.store, text=text))


def lines(*arguments: object, server: Server) -> list[dict[str, object]]:
    return [json.loads(line) for line in output(*arguments, "--json", store=server.store).splitlines()]


@pytest.fixture
def topic(shared: Server, request: pytest.FixtureRequest) -> str:
    """Creates a topic with two queues for one test."""
    name = re.sub(r"\W+", "-", request.node.name)[-100:].strip("-")
    output("topic", "create", name, "--queues", 2, store=shared.store)
    return name


def test_chunks_say_where_readers_found_what_they_read(serve: Callable[..., Server]) -> None:
    server = serve()
    assert "no message was sent" in output("chunks", store=server.store)
    output("topic", "create", "read", "--queues", 1, store=server.store)
    output("message", "send", "read", "1", store=server.store)
    output("message", "tail", "read", "--no-follow", "--from-start", store=server.store)
    (chunk,) = parsed("chunks", server=server)  # type: ignore[misc] # of JSON
    assert (chunk["number"], chunk["state"], chunk["recent"], chunk["memory"], chunk["from_file"]) == (1, "ongoing", 1, 0, 0)
    assert "recent" in output("chunks", store=server.store)
    assert parsed("chunks", "--after", 1, server=server) == []


def test_a_topic_is_created_listed_shown_and_deleted(shared: Server) -> None:
    assert parsed("topic", "create", "orders", "--queues", 3, server=shared) == {
        "topic": "orders",
        "queues": 3,
        "created": True,
    }
    assert {"topic": "orders", "queues": 3, "open_queues": 3} in parsed("topic", "list", server=shared)  # type: ignore[operator]
    assert "orders" in output("topic", "list", store=shared.store)
    shown = parsed("topic", "show", "orders", server=shared)
    assert [queue["state"] for queue in shown["queues"]] == ["open"] * 3  # type: ignore[index]
    assert output("topic", "show", "orders", store=shared.store).count("open") == 3
    assert output("topic", "delete", "orders", store=shared.store) == "topic orders is deleted\n"
    assert "there is no topic 'orders'" in refused("topic", "show", "orders", store=shared.store)


def test_creating_an_existing_topic_fails_without_if_missing(shared: Server, topic: str) -> None:
    assert "exists already" in refused("topic", "create", topic, store=shared.store, code=2)
    assert parsed("topic", "create", topic, "--if-missing", server=shared) == {"topic": topic, "queues": 2, "created": False}
    assert "already exists; it has 2 queues" in output("topic", "create", topic, "--if-missing", store=shared.store)
    other_count = run("topic", "create", topic, "--if-missing", "--queues", 9, store=shared.store)
    assert other_count.stderr.startswith("not 9: `eventstore queue add`")


def test_a_name_that_is_not_allowed_is_refused_in_one_line(shared: Server) -> None:
    assert "allowed are 1 to 127 of the characters" in refused("topic", "create", "../x", store=shared.store, code=2)


def test_queues_are_added_and_removed(shared: Server, topic: str) -> None:
    assert parsed("queue", "add", topic, "--count", 2, server=shared) == {"topic": topic, "added": [2, 3]}
    assert output("queue", "remove", topic, 3, store=shared.store) == f"queue 3 of topic {topic} is removed\n"
    assert "has no queue 3" in refused("queue", "remove", topic, 3, store=shared.store)
    assert "--count N sets how many" in refused("queue", "add", topic, 2, store=shared.store, code=2)
    shown = parsed("topic", "show", topic, server=shared)
    assert [queue["queue"] for queue in shown["queues"]] == [0, 1, 2]  # type: ignore[index]


def test_a_message_that_was_sent_is_found_by_its_id(shared: Server, topic: str) -> None:
    sent = parsed("message", "send", topic, '{"a": "ä"}', "--key", "k", "--tag", "paid", "--property", "a=b=c", server=shared)
    found = parsed("message", "get", sent["message_id"], server=shared)  # type: ignore[index]
    assert {name: found[name] for name in ("topic", "key", "tag", "properties", "body")} == {  # type: ignore[index]
        "topic": topic, "key": "k", "tag": "paid", "properties": {"a": "b=c"}, "body": '{"a": "ä"}',
    }  # fmt: skip
    whole = run("message", "get", sent["message_id"], store=shared.store)  # type: ignore[index]
    assert whole.stdout == '{"a": "ä"}\n'
    assert "key: k" in whole.stderr.splitlines()
    assert "there is no message" in refused("message", "get", "0" * 20, store=shared.store)
    assert "20 hexadecimal digits" in refused("message", "get", "x", store=shared.store, code=2)


def test_with_lines_each_line_is_a_message(shared: Server, topic: str) -> None:
    text = "".join(f"{number}\n" for number in range(1_200))
    sent = parsed("message", "send", topic, "--lines", "--queue", 1, server=shared, text=text)
    assert [each["queue_offset"] for each in sent] == list(range(1_200))  # type: ignore[attr-defined]
    shown = lines("message", "tail", topic, "--no-follow", "--from-start", server=shared)
    assert [each["body"] for each in shown] == text.split()
    last = lines("message", "tail", topic, "--no-follow", server=shared)
    assert [each["body"] for each in last] == text.split()[-10:]


def test_without_lines_standard_input_is_one_message(shared: Server, topic: str) -> None:
    output("message", "send", topic, store=shared.store, text="a\nb\n")
    (shown,) = lines("message", "tail", topic, "--no-follow", server=shared)
    assert shown["body"] == "a\nb\n"


def test_messages_are_shown_as_they_arrive_and_by_tag(shared: Server, topic: str, tmp_path: Path) -> None:
    output("message", "send", topic, "one", "--tag", "paid", store=shared.store)
    out, err = tmp_path / "out", tmp_path / "err"
    with open(out, "wb") as stdout, open(err, "wb") as stderr:
        tail = fork("message", "tail", topic, "--tags", "paid", "--store", shared.store, stdout=stdout, stderr=stderr)
    try:
        wait_for(lambda: "caught up" in err.read_text(), "the past is shown")
        output("message", "send", topic, "two", "--tag", "cancelled", store=shared.store)
        output("message", "send", topic, "three\x1b[31m", "--tag", "paid", store=shared.store)
        wait_for(lambda: "three" in out.read_text(), "the new message comes")
    finally:
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 130
    shown = [line.split("  ") for line in out.read_text().splitlines()]
    assert [line[-1] for line in shown] == ["one", "three\\x1b[31m"]
    assert err.read_text().splitlines() == ["caught up; waiting for more (Ctrl-C ends)"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("send", "t", "x", "--property", "a"), "not of the form NAME=VALUE"),
        (("send", "t", "x", "--lines"), "--lines reads standard input"),
        (("send", "a/b", "x"), "allowed are 1 to 127 of the characters"),
    ],
)
def test_a_wrong_argument_is_reported_in_one_line(shared: Server, arguments: tuple[str, ...], told: str) -> None:
    assert told in refused("message", *arguments, store=shared.store, code=2)


def test_an_unknown_topic_is_reported_in_one_line(shared: Server) -> None:
    for command in (("message", "send", "nowhere", "x"), ("message", "tail", "nowhere"), ("topic", "delete", "nowhere")):
        told = refused(*command, store=shared.store)
        assert told == "there is no topic 'nowhere'; `eventstore topic list` shows all, `eventstore topic create` creates one"


def test_the_error_for_a_mistyped_topic_names_the_nearest_one(shared: Server, topic: str) -> None:
    near = topic[:-1]
    for command in (("message", "send", near, "x"), ("topic", "show", near), ("queue", "add", near)):
        assert refused(*command, store=shared.store) == f"there is no topic {near!r}; did you mean {topic!r}?"
